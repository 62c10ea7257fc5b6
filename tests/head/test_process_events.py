"""What the hosts report of the ranks' processes, and who is told of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from allranks.head.state.known_rank import Rank
from allranks.head.state.monitor import Monitor
from allranks.head.world import process_events
from allranks.head.world.process_events import ProcessEvents, ended_because
from allranks.hosts.host_end import HostGone, HostReport, RankLost
from allranks.messages.events import Leaving
from allranks.messages.host_messages import Ended, Launched, Present, Started, Suspended
from allranks.messages.requests import Refuse, Register, Request

HERE, BOX = "localhost", "box"
WITHIN = 60.0
REFUSAL = Refuse("the world is broken: rank 1 is dead. %distributed heal replaces it")
FATAL = "Fatal Python error: Segmentation fault"


class End:
    """In a host process's place."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.ended: HostGone | None = None
        self.forgotten: list[str] = []
        self.has_ended = True

    def wait_ended(self, pid: int, within: float) -> bool:
        assert 100 <= pid <= 102 and within > 0
        return self.has_ended

    def forget(self, uuids: Sequence[str]) -> None:
        self.forgotten += uuids


class World:
    """Ranks 0 and 1 of this machine and rank 2 of another, with pids 100, 101 and 102."""

    def __init__(self) -> None:
        self.monitor = Monitor("main")
        self.ends = {HERE: End(HERE), BOX: End(BOX)}
        self.told: list[tuple[str, Request]] = []
        end_at: Any = self.ends.__getitem__
        self.events = ProcessEvents(
            self.monitor,
            end_at=end_at,
            tell=lambda uuid, request: self.told.append((uuid, request)),
            python_here="/usr/bin/python3",
        )
        for number, host in enumerate((HERE, HERE, BOX)):
            self.monitor.put(Rank(number, host, f"rank-{number}", 100 + number, connected=True, ready=True))
        self.monitor.state = "whole"

    def receive(self, event: HostReport, name: str = HERE) -> dict[int, str]:
        """The causes of the ranks that are dead then."""
        if isinstance(event, Ended):  # with its process, a rank's connection closes
            for rank in self.monitor.ranks:
                if event.name == f"rank {rank.rank}" and event.pid == rank.pid:
                    self.events.disconnected(rank.uuid, by_mpirun=False)
        self.events.of(name)(event)
        return {rank.rank: rank.dead for rank in self.monitor.ranks if rank.dead}


@pytest.fixture
def world() -> World:
    return World()


def ended(name: str, pid: int, code: int = -9, log: str = "", **fields: Any) -> Ended:
    return Ended(name, pid, code, fields.pop("out_of_memory", False), log, **fields)


def test_what_a_rank_said_last_is_known_though_its_end_is_told_first(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process_events, "CLOSES_WITHIN", WITHIN)
    world.events.of(HERE)(ended("rank 1", 101, 3))
    world.monitor.receive("rank-1", Leaving("os._exit(3)", 5), ())
    world.events.disconnected("rank-1", by_mpirun=False)
    assert world.monitor.wait(lambda: world.monitor.ranks[1].dead is not None, WITHIN)
    assert world.monitor.ranks[1].dead == "os._exit(3) called at line 5"


def test_a_start_tells_the_ranks_pid(world: World) -> None:
    assert world.receive(Started(1, 201)) == {}
    assert [rank.pid for rank in world.monitor.ranks] == [100, 201, 102]
    assert world.receive(Started(3, 203)) == {}, "of a world that has shrunk since"


def test_the_launcher_is_known_from_its_start_or_from_what_runs(world: World) -> None:
    world.receive(Launched(7))
    assert world.events.launcher == 7
    world.receive(Present({"launcher": 8, "rank 0": 100}))
    assert world.events.launcher == 8
    world.receive(Present({"rank 0": 100}))
    assert world.events.launcher is None


def test_a_suspended_process_is_known_until_it_is_continued(world: World) -> None:
    def suspended() -> list[int]:
        return [rank.rank for rank in world.monitor.ranks if rank.suspended]

    world.receive(Suspended(101, True), BOX)
    assert suspended() == [], "another host's process"
    world.receive(Suspended(101, True))
    assert suspended() == [1]
    world.receive(Suspended(101, False))
    assert suspended() == []
    world.receive(Present({"rank 0": 100, "rank 1": 101}, suspended=[100]))
    assert suspended() == [0], "after a gap"
    rank = world.monitor.ranks[0]
    assert rank.suspended_since is not None
    rank.received_at = rank.suspended_since + 2.0
    assert suspended() == [], "it reports again"


