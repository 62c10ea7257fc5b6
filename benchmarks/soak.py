"""``python -m benchmarks.soak --rounds N --seed S [-n 4] [--backend ring|mpi]``: random faults in random states.

After every round each surviving rank must have its variables (arrays by checksum, and by identity where their
process lived on), the next collectives must be right, and nothing may have grown. One line a round, a summary, and exit
code 1 if anything was wrong.
"""

from __future__ import annotations

import faulthandler
import random
import signal
import sys
import time
from collections import Counter
from dataclasses import dataclass
from typing import Any

from allranks import Cluster
from allranks.errors import AllranksError
from allranks_backends.views import AT_REST

from ._drawn import options_of
from ._faults import Round, Wrong
from ._leftovers import Leftovers
from ._processes import nothing_left

CELL_WITHIN = 200.0
"""Seconds a cell gets, with compilations on a busy machine."""
STUCK_AFTER = 400.0
"""Seconds after which a round is given up, with all stacks."""
WARM_UP = 3
"""Rounds after which growth counts: the first ones import and fill pools."""

SETUP = """
import gc, hashlib, itertools, os, time
import numpy as np
import mlx.nn as nn
from mlx.nn.layers.distributed import shard_linear
mx.random.seed(rank)
soak_arrays = {
    str(dtype): (mx.random.uniform(shape=(257, 3)) * 100).astype(dtype)
    for dtype in (mx.float32, mx.float16, mx.bfloat16, mx.int32, mx.int64, mx.uint8, mx.bool_)
}
soak_weights = mx.random.normal((1 << 16,))
soak_plain = {"losses": [0.5, 0.25], "name": "r\\u00e4nk", "nested": {"of": (rank, size)}, "world": world}
mx.random.seed(7)
soak_model = nn.Sequential(
    shard_linear(nn.Linear(16, 12 * size), "all-to-sharded", group=world), nn.ReLU(),
    shard_linear(nn.Linear(12 * size, 5), "sharded-to-all", group=world),
)
def soak_step_body(x):
    return mx.distributed.all_sum(x) * 2 + 1
soak_step = mx.compile(soak_step_body)
def soak_train(model, x):
    loss, grads = nn.value_and_grad(model, lambda model, x: model(x).square().mean())(model, x)
    return loss, nn.average_gradients(grads["layers"][2]["bias"], group=world)
def soak_bytes(x):
    return np.array(x.astype(mx.float32) if x.dtype == mx.bfloat16 else x).tobytes()
def soak_look():
    digest = hashlib.sha256()
    for name in sorted(soak_arrays):
        digest.update(soak_bytes(soak_arrays[name]))
    digest.update(soak_bytes(soak_weights))
    for layer in soak_model.layers[::2]:
        digest.update(soak_bytes(layer.weight))
    digest.update(repr([soak_plain[name] for name in ("losses", "name", "nested")]).encode())
    ids = [id(soak_arrays), id(soak_weights), id(soak_model), *map(id, soak_arrays.values())]
    names = sorted(name for name in globals() if name.startswith("soak_"))
    return digest.hexdigest()[:12], ids, names, os.getpid()
def soak_forward():
    x = mx.arange(32).reshape(2, 16) / 32
    loss, grads = soak_train(soak_model, x)
    return hashlib.sha256(soak_bytes(soak_model(x)) + soak_bytes(loss) + soak_bytes(grads)).hexdigest()[:12]
"""

CHANGE = """
mx.random.seed({round} + rank)
soak_weights = soak_weights + mx.random.normal(soak_weights.shape)
soak_plain["losses"] = [float(soak_weights[0].item()), {round}]
mx.eval(soak_weights)
soak_look()
"""

SUMS = """
gc.collect()
mx.clear_cache()
(
    mx.distributed.all_sum(mx.arange(1000) * (rank + 1) + {round}).tolist() == [
        i * {ranks_sum} + {size} * {round} for i in range(1000)],
    mx.distributed.all_gather(mx.array([rank, {round}])).tolist() == [n for r in range({size}) for n in (r, {round})],
    mx.distributed.all_max(mx.array(rank)).item() == {size} - 1,
    soak_step(mx.full((4,), {round})).tolist() == [2 * {size} * {round} + 1] * 4,
    (soak_plain["world"] is world, world.rank(), world.size()) == (True, rank, {size}),
), soak_forward()
"""


@dataclass
class Held:
    """What a rank holds."""

    digest: str
    ids: list[int]
    names: list[str]
    pid: int


