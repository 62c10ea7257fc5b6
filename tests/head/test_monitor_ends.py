"""What the monitor makes of deaths, of another notebook's cells, and who waits for it."""

from __future__ import annotations

import queue
import threading

import pytest

from allranks.head.state.cell_updates import Died
from allranks.head.state.monitor import Monitor
from allranks.messages.events import (
    AtDebugger,
    Done,
    Hello,
    Leaving,
    Memory,
    Output,
    Ready,
    State,
)
from allranks_backends.plan import Link
from tests.head.whole_world import (
    CELL,
    HELLO,
    WITHIN,
    came,
    done,
    ended_comms,
    known,
    put_out,
    whole_world,
)


@pytest.fixture
def monitor() -> Monitor:
    return whole_world()


def test_a_death_ends_the_ranks_cell_and_breaks_the_world(monitor: Monitor) -> None:
    updates, rank = monitor.listen(CELL, [0, 1]), monitor.ranks[0]
    monitor.receive("rank-0", State(True, CELL, line=3, source="f()"), ())
    monitor.receive("rank-0", AtDebugger(CELL, True, True, ""), ())
    came(updates)
    monitor.died(0, "killed by SIGKILL")
    cause = "killed by SIGKILL; last seen at line 3: f()"
    assert rank.dead == cause and not rank.connected and rank.cell is None and rank.debugger is None
    assert came(updates) == [(0, Died(cause))]
    assert monitor.state == "broken" and monitor.alive() == [monitor.ranks[1]]
    assert monitor.busy([0, 1]) == [monitor.ranks[1]] and ended_comms(monitor) == ["rank-0"]
    monitor.died(0, "something else")
    assert rank.dead == cause and came(updates) == []


@pytest.mark.parametrize(
    ("cell", "report", "leaving", "cause"),
    [
        (None, State(line=3, source="f()"), None, "exited with code 1"),
        (CELL, State(source="f()"), None, "exited with code 1"),
        (CELL, State(line=3), None, "exited with code 1; last seen at line 3"),
        (CELL, State(line=3), Leaving("os._exit(1)", 8), "os._exit(1) called at line 8"),
        (CELL, State(line=3), Leaving("os._exit(1)", None), "os._exit(1) called at line 3"),
        (CELL, State(), Leaving("exit()", None), "exit() called"),
    ],
    ids=["idle", "line unknown", "no source", "left", "left from code elsewhere", "left, line unknown"],
)
def test_the_cause_of_a_death(
    monitor: Monitor, cell: int | None, report: State, leaving: Leaving | None, cause: str
) -> None:
    rank = monitor.ranks[0]
    rank.cell, rank.report = cell, report
    if leaving is not None:
        monitor.receive("rank-0", leaving, ())
    monitor.died(0, "exited with code 1")
    assert rank.dead == cause


def test_ranks_that_end_with_their_world_are_not_reported(monitor: Monitor) -> None:
    monitor.state = "down"
    monitor.died(0, "killed by SIGTERM")
    assert monitor.ranks[0].dead is None and monitor.state == "down"


def test_a_death_while_the_world_starts_leaves_it_starting(monitor: Monitor) -> None:
    monitor.state = "starting"
    monitor.died(0, "exited with code 1")
    assert monitor.state == "starting" and monitor.ranks[0].dead


def test_cells_of_the_notebook_before_are_adopted(monitor: Monitor) -> None:
    monitor.put(known(2))
    monitor.adopting = True
    monitor.receive("rank-0", Hello("secret", 0, 40, "localhost", True, CELL, open=True), ())
    monitor.receive("rank-1", Hello("secret", 1, 41, "localhost", True, CELL, open=True), ())
    monitor.receive("rank-0", put_out("kept\n", 1), ())
    monitor.receive("rank-1", done(), ())
    assert monitor.busy([0, 1]) == [monitor.ranks[0]]
    cells = monitor.adopted()
    assert not monitor.adopting and list(cells) == [CELL]
    ranks, updates = cells[CELL]
    assert ranks == [0, 1], "also the one that is done with it"
    assert [(rank, type(event)) for rank, event in came(updates)] == [(0, Output), (1, Done)]


def test_a_cell_that_was_acknowledged_is_not_adopted(monitor: Monitor) -> None:
    monitor.adopting = True
    monitor.receive("rank-0", HELLO, ())
    assert monitor.adopted() == {} and not monitor.busy([0, 1])


@pytest.mark.parametrize("end", ["disconnected", "dead"])
def test_whoever_waits_looks_again_at_every_message_and_end(monitor: Monitor, end: str) -> None:
    looks, seen = threading.Semaphore(0), queue.SimpleQueue[bool]()

    def connected() -> bool:
        looks.release()
        return not monitor.ranks[0].connected

    waiter = threading.Thread(target=lambda: seen.put(monitor.wait(connected, WITHIN)))
    waiter.start()
    assert looks.acquire(timeout=WITHIN)
    monitor.receive("rank-1", Ready(Memory()), ())
    assert looks.acquire(timeout=WITHIN), "at a message that changes nothing it waits for"
    if end == "dead":
        monitor.died(0, "killed by SIGKILL")
    else:
        monitor.disconnected("rank-0")
    assert seen.get(timeout=WITHIN / 2)
    waiter.join(WITHIN)
    assert not monitor.wait(lambda: False, 0)


def test_a_rank_that_enters_collectives_for_others_is_busy(monitor: Monitor) -> None:
    rank = monitor.ranks[0]
    monitor.begins_replay(rank)
    assert monitor.busy([0, 1]) == [rank]
    monitor.ends_replay(rank, None)
    assert not monitor.busy([0, 1]) and rank.entered == 0
    monitor.ends_replay(rank, 6)
    assert rank.entered == 6


def test_nothing_is_known_of_a_world_without_ranks() -> None:
    monitor = Monitor("main")
    assert monitor.snapshot().state == "starting" and monitor.snapshot().ranks == ()
    assert monitor.last_cell == 0 and not monitor.breakable and not monitor.adopting and not monitor.alive()


def test_only_a_known_rank_can_be_stopped(monitor: Monitor) -> None:
    assert not monitor.is_stopped("nobody") and not monitor.is_stopped("rank-0")


def test_the_snapshot_has_the_world_and_each_rank(monitor: Monitor) -> None:
    monitor.backend, monitor.generation, monitor.peak, monitor.links = "ring", 3, 1e9, [Link(0, 1, "loopback")]
    monitor.died(1, "killed by SIGKILL")
    now = monitor.snapshot()
    assert (now.name, now.backend, now.state, now.generation, now.peak) == ("main", "ring", "broken", 3, 1e9)
    assert [(rank.rank, rank.state, rank.cause) for rank in now.ranks] == [
        (0, "idle", None),
        (1, "dead", "killed by SIGKILL"),
    ]
    assert [view.link for view in now.links] == [Link(0, 1, "loopback")]
    assert [host.name for host in now.hosts] == ["localhost"] and "The world is broken" in now.notes[0]