def test_the_end_of_a_rank_is_told_to_those_that_are_left(world: World) -> None:
    assert world.receive(ended("rank 1", 101)) == {1: "killed by SIGKILL"}
    assert world.told == [("rank-0", REFUSAL), ("rank-2", REFUSAL)]
    assert world.ends[HERE].forgotten == ["rank-1"] and world.ends[BOX].forgotten == []
    assert world.monitor.state == "broken"


def test_the_cause_is_in_the_end_of_the_rank(world: World) -> None:
    assert world.receive(ended("rank 1", 101, 1, "Traceback\nImportError: no mlx")) == {
        1: "exited with code 1 (ImportError: no mlx)"
    }
    assert world.receive(ended("rank 2", 102, out_of_memory=True), BOX)[2] == "killed by the kernel: out of memory"


@pytest.mark.parametrize(
    ("event", "host"),
    [
        (ended("rank 1", 99), HERE),
        (ended("rank 1", 101), BOX),
        (ended("rank 3", 103), HERE),
        (RankLost(1, 99, "the job was cancelled"), HERE),
        (RankLost(1, 101, "the job was cancelled"), BOX),
    ],
    ids=["replaced", "on another host", "of a larger world", "lost after it was replaced", "lost on another host"],
)
def test_the_end_of_a_process_that_is_no_rank_is_nothing(world: World, event: HostReport, host: str) -> None:
    assert world.receive(event, host) == {} and world.told == [] and world.ends[HERE].forgotten == []


def test_a_rank_that_is_lost_with_its_job(world: World) -> None:
    assert world.receive(RankLost(2, 102, "the job was cancelled"), BOX) == {2: "lost on box: the job was cancelled"}
    assert [uuid for uuid, _ in world.told] == ["rank-0", "rank-1"]


def test_ranks_are_lost_with_their_host(world: World) -> None:
    world.monitor.put(Rank(3, BOX, "rank-3", 103, ready=True))
    because = "lost with its host box: ssh ended"
    assert world.receive(HostGone("ssh ended"), BOX) == {2: because, 3: because}
    assert world.ends[HERE].forgotten == ["rank-2", "rank-3"]
    assert {uuid for uuid, _ in world.told[-2:]} == {"rank-0", "rank-1"}, "the dead are told nothing"


def test_with_this_machines_host_process_all_ranks_end(world: World) -> None:
    because = "ended with the host process (/usr/bin/python3), which exited with code 3"
    assert world.receive(HostGone(code=3)) == dict.fromkeys(range(3), because)
    assert world.told == [] and world.ends[HERE].forgotten == [], "nobody is left who could be told"


def test_a_host_process_that_was_killed_in_words(world: World) -> None:
    assert "(/usr/bin/python3), which was killed by SIGKILL" in world.receive(HostGone(code=-9))[0]


def test_with_mpirun_all_ranks_end_and_its_words_are_kept(world: World) -> None:
    world.receive(Launched(7))
    log = "-----\nprterun noticed that rank 1 exited\non signal 9 - killed\n-----\n"
    cause = "ended by mpirun, which exited with code 1:\nprterun noticed that rank 1 exited\non signal 9 - killed"
    assert world.receive(ended("launcher", 7, 1, log)) == dict.fromkeys(range(3), cause)
    assert world.ends[HERE].forgotten == ["rank-0", "rank-1", "rank-2"] and world.told == []


def test_mpirun_that_said_nothing(world: World) -> None:
    world.receive(Launched(7))
    world.monitor.died(0, "killed by SIGSEGV")
    dead = world.receive(ended("launcher", 7, out_of_memory=True))
    assert dead[0] == "killed by SIGSEGV", "what was known before stays"
    assert dead[1].startswith("ended by mpirun") and dead[1].endswith("out of memory"), "and no empty line"
    assert world.ends[HERE].forgotten == ["rank-1", "rank-2"]


def test_the_mpirun_of_the_world_before_is_nothing(world: World) -> None:
    world.receive(Launched(8))
    assert world.receive(ended("launcher", 7)) == {}