class Soak:
    """One cluster, and what its ranks are known to hold."""

    def __init__(self, cluster: Cluster, seed: int) -> None:
        self._cluster, self._seed = cluster, seed
        self._held: dict[int, Held] = {}
        self._forward = ""
        self._leftovers = Leftovers(cluster)
        cluster.run(SETUP, timeout=CELL_WITHIN).check()

    def round(self, number: int) -> tuple[Round, list[tuple[str, str]]]:
        """Play one round; returns it, and each mistake: its kind and a sentence."""
        round = Round.draw(random.Random(f"{self._seed}:{number}"), self._cluster.size)
        self._change(number)
        try:
            round.happen(self._cluster)
            lost = self._fix(round)
        except (Wrong, AllranksError) as error:
            return round, [("wrong behaviour", f"{type(error).__name__}: {error}")]
        wrong = [("lost name", each) for each in lost + self._lost(round)]
        if round.kills:
            self._cluster.run(SETUP, timeout=CELL_WITHIN).check()
            self._forward = ""
        wrong += [("wrong sum", each) for each in self._wrong_sums(number)]
        if number > WARM_UP:
            wrong += [("leftover", each) for each in self._leftovers.look()]
        return round, wrong

    def _change(self, number: int) -> None:
        result = self._cluster.run(CHANGE.format(round=number), timeout=CELL_WITHIN).check()
        self._held = {rank: Held(*each.value) for rank, each in result.items()}

    def _fix(self, round: Round) -> list[str]:
        """Heal if a rank is dead; otherwise, the next cell must succeed. Returns the variables that a copy lacks."""
        cluster = self._cluster
        if not round.kills:
            # A world that broke after the prompt was back is re-formed with the next cell.
            cluster.run("rank", timeout=CELL_WITHIN).check()
            return []
        cluster.heal(source=round.source)
        if round.source is None:
            return []
        copy, meant = self._look(round.victim), self._held[round.source]
        return [] if (copy.digest, copy.names) == (meant.digest, meant.names) else [f"the copy of rank {round.source}"]

    def _look(self, rank: int) -> Held:
        return Held(*self._cluster.run("soak_look()", ranks=rank, timeout=CELL_WITHIN).check()[rank].value)

    def _lost(self, round: Round) -> list[str]:
        """What surviving ranks no longer hold as they did."""
        lost = []
        for rank, before in self._held.items():
            if rank == round.victim and round.kills:
                continue
            now = self._look(rank)
            if now.digest != before.digest:
                lost.append(f"rank {rank} holds other values")
            if missing := set(before.names) - set(now.names):
                lost.append(f"rank {rank} lacks {', '.join(sorted(missing))}")
            if now.pid == before.pid and now.ids != before.ids:
                lost.append(f"rank {rank} holds other objects")
            if now.pid != before.pid:
                lost.append(f"the process of rank {rank} was replaced")
        return lost

    def _wrong_sums(self, number: int) -> list[str]:
        size = self._cluster.size
        code = SUMS.format(round=number, size=size, ranks_sum=size * (size + 1) // 2)
        result = self._cluster.run(code, timeout=CELL_WITHIN).check()
        said = [f"rank {rank}: {each.value[0]}" for rank, each in result.items() if not all(each.value[0])]
        forwards = {each.value[1] for each in result.values()}
        if len(forwards) > 1 or (self._forward and forwards != {self._forward}):
            said.append(f"the sharded network gives {sorted(forwards)}, and gave {self._forward or 'nothing yet'}")
        self._forward = self._forward or forwards.pop()
        return said


def soak(rounds: int, seed: int, size: int, backend: str, first: int = 1) -> Counter[str]:
    """Play the rounds and print them; count mistakes by kind."""
    wrong: Counter[str] = Counter()
    with Cluster(size, backend=backend, name="soak") as cluster:
        each = Soak(cluster, seed)
        for number in range(first, first + rounds):
            faulthandler.dump_traceback_later(STUCK_AFTER, exit=True)
            started = time.monotonic()
            round, found = each.round(number)
            seconds = time.monotonic() - started
            print(f"{number:4} {seconds:5.1f} s  {'ok   ' if not found else 'WRONG'}  {round}", flush=True)
            for kind, words in found:
                print(f"               {kind}: {words}", flush=True)
                wrong[kind] += 1
            if cluster.state != "whole" or any(rank.state not in AT_REST for rank in cluster.snapshot.ranks):
                print("               the cluster cannot go on", flush=True)
                break
        faulthandler.cancel_dump_traceback_later()
    return wrong


def main(arguments: list[str] | None = None) -> int:
    options = options_of(arguments, __doc__, "round", 200, 4)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # `... &` in a script has it ignored; rounds press it
    print(f"{options.rounds} rounds on {options.n} {options.backend} ranks, seed {options.seed}", flush=True)
    with nothing_left():
        wrong = soak(options.rounds, options.seed, options.n, options.backend, options.first)
    kinds = {"wrong sum": "wrong sums", "lost name": "lost names", "leftover": "leftovers"}
    counts = [f"{wrong.pop(kind, 0)} {words}" for kind, words in kinds.items()]
    counts += [f"{count} times {kind}" for kind, count in wrong.items()]
    print(f"{options.rounds} rounds: {', '.join(counts)}", flush=True)
    failed = any(not each.startswith("0 ") for each in counts)
    if failed:
        print(f"again: python -m benchmarks.soak {_replay(options)}", flush=True)
    return int(failed)


def _replay(options: Any) -> str:
    return f"--rounds {options.rounds} --seed {options.seed} -n {options.n} --backend {options.backend}"


if __name__ == "__main__":
    sys.exit(main())
