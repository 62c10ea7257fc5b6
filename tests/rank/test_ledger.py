"""The ledger: every collective the user's code asked for, numbered, with its size and the user's own line."""

from __future__ import annotations

import io
import types
from collections import deque
from typing import Any

import mlx.core as mx
import numpy
import pytest

from allranks.rank.collectives import wrap_collectives
from allranks.rank.collectives.exchanges import exchanged
from allranks.rank.collectives.ledger import Ledger
from allranks.rank.collectives.record import Record
from allranks.rank.collectives.wrap_collectives import OPERATIONS


@pytest.fixture
def distributed() -> Any:
    """Stands where ``mx.distributed`` does, so that this process keeps its own: the functions are MLX's."""
    return types.SimpleNamespace(**{name: getattr(mx.distributed, name) for name in OPERATIONS})


@pytest.fixture
def user_ns(distributed: Any) -> dict[str, Any]:
    return {"mx": mx, "distributed": distributed, "__name__": "__main__"}


@pytest.fixture
def mlx(distributed: Any) -> Any:
    """Stands where ``mlx.core`` does."""
    return types.SimpleNamespace(**{**vars(mx), "distributed": distributed})


@pytest.fixture
def ledger(mlx: Any, user_ns: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> Ledger:
    monkeypatch.setattr("allranks.rank.collectives.ledger.KEEP", 10)
    ledger = Ledger()
    wrap_collectives.install(ledger, mlx, user_ns)
    return ledger


def run(code: str, user_ns: dict[str, Any]) -> None:
    exec(compile(code, "<cell>", "exec"), user_ns)


def last(ledger: Ledger) -> Record:
    record = ledger.last()
    assert record is not None
    return record


def test_nothing_is_recorded_before_the_first_collective(ledger: Ledger) -> None:
    assert ledger.last() is None and ledger.seq == 0


def test_a_collective_is_recorded_with_its_size_and_line(ledger: Ledger, user_ns: dict[str, Any]) -> None:
    run("x = mx.ones((10, 5), mx.float16)\n\ny = distributed.all_sum(x)", user_ns)
    assert last(ledger) == Record(1, "all_sum", (10, 5), "float16", 100, "<cell>", 3, entered=1)
    assert user_ns["y"].tolist() == [[1.0] * 5] * 10


@pytest.mark.parametrize("op", ["all_sum", "all_max", "all_min", "all_gather", "sum_scatter"])
def test_every_operation_is_recorded_by_its_name(op: str, ledger: Ledger, user_ns: dict[str, Any]) -> None:
    run(f"distributed.{op}(mx.ones(4))", user_ns)
    assert last(ledger)[:5] == (1, op, (4,), "float32", 16)


def test_the_line_is_the_users_also_where_a_library_makes_the_call(ledger: Ledger, user_ns: dict[str, Any]) -> None:
    library: dict[str, Any] = {"distributed": user_ns["distributed"]}
    exec(compile("\n\n\n\ndef average(x):\n    return distributed.all_sum(x) / 2", "<library>", "exec"), library)
    run("average = None", user_ns)
    user_ns["average"] = library["average"]
    run("x = mx.ones(3)\naverage(x)", user_ns)
    assert (last(ledger).file, last(ledger).line) == ("<cell>", 2)


def test_a_pending_array_is_not_evaluated_by_being_recorded(ledger: Ledger, user_ns: dict[str, Any]) -> None:
    run("x = mx.ones((2, 2)) + 1\ny = distributed.all_sum(x)", user_ns)
    assert last(ledger)[:5] == (1, "all_sum", (2, 2), "float32", 16)
    drawing = io.StringIO()
    mx.export_to_dot(drawing, user_ns["x"])
    assert "Add" in drawing.getvalue(), "it is still to be computed"


@pytest.mark.parametrize(
    ("value", "shape", "dtype"),
    [
        ("3", (), "int32"),
        ("1 << 40", (), "int64"),
        ("True", (), "bool"),
        ("2.5", (), "float32"),
        ("1j", (), "complex64"),
        ("numpy.int8(3)", (), "int8"),
        ("numpy.float64(3)", (), "float32"),
        ("numpy.ones((2, 3))", (2, 3), "float32"),
        ("numpy.arange(4, dtype='uint16')", (4,), "uint16"),
    ],
)
@pytest.mark.parametrize("op", ["all_sum", "all_max", "all_gather"])
def test_what_is_no_array_is_recorded_as_the_array_that_mlx_makes_of_it(
    op: str, value: str, shape: tuple[int, ...], dtype: str, ledger: Ledger, user_ns: dict[str, Any]
) -> None:
    user_ns["numpy"] = numpy
    run(f"distributed.{op}({value})\ndistributed.{op}(x={value})", user_ns)
    assert [(each.op, each.shape, each.dtype) for each in ledger.shared_since(0)] == [(op, shape, dtype)] * 2


def test_what_mlx_refuses_raises_as_it_would_without_the_ledger(ledger: Ledger, user_ns: dict[str, Any]) -> None:
    for function in (mx.distributed.all_sum, user_ns["distributed"].all_sum):
        user_ns["function"] = function
        for value in ("'text'", "[1, 2]"):
            with pytest.raises(ValueError, match="Invalid type"):
                run(f"function({value})", user_ns)
    with pytest.raises(ValueError, match="ingleton"):
        run("distributed.send(mx.ones(1), 0)", user_ns)
    assert ledger.last() is None, "no rank was asked to take part"


def test_numbers_go_on_when_old_records_are_dropped(ledger: Ledger, user_ns: dict[str, Any]) -> None:
    run("for i in range(25):\n    distributed.all_sum(mx.ones(i + 1))", user_ns)
    assert ledger.seq == 25
    assert last(ledger)[:3] == (25, "all_sum", (25,))
    assert [record.number for record in ledger.shared_since(0)] == list(range(16, 26))


def test_installing_twice_counts_once(ledger: Ledger, mlx: Any, user_ns: dict[str, Any]) -> None:
    wrap_collectives.install(ledger, mlx, user_ns)
    run("distributed.all_sum(mx.ones(1))", user_ns)
    assert ledger.seq == 1


def test_the_functions_keep_their_names_and_help(ledger: Ledger, distributed: Any) -> None:
    for name in OPERATIONS:
        assert getattr(distributed, name).__name__ == name
        assert getattr(distributed, name).__doc__ == getattr(mx.distributed, name).__doc__


def test_inside_mx_compile_a_call_is_seen_when_it_is_traced(ledger: Ledger, user_ns: dict[str, Any]) -> None:
    run(
        "step = mx.compile(lambda x: distributed.all_sum(x) + 1)\nfor _ in range(3):\n    y = step(mx.ones(2))", user_ns
    )
    assert ledger.seq == 1
    assert user_ns["y"].tolist() == [2.0, 2.0]


def test_in_flight_is_what_was_asked_for_since_mx_eval_returned(
    ledger: Ledger, mlx: Any, user_ns: dict[str, Any]
) -> None:
    ledger.begin_cell(guard=None, ordered=False, watch_order=True)
    run("a = distributed.all_sum(mx.ones(3))", user_ns)
    mlx.eval(user_ns["a"])
    assert ledger.in_flight() == []
    run("b = distributed.all_max(mx.ones(3))", user_ns)
    assert [(each.seq, each.op) for each in ledger.in_flight()] == [(2, "all_max")]


def test_a_refusal_for_one_cell_ends_with_it(ledger: Ledger, user_ns: dict[str, Any]) -> None:
    ledger.refuse_in_cell("aborted")
    with pytest.raises(RuntimeError, match="aborted"):
        run("distributed.all_sum(mx.ones(3))", user_ns)
    ledger.begin_cell(guard=None, ordered=False)
    run("distributed.all_sum(mx.ones(3))", user_ns)
    ledger.refuse = "the world is broken"
    ledger.refuse_in_cell("aborted")
    ledger.begin_cell(guard=None, ordered=False)
    assert ledger.refuse == "the world is broken", "that ends with the world only"


def test_mx_eval_raises_where_it_returns_if_its_collective_was_aborted(
    ledger: Ledger, mlx: Any, user_ns: dict[str, Any]
) -> None:
    run("a = distributed.all_sum(mx.ones(3))", user_ns)
    ledger.aborted.note(last(ledger), ledger.in_flight(), None)
    with pytest.raises(RuntimeError, match=r"all_sum #1 .*was aborted"):
        mlx.eval(user_ns["a"])
    mlx.eval(user_ns["a"])
    assert ledger.aborted.sentence, "the cell has failed all the same"


def test_numbers_of_one_world_stay_when_the_next_counts_from_elsewhere(ledger: Ledger, user_ns: dict[str, Any]) -> None:
    run("for i in range(2):\n    distributed.all_sum(mx.ones(i + 1))", user_ns)
    ledger.enter_world(7, 1)
    run("distributed.all_max(mx.ones(3))", user_ns)
    assert [(call.entered, call.kind.op) for call in ledger.calls(0)] == [
        (1, "all_sum"),
        (2, "all_sum"),
        (8, "all_max"),
    ]
    assert [record.number for record in ledger.shared_since(1)] == [2, 8]
    assert ledger.calls(0)[-1].seq == ledger.seq


def test_calls_of_a_line_that_are_alike_share_what_is_kept_of_them(ledger: Ledger, user_ns: dict[str, Any]) -> None:
    run("for dtype in [mx.float32, mx.int32] * 3:\n    distributed.all_sum(mx.ones(3, dtype))", user_ns)
    assert [record.dtype for record in ledger.shared_since(0)] == ["float32", "int32"] * 3
    run("for i in range(6):\n    distributed.all_sum(mx.ones(3))", user_ns)
    assert len({id(call.kind) for call in ledger.calls(6)}) == 1


@pytest.mark.parametrize(
    "arguments", ["", "x=mx.ones(1), y=1", "mx.ones(1), 2", "mx.ones(1), group='x'", "'x', stream=3"]
)
def test_wrong_arguments_raise_what_mlx_raises(arguments: str, ledger: Ledger, user_ns: dict[str, Any]) -> None:
    raised = []
    for function in (mx.distributed.all_sum, user_ns["distributed"].all_sum):
        user_ns["function"] = function
        with pytest.raises((TypeError, ValueError)) as error:
            run(f"function({arguments})", user_ns)
        raised.append((error.type, str(error.value)))
    assert raised[0] == raised[1]
    assert ledger.last() is None


class Unread(deque[Any]):
    def __iter__(self) -> Any:
        raise AssertionError("all earlier calls were looked at")


def test_the_end_of_a_cell_without_collectives_does_not_look_at_earlier_ones(
    ledger: Ledger, user_ns: dict[str, Any]
) -> None:
    run("for _ in range(5):\n    mx.eval(distributed.all_sum(mx.ones(3)))", user_ns)
    number = ledger.number
    ledger.begin_cell(guard=None, ordered=False)
    expected = ledger.fingerprint(number), ledger.settled(), exchanged(ledger), ledger.calls(ledger.seq)
    ledger.kinds = Unread(ledger.kinds)
    assert (ledger.fingerprint(number), ledger.settled(), exchanged(ledger), ledger.calls(ledger.seq)) == expected
    assert expected == ((0, 0), number, (), [])