def test_where_the_controller_was_replaced_the_living_register_again(world: World) -> None:
    world.monitor.died(1, "killed by SIGKILL")
    assert world.receive(ended("controller", 5, replaced=True)) == {1: "killed by SIGKILL"}
    assert world.told == [("rank-0", Register()), ("rank-2", Register())]
    world.events.repeat([])
    assert len(world.told) == 2, "new ranks register by themselves"


def test_without_a_controller_no_rank_can_start_and_the_others_go_on(world: World) -> None:
    world.monitor.ranks[1].ready = False
    cause = "cannot start: ipyparallel's controller exited with code 1 (OSError: no ports)"
    assert world.receive(ended("controller", 5, 1, "OSError: no ports")) == {1: cause}
    assert world.told == []
    assert world.events.no_controller == "ipyparallel's controller exited with code 1 (OSError: no ports)"


def test_what_had_ended_before_is_said_of_new_ranks(world: World) -> None:
    world.receive(ended("controller", 5, 1))
    for number, host in enumerate((HERE, HERE, BOX)):
        world.monitor.put(Rank(number, host, f"new-{number}"))
    other: Any = world.ends[BOX]
    other.ended = HostGone("ssh ended")
    world.events.repeat([other])
    cause = "cannot start: ipyparallel's controller exited with code 1"
    assert [rank.dead for rank in world.monitor.ranks] == [cause] * 3


def test_a_host_that_had_ended_before_is_said_of_its_new_ranks(world: World) -> None:
    other: Any = world.ends[BOX]
    world.events.repeat([other])
    assert world.monitor.alive() == world.monitor.ranks
    other.ended = HostGone("ssh ended")
    world.events.repeat([other])
    assert [rank.dead for rank in world.monitor.ranks] == [None, None, "lost with its host box: ssh ended"]
    world.ends[HERE].ended = HostGone(code=3)
    world.events.repeat([])
    assert "exited with code 3" in (world.monitor.ranks[0].dead or "")


def test_a_connection_that_closed_is_no_death(world: World) -> None:
    world.events.disconnected("rank-1", by_mpirun=False)
    world.events.disconnected("nobody", by_mpirun=True)
    rank = world.monitor.ranks[1]
    assert not rank.connected and rank.dead is None and world.monitor.ranks[0].connected


def test_the_end_of_a_rank_of_mpirun_is_looked_for_when_its_connection_closed(world: World) -> None:
    rank = world.monitor.ranks[2]
    world.events.disconnected("rank-2", by_mpirun=True)
    assert world.monitor.wait(lambda: rank.dead is not None, WITHIN)
    assert rank.dead == "its process ended (mpirun does not report why)" and len(world.monitor.alive()) == 2


@pytest.mark.parametrize("why", ["it runs", "another process took its place", "it was started again"])
def test_a_rank_of_mpirun_whose_process_is_not_known_to_have_ended_lives(world: World, why: str) -> None:
    rank = world.monitor.ranks[1]
    world.ends[HERE].has_ended = why != "it runs"
    if why == "another process took its place":
        world.monitor.put(Rank(1, HERE, "another", 101))
    elif why == "it was started again":
        rank.pid = 201
    world.events._watch_end(rank, 101)
    assert len(world.monitor.alive()) == 3


def test_a_rank_dies_once(world: World) -> None:
    world.receive(RankLost(1, 101, "the job was cancelled"))
    assert world.receive(ended("rank 1", 101, -15)) == {1: "lost on localhost: the job was cancelled"}


@pytest.mark.parametrize(
    ("code", "log", "cause"),
    [
        (0, "", "exited with code 0"),
        (0, "last words", "exited with code 0"),
        (1, "", "exited with code 1"),
        (1, "Traceback\nValueError: boom", "exited with code 1 (ValueError: boom)"),
        (1, f"{FATAL}\nThread 1:\n  File x", f"exited with code 1 ({FATAL})"),
        (-11, f"noise\n{FATAL}\nThread 1:", f"killed by SIGSEGV ({FATAL})"),
        (-9, "last words", "killed by SIGKILL"),
        (-200, "", "killed by signal 200"),
    ],
)
def test_a_cause_in_words(code: int, log: str, cause: str) -> None:
    assert ended_because(code, log) == cause


def test_out_of_memory_is_said_instead_of_the_signal() -> None:
    assert ended_because(-9, "last words", out_of_memory=True) == "killed by the kernel: out of memory"
