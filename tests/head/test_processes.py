"""How the processes of ranks are ended on their hosts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from types import SimpleNamespace
from typing import Any

from allranks.cluster_settings import Settings
from allranks.head.state.known_rank import Rank
from allranks.head.state.monitor import Monitor
from allranks.head.world.processes import Processes
from allranks.up_options import UpOptions
from allranks_backends.registry import get_backend

HERE, BOX, MPIRUN = "localhost", "box", 99


class End:
    """In a host process's place: notes which processes are waited for."""

    def __init__(self) -> None:
        self.waited: list[int] = []

    def wait_started(self, within: float) -> None:
        pass

    def signal(self, pid: int, number: int) -> None:
        pass

    def wait_gone(self, pids: Iterable[int], within: float) -> set[int]:
        self.waited += pids
        return set()

    def wait_ended(self, pid: int, within: float) -> bool:
        self.waited.append(pid)
        return True

    def forget(self, uuids: Sequence[str]) -> None:
        pass


def test_ranks_that_mpirun_has_never_started_are_not_waited_for() -> None:
    ends, monitor = {HERE: End(), BOX: End()}, Monitor("main")
    hosts: Any = SimpleNamespace(here=ends[HERE], end_at=ends.__getitem__)
    events: Any = SimpleNamespace(launcher=MPIRUN)
    lifeline: Any = None
    for number, (host, pid) in enumerate([(HERE, None), (BOX, 101), (BOX, None)]):
        monitor.put(Rank(number, host, f"rank-{number}", pid))
    processes = Processes(Settings.of(UpOptions(), [], "mpi", {}), monitor, lifeline, hosts, events)
    processes.stop(get_backend("mpi"), range(3), everybody=True)
    assert (ends[HERE].waited, ends[BOX].waited) == ([MPIRUN], [101])
