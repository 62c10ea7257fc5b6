"""Marks and the record of a cell on a rank: spans nest, nothing is kept unasked, and memory is bounded."""

from __future__ import annotations

import contextlib
import gc
import json
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from allranks.messages.requests import TracedMark
from allranks.rank.collectives import trace
from allranks.rank.collectives.record import NOWHERE, Kind, LedgerCall
from allranks.rank.collectives.trace import TRACE, mark


@pytest.fixture
def recorded() -> Iterator[trace.Trace]:
    TRACE.begin(7)
    yield TRACE
    TRACE.end()


def marks() -> list[TracedMark]:
    found = TRACE.of_cell(7, None)
    assert found is not None
    return found.marks


def test_spans_nest_and_moments_stand_alone(recorded: trace.Trace) -> None:
    with mark("outer"):
        mark("moment")
        with mark("inner"):
            pass
    outer, moment, inner = marks()
    assert [each.name for each in (outer, moment, inner)] == ["outer", "moment", "inner"]
    assert moment.ended is None
    assert outer.ended and inner.ended
    assert outer.began <= inner.began <= inner.ended <= outer.ended


def test_a_mark_can_be_entered_again(recorded: trace.Trace) -> None:
    step = mark("step")
    for _ in range(3):
        with step, step:
            pass
    assert len(marks()) == 6 and all((each.ended or 0) >= each.began for each in marks())


def test_a_span_ends_where_its_block_raises(recorded: trace.Trace) -> None:
    with contextlib.suppress(ValueError), mark("step"):
        raise ValueError
    [step] = marks()
    assert (step.ended or 0) >= step.began


def test_marks_of_other_threads_name_them(recorded: trace.Trace) -> None:
    loader = threading.Thread(target=lambda: mark("loaded"), name="loader")
    loader.start()
    loader.join()
    assert [(each.name, each.thread) for each in marks()] == [("loaded", "loader")]


def test_nothing_is_kept_where_nothing_is_recorded() -> None:
    TRACE.begin(7)
    TRACE.end()
    with mark("step"):
        mark("moment")
    assert marks() == [] and TRACE.dropped == 0


def test_what_does_not_fit_is_counted(recorded: trace.Trace) -> None:
    for _ in range(trace.LIMIT + 5):
        mark("x")
    assert (len(marks()), TRACE.dropped) == (trace.LIMIT, 5)


def test_marks_and_evaluations_leave_room_for_all_collectives(recorded: trace.Trace) -> None:
    for _ in range(trace.LIMIT):
        mark("x")
        recorded.evaluation(0.0)
    call = LedgerCall(1, 1, Kind("all_sum", (3,), None, NOWHERE))
    assert recorded.collective(call, 0.0) is not None and TRACE.dropped == 0
    for _ in range(trace.LIMIT):
        recorded.collective(call, 0.0)
    assert (len(recorded.collectives), TRACE.dropped) == (trace.LIMIT, 1)


def test_a_name_is_text(recorded: trace.Trace) -> None:
    with pytest.raises(TypeError, match=r'must be a string, as in mark\("forward"\), not int'):
        mark(3)  # type: ignore[arg-type]


def test_only_the_recorded_cell_is_told(recorded: trace.Trace) -> None:
    assert TRACE.of_cell(8, None) is None


def test_a_record_is_cheap(recorded: trace.Trace) -> None:
    """No more than writing it as JSON: microseconds (docs/timeline.md), far below a collective over a network."""

    def seconds(work: Callable[[Any], object]) -> float:
        kind = Kind("all_sum", (3,), None, NOWHERE)
        calls = [LedgerCall(number, number, kind) for number in range(5000)]
        gc.collect()  # of what other tests left
        before = time.thread_time()
        for call in calls:
            work(call)
        return time.thread_time() - before

    ours, plain = (
        min(seconds(work) for _ in range(5)) for work in (lambda entry: TRACE.collective(entry, 1.0, 2.0), json.dumps)
    )
    assert ours < 2 * plain
