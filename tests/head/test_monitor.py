"""What the monitor makes of the messages of ranks."""

from __future__ import annotations

import pytest

from allranks.head.state.known_rank import Rank
from allranks.head.state.monitor import Monitor
from allranks.messages.events import (
    AtDebugger,
    Began,
    Bundle,
    CellError,
    CommMessages,
    Done,
    Entering,
    Hello,
    LogCall,
    LogCalls,
    Memory,
    Ready,
    State,
    Text,
    Timed,
    Unblocked,
)
from allranks.messages.requests import Acknowledge, Request
from allranks.messages.wire import NotUnderstood
from tests.head.whole_world import (
    BOOM,
    CELL,
    ENTRY,
    HELLO,
    Comms,
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


def test_a_process_in_place_of_another_is_the_one_that_is_listened_to(monitor: Monitor) -> None:
    new = Rank(1, "localhost", "another")
    monitor.put(new)
    assert monitor.ranks[1] is new and len(monitor.ranks) == 2
    assert ended_comms(monitor) == ["rank-1"]
    monitor.receive("rank-1", Ready(Memory()), ())
    assert not new.ready
    monitor.receive("another", Ready(Memory(rss=5)), ())
    assert new.ready and new.report.memory == Memory(rss=5)


def test_ranks_beyond_a_size_are_forgotten(monitor: Monitor) -> None:
    gone = monitor.ranks[1]
    monitor.truncate(1)
    monitor.receive("rank-1", State(entered=3), ())
    assert [rank.rank for rank in monitor.ranks] == [0] and gone.entered == 0 and not gone.received_at
    assert ended_comms(monitor) == ["rank-1"]


def test_a_greeting_connects_and_does_not_take_readiness_back(monitor: Monitor) -> None:
    rank = monitor.ranks[0]
    monitor.disconnected("rank-0")
    assert not rank.connected and rank.dead is None and monitor.state == "whole"
    monitor.receive("rank-0", HELLO, ())
    assert rank.connected and rank.ready and rank.pid == 40 and rank.cell is None
    new = Rank(1, "localhost", "another")
    monitor.put(new)
    monitor.receive("another", Hello("secret", 1, 41, "localhost", ready=True, cell=2, open=True), ())
    assert new.ready and new.cell is None, "a cell that is open is followed only by who adopts"
    assert monitor.last_cell == CELL, "the highest that any rank has seen"


def test_the_end_of_an_unknown_connection_is_nothing(monitor: Monitor) -> None:
    monitor.disconnected("nobody")
    assert all(rank.connected for rank in monitor.ranks)


def test_ranks_of_a_cell_are_busy_and_begin_afresh(monitor: Monitor) -> None:
    rank = known(1, failed="ValueError", seen=9)
    rank.report = State(line=3, source="f()", waiting=True, entered=2, cell=CELL)
    monitor.put(rank)
    monitor.listen(CELL, [1])
    assert monitor.busy([0, 1]) == [rank] and rank.state == "running"
    assert (rank.seen, rank.failed, rank.report.line, rank.report.source, rank.report.entered) == (
        0,
        None,
        None,
        None,
        2,
    )
    assert monitor.ranks[0].state == "idle"


def test_where_a_rank_stands_is_shown_and_its_time_runs_while_it_stays_there(monitor: Monitor) -> None:
    updates, rank = monitor.listen(CELL, [0]), monitor.ranks[0]
    running, waiting = State(True, CELL, 4, 3), State(True, CELL, 4, 3, waiting=True, collective=ENTRY)
    rank.since = 1.0
    monitor.receive("rank-0", running, ())
    assert rank.since == 1.0 and rank.entered == 4
    monitor.receive("rank-0", waiting, ())
    since = rank.since
    assert since > 1.0 and monitor.snapshot().ranks[0].doing == "blocked in all_sum #4 f32[10] (line 3)"
    monitor.receive("rank-0", waiting, ())
    assert rank.since == since
    assert came(updates) == [(0, waiting), (0, waiting)]
    assert len(monitor.history.samples()) == 1, "one in half a second"


def test_a_report_of_another_cell_reaches_no_listener(monitor: Monitor) -> None:
    updates = monitor.listen(CELL, [0])
    monitor.receive("rank-0", State(cell=CELL - 1), ())
    monitor.receive("rank-0", Began(CELL - 1), ())
    monitor.unlisten(CELL)
    monitor.unlisten(CELL)
    monitor.receive("rank-0", Began(CELL), ())
    assert came(updates) == []


def test_output_that_comes_again_after_a_reconnect_is_dropped(monitor: Monitor) -> None:
    updates = monitor.listen(CELL, [0])
    for event in (put_out("a", 1), put_out("b", 2), put_out("a", 1), put_out("b", 2), put_out("c", 4)):
        monitor.receive("rank-0", event, ())
    monitor.receive("rank-0", put_out("old", 9, CELL - 1), ())
    monitor.receive("rank-1", put_out("not asked", 1), ())
    items = [updates.get_nowait() for _ in range(3)]
    assert [update.items for update in items if update] == [[("text", "stdout", [text])] for text in "abc"]
    assert not came(updates)


def test_the_end_of_a_cell_frees_the_rank_and_is_acknowledged(monitor: Monitor) -> None:
    updates, rank, told = monitor.listen(CELL, [0, 1]), monitor.ranks[0], list[tuple[str, Request]]()
    monitor._tell = lambda uuid, request: told.append((uuid, request))
    rank.debugger = AtDebugger(CELL, open=True, stepping=False, text="")
    rank.report = State(running=True, cell=CELL, waiting=True)
    monitor.receive("rank-0", done(error=BOOM, ok=False, entered=5), [b"value"])
    update = updates.get_nowait()
    assert update is not None and isinstance(update.event, Done) and update.buffers == [b"value"]
    assert told == [("rank-0", Acknowledge(CELL))] and not came(updates)
    assert rank.cell is None and rank.past == {CELL} and rank.entered == 5 and rank.failed == "ValueError"
    assert rank.debugger is None and not rank.report.running and not rank.report.waiting
    assert monitor.busy([0, 1]) == [monitor.ranks[1]] and rank.state == "failed"
    monitor.receive("rank-0", done(error=BOOM, ok=False, entered=5), ())
    assert not came(updates)


def test_a_rank_whose_cell_was_interrupted_is_idle_which_is_said_until_the_next_cell(monitor: Monitor) -> None:
    monitor.listen(CELL, [0, 1])
    monitor.interrupted |= {(0, CELL), (1, CELL)}
    stopped = CellError("KeyboardInterrupt", "", [], 3)
    for uuid in ("rank-0", "rank-1"):
        monitor.receive(uuid, done(error=stopped, ok=False), ())
    assert [view.doing for view in monitor.snapshot().ranks] == ["idle (last cell interrupted)"] * 2
    assert [rank.failed for rank in monitor.ranks] == [None, None]
    monitor.listen(CELL + 1, [0])
    assert [view.doing for view in monitor.snapshot().ranks] == ["running", "idle"]


def test_a_keyboard_interrupt_that_no_stop_has_caused_is_a_failure(monitor: Monitor) -> None:
    monitor.listen(CELL, [0])
    monitor.receive("rank-0", done(error=CellError("KeyboardInterrupt", "", [], 3), ok=False), ())
    assert monitor.snapshot().ranks[0].state == "failed"


def test_an_error_that_follows_an_aborted_collective_is_no_failure_of_the_rank(monitor: Monitor) -> None:
    """As in the result of the cell."""
    monitor.listen(CELL, [0])
    monitor.receive("rank-0", Unblocked(CELL, ENTRY, True), ())
    monitor.receive("rank-0", done(error=BOOM, ok=False), ())
    assert monitor.ranks[0].state == "unblocked"


def test_times_count_once_all_ranks_of_the_cell_have_ended(monitor: Monitor) -> None:
    monitor.put(known(2))
    monitor.listen(CELL, [0, 1])
    monitor.receive("rank-0", done(timed=(Timed("all_sum", 4, 0.5),)), ())
    assert monitor.snapshot().straggler is None
    monitor.receive("rank-1", done(timed=(Timed("all_sum", 4, 0.1),)), ())
    assert "rank 1 was last in 1 of 1" in (monitor.snapshot().straggler or "")
    assert monitor.snapshot().straggler_rank == 1
    monitor.put(Rank(1, "localhost", "another"))
    assert monitor.snapshot().straggler_rank is None, "nobody has waited for the new process"


def test_what_is_known_of_a_rank_is_forgotten_with_it() -> None:
    forgotten: list[str] = []
    monitor = Monitor("main", forget=forgotten.append)
    for number in range(3):
        monitor.put(Rank(number, "localhost", f"rank-{number}"))
    monitor.listen(CELL, [0, 1])
    monitor.receive("rank-0", done(timed=(Timed("all_sum", 4, 0.5),)), ())
    monitor.receive("rank-1", done(timed=(Timed("all_sum", 4, 0.1),)), ())
    assert monitor.snapshot().straggler_rank == 1
    monitor.put(Rank(2, "localhost", "another"))
    assert forgotten == ["rank-2"] and monitor.snapshot().straggler_rank == 1
    monitor.truncate(1)
    assert forgotten == ["rank-2", "rank-1", "another"] and monitor.snapshot().straggler_rank is None


def test_what_was_printed_between_cells_is_kept_for_who_shows_it(monitor: Monitor) -> None:
    updates, began = monitor.listen(CELL, [0]), Began(CELL, (Text("stderr", ["late\n"]),))
    monitor.receive("rank-0", began, ())
    assert monitor.ranks[0].late == [("text", "stderr", ["late\n"])] and came(updates) == [(0, began)]


@pytest.mark.parametrize(("broke", "state"), [(True, "broken"), (False, "whole")])
def test_an_unblocked_rank_breaks_the_world_only_where_it_says_so(monitor: Monitor, broke: bool, state: str) -> None:
    updates, unblocked = monitor.listen(CELL, [0]), Unblocked(CELL, ENTRY, broke)
    monitor.receive("rank-0", unblocked, ())
    assert monitor.state == state and came(updates) == [(0, unblocked)]


def test_who_waits_at_the_barrier_is_passed_on_with_its_rank(monitor: Monitor) -> None:
    updates, entering = monitor.listen(CELL, [0, 1]), Entering(CELL, ENTRY)
    monitor.receive("rank-1", entering, ())
    assert came(updates) == [(1, entering)]


def test_a_rank_in_its_debugger_is_busy_also_after_its_cell(monitor: Monitor) -> None:
    rank = monitor.ranks[0]
    for open_, stepping, busy in ((True, False, True), (False, True, False), (False, False, False)):
        rank.since = 1.0
        monitor.receive("rank-0", AtDebugger(None, open_, stepping, ""), ())
        assert bool(monitor.busy([0])) == busy and rank.since > 1.0
        assert (rank.debugger is not None) == (open_ or stepping)
    updates = monitor.listen(CELL, [0])
    monitor.receive("rank-0", AtDebugger(CELL, True, False, "> f()", line=4), ())
    assert rank.state == "debugging" and len(came(updates)) == 1


def test_logged_figures_and_widgets_go_to_who_keeps_them(monitor: Monitor) -> None:
    monitor.receive("rank-1", LogCalls(0, (LogCall(CELL, 3.0, 10.0, {"loss": 0.5}),)), ())
    _, rows = monitor.logged.since(0)
    assert [(row.rank, row.name, row.value) for row in rows] == [(1, "loss", 0.5)]
    monitor.died(0, "killed by SIGKILL")
    monitor.receive("rank-1", CommMessages(1, ()), ())
    assert isinstance(monitor.comms, Comms) and monitor.comms.taken == [("rank-1", 1)], "one rank is alive"


def test_the_last_output_comes_with_the_end(monitor: Monitor) -> None:
    updates = monitor.listen(CELL, [0])
    monitor.receive("rank-0", done(output=(Text("stdout", ["a\n", "b\n"]),)), ())
    update = updates.get_nowait()
    assert update is not None and update.items == [("text", "stdout", ["a\n", "b\n"])] and not came(updates)


def test_a_cell_ends_though_its_last_output_is_not_understood(monitor: Monitor) -> None:
    updates = monitor.listen(CELL, [0])
    with pytest.raises(NotUnderstood):
        monitor.receive("rank-0", done(output=(Bundle("result", b"no JSON"),)), ())
    assert [type(event) for _, event in came(updates)] == [Done] and monitor.ranks[0].cell is None


def test_an_end_that_comes_again_is_acknowledged_again(monitor: Monitor) -> None:
    """The rank sends it again after a reconnect, and would for ever: the acknowledgement was lost."""
    told: list[tuple[str, Request]] = []
    monitor._tell = lambda uuid, request: told.append((uuid, request))
    updates = monitor.listen(CELL, [0])
    monitor.receive("rank-0", done(), ())
    monitor.receive("rank-0", done(), ())
    assert told == [("rank-0", Acknowledge(CELL))] * 2
    assert len(came(updates)) == 1


def test_a_host_has_one_name_in_tables_notes_and_errors() -> None:
    monitor = Monitor("test")
    for number in range(2):
        monitor.put(Rank(number, f"ada@mac{number}:22", f"uuid{number}"))
    monitor.shown = {"ada@mac1:22": "mac1"}
    monitor.host_away("ada@mac1:22", away=True)
    assert [rank.host for rank in monitor.snapshot().ranks] == ["ada@mac0:22", "mac1"]
    assert monitor.label([1]) == "rank 1 on mac1"
    assert [note.partition(" is out of reach")[0] for note in monitor.snapshot().notes] == ["mac1"]
