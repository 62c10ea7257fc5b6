"""Break worlds at random moments, and re-form them, many times: ``python -m tests.jaccl.lab.soak 500 200``.

``... 500 200 jaccl silent`` does so with one backend, and a driver in one mode alone. Prints how long it took from stop
to the prompt, and to re-form; `make test-all` has no time for it.
"""

from __future__ import annotations

import random
import statistics
import sys
import time

from tests.faults.stop import running
from tests.waiting import comes_true

from .build import build
from .world import World, start

WITHIN = 120.0
TRAFFIC = """
import random
random.seed(mx.distributed.all_sum(mx.array(1.0)).item() + {seed})
wrong = done = 0
while True:
    count = random.choice((3, 2_000, 30_000, 200_000))
    ys = [mx.distributed.all_sum(mx.full((count,), float(rank + k))) for k in range(random.choice((1, 3)))]
    mx.eval(ys)
    wrong += sum(bool((y != sum(range(size)) + k * size).any().item()) for k, y in enumerate(ys))
    done += 1
"""


ALL = (("jaccl", "flush"), ("jaccl-ring", "flush"), ("jaccl", "silent"), ("jaccl-ring", "silent"))


def main(breaks: str, reforms: str, *only: str) -> None:
    built = build()
    for backend, driver in ALL:
        if only not in ((), (backend, driver)):
            continue
        with start(built, backend, LAB_RDMA_ERR=driver) as world:
            soak(f"{backend}, a driver in the mode {driver}", world, int(breaks), int(reforms))


def soak(name: str, world: World, breaks: int, reforms: int) -> None:
    cluster, pids, held = world.cluster, world.pids(), world.lab.held()
    to_prompt, to_reform, aborted, done = list[float](), list[float](), 0, 0
    for number in range(breaks):
        cell = cluster.begin(TRAFFIC.format(seed=number))
        assert comes_true(cluster, running(*range(len(pids))), WITHIN)
        time.sleep(random.uniform(0.0, 0.3))
        began = time.monotonic()
        cluster.interrupt()
        result = cell.finish(WITHIN)
        to_prompt.append(time.monotonic() - began)
        aborted += any(each.unblocked for each in result.values())
        after = cluster.run("globals().get('wrong', 0), globals().get('done', 0)", timeout=WITHIN).check()
        done += after[0].value[1]
        assert all(each.value[0] == 0 for each in after.values()), f"a wrong number, round {number}"
        check(world, pids, held)
    for _ in range(reforms):
        began = time.monotonic()
        cluster.rewire(cluster.backend)
        to_reform.append(time.monotonic() - began)
        check(world, pids, held)
    print(f"{name}: {breaks} stops, {aborted} of them aborted collectives, {done} steps; {reforms} re-forms")
    print(f"  seconds from stop to prompt: {described(to_prompt)}; to re-form: {described(to_reform)}", flush=True)


def check(world: World, pids: list[int | None], held: dict[str, int]) -> None:
    """The same processes, nothing lost, and the next sum right."""
    sums = world.cluster.run("mx.distributed.all_sum(mx.ones(3)).tolist()", timeout=WITHIN).check()
    assert [each.value for each in sums.values()] == [[float(len(pids))] * 3] * len(pids)
    assert (world.pids(), world.lab.held()) == (pids, held)


def described(seconds: list[float]) -> str:
    ordered = sorted(seconds)
    return f"p50 {statistics.median(ordered):.3f}, p95 {ordered[int(len(ordered) * 0.95)]:.3f}, most {ordered[-1]:.3f}"


if __name__ == "__main__":
    main(*sys.argv[1:])
