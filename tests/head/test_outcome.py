"""What a cell makes of the events of its ranks, in whatever order they come."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import permutations
from typing import Any

import pytest

from allranks.head.cell.absent import Ended
from allranks.head.cell.outcome import Outcome
from allranks.head.cell.stall import Finding
from allranks.head.state.cell_updates import CellUpdate, Died
from allranks.messages.events import Began, CellError, Cut, Done, Item, LedgerEntry, Output, Unblocked

CELL = 7
ENTRY = LedgerEntry(4, "all_sum", (10,), "float32", 40, 3, True)
SUM = "all_sum #4 f32[10] (line 3)"
BOOM = CellError("ValueError", "boom", ["Traceback", "ValueError: boom"], 3)
LOST = CellError("RuntimeError", "the connection to a peer was lost", [], 3, collective=ENTRY, aborted=True)
NOISE = "[ring] Socket 5 was closed by the peer\n[ring] Too many send/recv errors. Aborting...\n"


class Sink:
    """Writes down what is shown, and which ranks have finished."""

    def __init__(self) -> None:
        self.fed: list[tuple[int, Item]] = []
        self.finished: list[int] = []

    def feed(self, rank: int, items: Iterable[Item], now: float) -> None:
        assert now > 0
        self.fed += [(rank, item) for item in items]

    def finish(self, rank: int) -> None:
        self.finished.append(rank)


class Cell(Outcome):
    """An outcome of ranks 0 to 2, and what of it was shown."""

    def __init__(self) -> None:
        self.sink = Sink()
        super().__init__(range(3), self.sink)

    def receive(self, rank: int, *events: Any) -> None:
        for event in events:
            self.take(CellUpdate(rank, event))

    def put_out(self, rank: int, *items: Item, live: Any = None) -> None:
        self.take(CellUpdate(rank, Output(CELL, (), live), items=items))


@pytest.fixture
def cell() -> Cell:
    return Cell()


def done(error: CellError | None = None, **fields: Any) -> Done:
    base: dict[str, Any] = {"ok": error is None, "lines": 0, "nbytes": 0, "cut": Cut(0, 0), "entered": 4}
    return Done(cell=CELL, error=error, **{**base, "shared": (0, 0), **fields})


def test_a_cell_is_open_until_each_rank_is_done_or_dead(cell: Cell) -> None:
    assert cell.open == {0, 1, 2} and cell.ended_how() == {} and cell.since_failure is None
    cell.receive(1, done(settled=4))
    cell.receive(2, Died("killed by SIGKILL"))
    assert cell.open == {0} and cell.sink.finished == [1, 2]
    assert cell.ended_how() == {
        1: Ended("finished the cell", False, settled=4),
        2: Ended("died: killed by SIGKILL", True, True),
    }
    cell.receive(0, done(BOOM))
    assert not cell.open and cell.ended_how()[0] == Ended("raised ValueError: boom (line 3)", True)


def test_what_a_rank_reports_with_its_end_is_in_its_result(cell: Cell) -> None:
    end = done(BOOM, lines=5, nbytes=60, cut=Cut(2, 30), settled=3, no_value="it is too large")
    cell.take(CellUpdate(0, end, [b"packed"]))
    result = cell.results[0]
    assert not result.ok and (result.lines, result.nbytes, result.settled) == (5, 60, 3)
    assert result.cut == {"lines": 2, "bytes": 30} and result.error is not None
    assert (result.error.ename, result.error.traceback) == ("ValueError", "Traceback\nValueError: boom")
    assert (result._packed, result._no_value) == ([b"packed"], "it is too large")
    cell.receive(1, done())
    assert cell.results[1].ok and cell.results[1].error is None


def test_text_is_kept_by_stream_and_all_is_shown_in_order(cell: Cell) -> None:
    items: list[Item] = [("text", "stdout", "a\n"), ("display", {}), ("text", "stderr", "b\n"), ("text", "stdout", "c")]
    cell.put_out(0, *items)
    assert cell.sink.fed == [(0, item) for item in items]
    assert cell.results[0]._text == {"stdout": ["a\n", "c"], "stderr": ["b\n"]}
    assert not cell.sink.finished


def test_what_mlx_writes_when_a_ring_breaks_is_left_out(cell: Cell) -> None:
    user: Item = ("text", "stderr", f"my own line\n{NOISE}")
    cell.put_out(0, ("text", "stderr", NOISE), user)
    assert cell.sink.fed == [(0, user)] and cell.results[0]._text["stderr"] == [user[2]]


def test_the_unfinished_line_of_a_rank_is_that_of_its_errors_first(cell: Cell) -> None:
    cell.put_out(0, live={"stdout": "epoch 1", "stderr": "50 %"})
    cell.put_out(1, live={"stdout": "epoch 1"})
    cell.put_out(1)
    assert cell.live_lines() == {0: "50 %", 1: "epoch 1"}
    cell.put_out(0, live={})
    assert cell.live_lines() == {1: "epoch 1"}, "and no line where there is none"
    cell.receive(1, done())
    assert cell.live_lines() == {}


def test_what_was_printed_between_cells_is_marked(cell: Cell) -> None:
    cell.take_late(1, [("text", "stdout", "late\n")])
    assert cell.sink.fed == [
        (1, ("text", "stderr", "printed after the previous cell:\n")),
        (1, ("text", "stdout", "late\n")),
    ]


def test_the_time_runs_from_the_first_failure(cell: Cell) -> None:
    cell.receive(0, done())
    assert cell.since_failure is None
    cell.receive(1, done(BOOM))
    first = cell._failed_at
    assert first is not None and cell.since_failure is not None and 60 > cell.since_failure >= 0
    cell.receive(2, Died("killed by SIGKILL"))
    assert cell._failed_at == first


def test_a_death_is_shown_where_the_output_ended(cell: Cell) -> None:
    cell.put_out(0, ("text", "stdout", "a\n"))
    assert not cell.somebody_died
    cell.receive(0, Died("killed by SIGKILL"))
    assert cell.sink.fed[-1] == (0, ("text", "stderr", "died: killed by SIGKILL\n"))
    assert cell.somebody_died and not cell.somebody_was_freed and not cell.results[0].ok


@pytest.mark.parametrize(("broke", "entry", "named"), [(True, ENTRY, SUM), (False, None, "a collective")])
def test_what_an_unblocked_rank_swallowed_is_no_result(cell: Cell, broke: bool, entry: Any, named: str) -> None:
    cell.receive(0, Unblocked(CELL, entry, broke))
    assert cell.results[0].unblocked == named and cell.somebody_was_freed and cell.broken == broke
    cell.receive(0, done(settled=4))
    assert not cell.results[0].ok and cell.results[0].error is None
    assert cell.ended_how() == {0: Ended("was unblocked", False, came=True)}
    assert cell.since_failure is not None


def test_a_world_that_was_broken_stays_so(cell: Cell) -> None:
    cell.receive(0, Unblocked(CELL, ENTRY, True))
    cell.receive(1, Unblocked(CELL, ENTRY, False))
    assert cell.broken


@pytest.mark.parametrize(("entry", "named"), [(ENTRY, SUM), (None, "a collective")])
def test_a_neighbour_of_the_lost_is_unblocked_and_not_to_blame(cell: Cell, entry: Any, named: str) -> None:
    lost = CellError("RuntimeError", "lost", [], 3, collective=entry, aborted=True)
    cell.put_out(0, ("error", {}, lost))
    cell.receive(1, done(lost))
    for rank in (0, 1):
        assert cell.results[rank].unblocked == named
    assert cell.sink.fed == [(0, ("text", "stderr", f"unblocked from {named}\n"))], "in place of MLX's traceback"
    assert cell.ended_how() == {1: Ended("was unblocked", False, came=True)} and not cell.broken


def test_the_collective_that_was_asked_for_is_named_not_that_of_the_loss(cell: Cell) -> None:
    asked = LedgerEntry(5, "all_max", (2,), "int32", 8, None, True)
    cell.receive(0, Unblocked(CELL, asked), done(LOST))
    assert cell.results[0].unblocked == "all_max #5 i32[2]"


def test_a_rank_that_raised_of_its_own_is_shown_with_its_traceback(cell: Cell) -> None:
    raised: Item = ("error", {"ename": "ValueError"}, BOOM)
    cell.put_out(0, raised)
    cell.receive(0, done(BOOM))
    assert cell.sink.fed == [(0, raised)] and not cell.somebody_was_freed and not cell.results[0].unblocked


@pytest.mark.parametrize("order", list(permutations(range(3))))
def test_who_failed_is_the_same_in_whatever_order_ranks_end(order: tuple[int, ...]) -> None:
    cell = Cell()
    ends: dict[int, list[Any]] = {0: [Unblocked(CELL, ENTRY, True), done(LOST)], 1: [done(BOOM)], 2: [Died("killed")]}
    for rank in order:
        cell.receive(rank, *ends[rank])
    assert {rank: each.how for rank, each in cell.ended_how().items()} == {
        0: "was unblocked",
        1: "raised ValueError: boom (line 3)",
        2: "died: killed",
    }
    assert {rank for rank, each in cell.ended_how().items() if each.failed} == {1, 2}
    assert cell.broken and cell.somebody_died and cell.somebody_was_freed and not cell.open


def test_a_rank_that_died_after_it_was_unblocked_is_dead(cell: Cell) -> None:
    cell.receive(0, Unblocked(CELL, ENTRY), Died("killed"))
    assert cell.ended_how() == {0: Ended("died: killed", True, True)}


def test_other_events_change_nothing(cell: Cell) -> None:
    cell.receive(0, Began(CELL))
    assert cell.open == {0, 1, 2} and not cell.sink.fed and not cell.somebody_was_freed


def test_variables_are_named_once_for_ranks_with_the_same(cell: Cell) -> None:
    unmarked = (ENTRY, LedgerEntry(5, "all_max", (2,), "int32", 8, None, True))
    for rank in (0, 1):
        cell.receive(
            rank, Unblocked(CELL, ENTRY), done(invalid=("loss",), pending=("y", "z"), unmarked=unmarked[rank:])
        )
    cell.receive(2, done(pending=("y",)))
    last = "{} aborted and could not be set to NaN: what was computed from {} is invalid and may look right"
    assert cell.left_behind(stays=True) == [
        Finding((0,), last.format(f"{SUM}; all_max #5 i32[2] were", "them")),
        Finding((1,), last.format("all_max #5 i32[2] was", "it")),
        Finding((0, 1), "loss is invalid: its collective was aborted. Recompute it"),
        Finding((0, 1), "pending: y, z will run a collective when evaluated; evaluate them on all ranks together"),
        Finding((2,), "pending: y will run a collective when evaluated; evaluate it on all ranks together"),
    ]


def test_several_invalid_variables(cell: Cell) -> None:
    cell.receive(0, Unblocked(CELL, ENTRY), done(invalid=("x", "y")))
    (finding,) = cell.left_behind(stays=True)
    assert finding.text == "x, y are invalid: their collective was aborted. Recompute them"


def test_only_an_unblocked_rank_has_invalid_variables(cell: Cell) -> None:
    cell.receive(0, done(invalid=("of an earlier cell",), unmarked=(ENTRY,)))
    assert cell.left_behind(stays=True) == [] and cell.results[0].invalid == () and cell.results[0].unmarked == ()
