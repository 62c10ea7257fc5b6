"""``python -m allranks.probe.conformance WORLD``: form this world, check it, and print each result as a line of JSON.

This is a separate process, so that a crash of a library in the head, such as MLX for CUDA without a driver, ends only
this process.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence

import msgspec

from allranks.cluster.cluster import Cluster
from allranks.errors import AllranksError, CannotStart
from allranks.machine.end_with_parent import end_with_parent
from allranks.messages.events.probe_answers import ProbeCheck, Result
from allranks_backends.hostfile import read_hostfile
from allranks_backends.machines.platform import this_platform
from allranks_backends.registry import get_backend
from allranks_backends.runtimes.nccl import SHARE

from .conformance_cells import BREAK, DTYPES, KEPT, KILL, OPERATIONS, SIZES, SUM, Wrong, wrong
from .world import ProbedWorld

STEP = 30.0
"""Timeout, in seconds, for a cell."""
LEASE = 60.0
"""Seconds that ranks on other hosts outlive this process if it is killed."""
HEAL = "heal a killed rank"
HOSTFILE = "python -m allranks discover --hosts A,B --output cluster.json, then --hostfile cluster.json"
Done = tuple[str, bool | None]
"""A step's detail for the report, and whether ranks that were not killed kept their processes (None: not tested)."""


class ConformanceFailed(Exception):
    """A step failed; the message says why, as a clause."""


class Conformance:
    def __init__(self, world: ProbedWorld, say: Callable[[ProbeCheck], None]) -> None:
        self._world, self._say = world, say
        self._within = STEP * world.patience
        self._cluster = _cluster(world)

    def run(self) -> None:
        try:
            if not self._step("start", self._start):
                return
            for operation in OPERATIONS:
                self._operation(operation)
            if self._cluster.size > 1:
                self._step("abort a blocked collective", self._abort)
                if self._world.no_kills:
                    self._tell(HEAL, "not available", self._world.no_kills)
                else:
                    self._step(HEAL, self._heal)
        finally:
            self._cluster.down()

    def _step(self, name: str, work: Callable[[], Done]) -> bool:
        began = time.monotonic()
        try:
            detail, same = work()
        except (AllranksError, ConformanceFailed) as error:
            text, cannot = str(error), f"Backend {self._world.backend} cannot run"
            if isinstance(error, CannotStart) and text.startswith(cannot):
                self._tell(name, "not available", text.rpartition(". ")[0] or text)  # without the suggestion
            else:
                self._tell(name, "failed", text, time.monotonic() - began)
            return False
        self._tell(name, "passed", detail, time.monotonic() - began, same)
        return True

    def _tell(
        self, name: str, result: Result, detail: str, seconds: float = 0.0, same_processes: bool | None = None
    ) -> None:
        self._say(ProbeCheck(self._world.name, name, result, detail, round(seconds, 2), same_processes))

    def _start(self) -> Done:
        cluster = self._cluster.up()
        return "; ".join([f"{cluster.size} ranks", *cluster.snapshot.notes]), None

    def _operation(self, name: str) -> None:
        """Check an operation, and report a result for each dtype, or only one if it could not be run."""
        began, needs = time.monotonic(), OPERATIONS[name]
        backend = get_backend(self._world.backend)
        if not needs <= backend.operations or (needs == {"send", "recv"} and self._cluster.size < 2):
            why = f"{backend.name} has none" if not needs <= backend.operations else "it takes two ranks"
            return self._tell(name, "not available", why)
        try:
            found = self._values(wrong(name))
        except (AllranksError, ConformanceFailed) as error:
            return self._tell(name, "failed", str(error), time.monotonic() - began)
        took = time.monotonic() - began
        for dtype in DTYPES:
            bad = {
                size for each in found.values() for what, size in msgspec.convert(each, list[Wrong]) if what == dtype
            }
            detail = f"wrong with {', '.join(map(str, sorted(bad)))} elements" if bad else f"{len(SIZES)} sizes"
            self._tell(f"{name} {dtype}", "failed" if bad else "passed", detail, took)

    def _abort(self) -> Done:
        """One rank raises; the ranks that wait for it in a collective must be unblocked."""
        before = self._keep()
        result = self._cluster.run(BREAK, timeout=self._within)
        if list(result.errors) != [self._cluster.size - 1]:
            raise ConformanceFailed(f"the other ranks were not unblocked: {result.failure()}")
        return self._after(before, range(self._cluster.size))

    def _heal(self) -> Done:
        before = self._keep()
        result = self._cluster.run(KILL, timeout=self._within)
        last = self._cluster.size - 1
        if not result[last].dead:
            raise ConformanceFailed(f"rank {last} was not seen to die: {result.failure()}")
        self._cluster.heal()
        return self._after(before, range(last))

    def _keep(self) -> list[int | None]:
        """Set a variable on each rank; return the pids of the ranks."""
        self._cluster.run(KEPT, timeout=self._within).check()
        return [rank.pid for rank in self._cluster.snapshot.ranks]

    def _after(self, before: Sequence[int | None], ranks: Sequence[int]) -> Done:
        """Check that the next sum is right, and that `ranks` have kept their variable unless they were restarted."""
        found = self._values(SUM)
        if wrong_sum := [rank for rank, each in found.items() if not each[0]]:
            raise ConformanceFailed(f"the next sum is wrong on rank {wrong_sum[0]}")
        now = [rank.pid for rank in self._cluster.snapshot.ranks]
        lost = [rank for rank in ranks if found[rank][1] != rank]
        if all(now[rank] == before[rank] for rank in ranks):
            if lost:
                raise ConformanceFailed(f"rank {lost[0]} has lost its variable")
            return "in the same processes", True
        return f"the other ranks were restarted, {'without' if lost else 'with'} their variables", False

    def _values(self, code: str) -> dict[int, list[object]]:
        result = self._cluster.run(code, timeout=self._within).check()
        return {rank: msgspec.convert(each.value, list[object]) for rank, each in result.items()}


def _cluster(world: ProbedWorld) -> Cluster:
    env, name = world.env, "probe"
    if world.hostfile is not None:
        return Cluster(hostfile=world.hostfile, backend=world.backend, env=env, name=name, lease=LEASE)
    if world.hosts:
        return Cluster(hosts=world.hosts, backend=world.backend, env=env, name=name, lease=LEASE)
    return Cluster(world.ranks, backend=world.backend, env=env, name=name)


def why_not(world: ProbedWorld) -> str:
    """Why the world cannot be formed; empty if no reason is known yet."""
    backend = get_backend(world.backend)
    if world.why_not:
        return world.why_not
    here = not world.hosts and world.hostfile is None and SHARE not in world.env
    if here and (found := backend.why_not(this_platform(), world.ranks, world.ranks)):
        return found
    if backend.needs == "rdma":
        hosts = read_hostfile(world.hostfile).hosts if world.hostfile is not None else ()
        if not any(host.rdma for host in hosts):
            return f"no hostfile says which RDMA devices join the ranks ({HOSTFILE})"
    return ""


def main(text: str) -> None:
    end_with_parent(grace=LEASE)
    world = msgspec.json.decode(text, type=ProbedWorld)

    def say(check: ProbeCheck) -> None:
        print(msgspec.json.encode(check).decode(), flush=True)

    if why := why_not(world):
        say(ProbeCheck(world.name, "start", "not available", why))
    else:
        Conformance(world, say).run()


if __name__ == "__main__":
    main(*sys.argv[1:])
