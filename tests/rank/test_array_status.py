"""Whether an array is computed is read from MLX's memory: found and proved at start, right for every kind of array."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import mlx.core as mx
import pytest

from allranks.rank.arrays import array_status
from allranks.rank.arrays.graph_drawing import drawing_of

KINDS: dict[str, Callable[[Any], Any]] = {
    "a sum": lambda x: x + 1,
    "a scalar": lambda x: x.sum(),
    "empty": lambda x: x[:0] * 2,
    "a view": lambda x: (x * 2).T,
    "a slice": lambda x: (x * 2)[1:, 0],
    "a broadcast": lambda x: mx.broadcast_to(x[0] + 1, (5, 4)),
    "one of several outputs": lambda x: mx.divmod(x, 2)[1],
    "a part": lambda x: mx.split(x + 1, 2, axis=1)[0],
    "another dtype": lambda x: x.astype(mx.bfloat16),
    "of mx.grad": mx.grad(lambda x: (x * x).sum()),
    "of mx.vmap": mx.vmap(lambda row: row * 2),
    "of mx.compile": mx.compile(lambda x: mx.sort(x)),
    "of mx.checkpoint": mx.checkpoint(lambda x: x * 3),
    "random": lambda x: mx.random.normal(x.shape),
    "a constant made": lambda x: mx.zeros((4, 4)),
}


@pytest.fixture
def reader() -> array_status.ArrayReader:
    array_status.find(mx)
    assert array_status.reader is not None, "this version of MLX keeps the status of an array elsewhere"
    return array_status.reader


@pytest.mark.parametrize("kind", KINDS)
def test_a_pending_array_and_the_same_evaluated(kind: str, reader: array_status.ArrayReader) -> None:
    array = KINDS[kind](mx.arange(8, dtype=mx.float32).reshape(2, 4) + 1)
    assert reader.is_pending(array) is True
    mx.eval(array)
    assert reader.is_pending(array) is False and reader.operation(array) == 0


def test_constants_are_computed(reader: array_status.ArrayReader) -> None:
    assert [reader.is_pending(mx.array(each)) for each in (1, 2.5, [1, 2], True)] == [False] * 4


def test_what_is_on_its_way_is_pending_no_more(reader: array_status.ArrayReader) -> None:
    array = mx.ones((300, 300)) @ mx.ones((300, 300))
    mx.async_eval(array)
    assert reader.is_pending(array) is False


def test_what_somebody_waited_for_is_there(reader: array_status.ArrayReader) -> None:
    array = mx.ones((300, 300)) @ mx.ones((300, 300))
    assert not reader.is_there(array)
    mx.async_eval(array)
    array.tolist()
    assert reader.is_there(array) and reader.is_there(mx.array(1))


def test_what_an_evaluation_computed_on_its_way(reader: array_status.ArrayReader) -> None:
    inner = mx.ones(3) + 1
    mx.eval(inner * 2)
    assert reader.is_pending(inner) is False


def test_siblings_are_computed_together(reader: array_status.ArrayReader) -> None:
    first, second = mx.divmod(mx.arange(6), 4)
    mx.eval(first)
    assert reader.is_pending(second) is False


def test_an_array_changed_in_place_is_pending_again(reader: array_status.ArrayReader) -> None:
    array = mx.ones(3) * 2
    operation = reader.operation(array)
    mx.eval(array)
    array += 1
    assert reader.is_pending(array) is True
    assert reader.operation(array) == reader.operation(mx.ones(2) + 1) != operation


def test_arrays_evaluated_inside_a_transformation(reader: array_status.ArrayReader) -> None:
    held = []

    def square(x: Any) -> Any:
        held.append(x * x)
        mx.eval(held[0])
        return held[0].sum()

    mx.grad(square)(mx.ones(3))
    assert reader.is_pending(held[0]) is False


@pytest.mark.parametrize("thing", [None, 3, "text", object, [1.5]], ids=repr)
def test_of_anything_else_nothing_is_read(thing: Any, reader: array_status.ArrayReader) -> None:
    assert reader.is_pending(thing) is None


def test_an_array_that_was_never_made_is_not_read(reader: array_status.ArrayReader) -> None:
    assert reader.is_pending(mx.array.__new__(mx.array)) is None


def test_reading_draws_and_evaluates_nothing(reader: array_status.ArrayReader, monkeypatch: pytest.MonkeyPatch) -> None:
    array = mx.ones(3) + 1

    def never(*_: Any, **__: Any) -> None:
        raise AssertionError("it was drawn, or evaluated")

    for name in ("export_to_dot", "eval"):
        monkeypatch.setattr(mx, name, never)
    assert reader.is_pending(array) and reader.is_pending(array)


def test_another_thread_reads_while_this_one_evaluates(reader: array_status.ArrayReader) -> None:
    chains = [[mx.ones(4) + number] for number in range(50)]
    for chain in chains:
        for _ in range(20):
            chain.append(chain[-1] * 2)
    seen: list[set[bool | None]] = []
    begun, over = threading.Event(), threading.Event()

    def read() -> None:
        while not over.is_set():
            seen.append({reader.is_pending(array) for chain in chains for array in chain})
            begun.set()

    thread = threading.Thread(target=read)
    thread.start()
    assert begun.wait(60)
    for chain in chains:
        mx.eval(chain[-1])
    over.set()
    thread.join()
    assert set().union(*seen) <= {True, False}
    assert not any(reader.is_pending(array) for chain in chains for array in chain)


def test_the_operation_is_found_where_the_drawing_says_whatever_else_memory_holds() -> None:
    """Uninitialized memory may hold pointers to what looks like an operation."""
    pending = array_status._pending(mx)
    drawing = drawing_of(pending)
    described = [array_status._description(array) for array in pending]
    place = array_status._operation_at(described, drawing)
    assert place is not None and place >= 8
    others = [array_status._description(array) for array in array_status._pending(mx)]  # their operations begin alike
    misled = [other[place : place + 8] + each[8:] for each, other in zip(described, others, strict=True)]
    assert array_status._operation_at(misled, drawing) == place
    assert array_status._operation_at([each[:place] for each in described], drawing) is None


def test_exactly_one_place_must_fit() -> None:
    pending, evaluated, constant = bytes(24), bytes(8) + b"\1" + bytes(15), bytes(8) + b"\2" + bytes(15)
    assert array_status._status_at([pending] * 2, [evaluated, constant], [constant]) == 8
    assert array_status._status_at([pending], [pending], [pending]) is None, "none"
    twice = bytes(8) + b"\2\0\0\0\2\0\0\0" + bytes(8)
    assert array_status._status_at([pending], [twice], [twice]) is None, "two"


@pytest.mark.parametrize("offset", [0, 184, 192, 200, 296])
def test_a_wrong_place_is_found_out(
    offset: int, reader: array_status.ArrayReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """MLX's drawing is the judge: pointers, sizes and dtypes are no status."""
    monkeypatch.setattr(array_status, "_status_at", lambda *_: offset)
    assert array_status._found(mx) is None


def test_where_nothing_fits_nothing_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(array_status, "_tried", False)
    monkeypatch.setattr(array_status, "reader", None)
    monkeypatch.setattr(array_status, "BEGUN", (7, 8))
    array_status.find(mx)
    assert array_status.reader is None and array_status.unreadable()


def test_an_address_without_memory_ends_no_process() -> None:
    assert array_status._copied(8, 16) == b""


def test_while_it_is_looked_for_it_does_not_count_as_unreadable(monkeypatch: pytest.MonkeyPatch) -> None:
    """The agent's thread may ask at that moment."""
    found = array_status._found
    meanwhile: list[bool] = []

    def asked(mlx: Any) -> Any:
        meanwhile.append(array_status.unreadable())
        return found(mlx)

    monkeypatch.setattr(array_status, "_tried", False)
    monkeypatch.setattr(array_status, "reader", None)
    monkeypatch.setattr(array_status, "_found", asked)
    array_status.find(mx)
    assert meanwhile == [False] and array_status.reader is not None and not array_status.unreadable()
