"""Marks and the record of a cell on a rank: spans nest, nothing is kept unasked, and memory is bounded."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from allranks.rank import trace
from allranks.rank.trace import TRACE, mark


@pytest.fixture
def recorded() -> Iterator[trace.Trace]:
    TRACE.begin(7)
    yield TRACE
    TRACE.end()


def marks() -> list[list[Any]]:
    told = TRACE.told(7, None)
    assert told is not None
    found: list[list[Any]] = told["marks"]
    return found


def test_spans_nest_and_moments_stand_alone(recorded: trace.Trace) -> None:
    with mark("outer"):
        mark("moment")
        with mark("inner"):
            pass
    outer, moment, inner = marks()
    assert [each[0] for each in (outer, moment, inner)] == ["outer", "moment", "inner"]
    assert moment[3] is None
    assert outer[2] <= inner[2] <= inner[3] <= outer[3]


def test_a_mark_can_be_entered_again(recorded: trace.Trace) -> None:
    step = mark("step")
    for _ in range(3):
        with step, step:
            pass
    assert len(marks()) == 6 and all(each[3] >= each[2] for each in marks())


def test_a_span_ends_where_its_block_raises(recorded: trace.Trace) -> None:
    with contextlib.suppress(ValueError), mark("step"):
        raise ValueError
    [step] = marks()
    assert step[3] >= step[2]


def test_marks_of_other_threads_name_them(recorded: trace.Trace) -> None:
    loader = threading.Thread(target=lambda: mark("loaded"), name="loader")
    loader.start()
    loader.join()
    assert [each[:2] for each in marks()] == [["loaded", "loader"]]


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


def test_a_name_is_text(recorded: trace.Trace) -> None:
    with pytest.raises(TypeError, match=r'text, as in mark\("forward"\), not int'):
        mark(3)  # type: ignore[arg-type]


def test_only_the_recorded_cell_is_told(recorded: trace.Trace) -> None:
    assert TRACE.told(8, None) is None


def test_a_record_is_cheap(recorded: trace.Trace) -> None:
    """Ten microseconds is far above what it takes (docs/timeline.md), and far below a collective over a network."""
    before = time.perf_counter()
    for number in range(5000):
        TRACE.collective((number, "all_sum", (3,), None, (None, 0), True), before, before)
    assert (time.perf_counter() - before) / 5000 < 1e-5
