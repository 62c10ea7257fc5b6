"""Whether an MLX array is computed, read from MLX's memory: a fraction of a microsecond, whatever graph it is part of.

MLX has no function that tells (0.32.4), and ``mx.export_to_dot`` walks the whole graph an array is to be computed from:
6 ms for 600 operations. Where the array's status is kept differs between versions and platforms. So `find` looks for
it, once in each process: it compares arrays that are known to be pending with the same arrays evaluated. Exactly one
place must fit, and must then agree with MLX's drawing on arrays of every kind. Otherwise nothing is read, and `reader`
stays None. The operation that is to compute an array is where the address is by which that drawing names it.

A read is safe in any thread: the caller's reference keeps the array alive, the array keeps its description alive, and
MLX changes a status by one store.
"""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any, NamedTuple

from .drawing import Drawing, drawing_of

DESCRIBED = 512
"""Bytes of an array's description that are searched; it has 368 (0.32.4, Linux)."""
WORDS: Any = (ctypes.c_int64 * (1 << 59)).from_address(0)
"""The memory of this process, eight bytes at a time: indexing it takes half as long as making a ctypes object."""
HALVES: Any = (ctypes.c_int32 * (1 << 60)).from_address(0)
"""The same, four bytes at a time."""
HEAD = object.__basicsize__ // 8
"""Words before what nanobind keeps of an instance: one word that says where the C++ object is, then that object."""
UNSCHEDULED = 0
"""The status of an array that no evaluation has begun; see ``Status`` in ``mlx/array.h``."""
BEGUN = (1, 2)
"""The others: evaluation is under way or over, so the array is part of no graph."""


class Reader(NamedTuple):
    """What can be read of an array."""

    is_pending: Callable[[Any], bool | None]
    """Whether it is yet to be computed; None for what is no ordinary array."""
    operation: Callable[[Any], int]
    """Which operation is to compute it: equal numbers for equal kinds of operation, 0 for none."""
    is_there: Callable[[Any], bool]
    """Whether it is computed, and was waited for."""
    primitive: Callable[[Any], int]
    """The address of the operation that is to compute it, by which MLX's drawing names that; 0 for none."""


reader: Reader | None = None
"""What `find` found."""
_tried = False


def find(mx: Any) -> None:
    """Find out how to read arrays, in the main thread; harmless the second time."""
    global reader, _tried
    if not _tried:
        with suppress(Exception):  # a later MLX may differ in any way
            reader = _found(mx)
        _tried = True  # not before: the agent's thread asks whether it is `unreadable`


def unreadable() -> bool:
    """Whether `find` was here, and found nothing."""
    return _tried and reader is None


def _found(mx: Any) -> Reader | None:
    with mx.stream(mx.cpu):  # no kernel need be compiled, and no other device wakes up
        if mx.array.__basicsize__ < (HEAD + 2) * 8:
            return None
        pending, constant = _pending(mx), [mx.array(3.0), mx.array([1, 2, 3, 4])]
        layouts = {WORDS[(id(array) >> 3) + HEAD] for array in (*pending, *constant)}
        head = layouts.pop()
        if layouts or head & 0xFFFFFFFF != (HEAD + 1) * 8:  # all alike, and the C++ object comes right after
            return None
        descriptions = [_description(array) for array in (*pending, *constant)]
        before, fixed = descriptions[: len(pending)], descriptions[len(pending) :]
        operation = _operation_at(before, drawing_of(pending))  # an operation is gone when it has been done
        mx.eval(pending)
        after = [_description(array) for array in pending]
        status = _status_at(before, after, fixed)
        if status is None:
            return None
        new = _reader(mx.array, head, status, operation)
        kinds = list(_all_kinds(mx))
        drawing = drawing_of(kinds)
        agrees = all(new.is_pending(array) == drawing.computes(place) for place, array in enumerate(kinds))
        return new if agrees else None


def _reader(kind: type, head: int, status: int, operation: int | None) -> Reader:
    words, halves, at_head, at_array = WORDS, HALVES, HEAD, HEAD + 1

    def is_pending(array: Any) -> bool | None:
        if type(array) is not kind:
            return None
        at = id(array) >> 3
        # Another word is there where the C++ object was never made.
        if words[at + at_head] != head or not (description := words[at + at_array]):
            return None
        return bool(halves[(description + status) >> 2] == UNSCHEDULED)

    def primitive_of(array: Any) -> int:
        if operation is None or not is_pending(array):
            return 0
        return int(words[(words[(id(array) >> 3) + at_array] + operation) >> 3])

    def operation_of(array: Any) -> int:
        primitive = primitive_of(array)
        return int(words[primitive >> 3]) if primitive else 0

    def is_there(array: Any) -> bool:
        return is_pending(array) is False and halves[(words[(id(array) >> 3) + at_array] + status) >> 2] == BEGUN[-1]

    return Reader(is_pending, operation_of, is_there, primitive_of)


def _pending(mx: Any) -> list[Any]:
    """Arrays yet to be computed, whose sizes are no status."""
    shared = mx.ones((2, 3)) + 1
    return [shared, shared + shared, mx.zeros(5).sum(), mx.arange(7) * 2, (mx.ones((1, 2, 3, 4)) * 2).T]


def _all_kinds(mx: Any) -> Iterable[Any]:
    """Arrays of every kind, pending and evaluated."""
    x = mx.arange(6, dtype=mx.float32).reshape(2, 3)
    evaluated = [x + 1, x.T, x[1], x.sum(), *mx.divmod(x, mx.array(2.0)), x.astype(mx.float16), mx.zeros((0, 3))]
    scheduled = x * 3
    mx.eval(evaluated)
    mx.async_eval(scheduled)
    yield from (*evaluated, scheduled, mx.array(1), x)
    yield from (x.T, x[1] * 2, x.sum(), *mx.divmod(x, mx.array(2.0)), x.astype(mx.float16))
    yield from (mx.grad(lambda a: (a * a).sum())(x), mx.vmap(lambda a: a + 1)(x), *mx.split(x, 3, axis=1))
    changed = mx.array([1.0, 2.0])
    changed += 1
    yield changed


def _status_at(before: list[bytes], after: list[bytes], fixed: list[bytes]) -> int | None:
    """The one offset at which all say what they are."""
    end = min(map(len, (*before, *after, *fixed)))
    return _only(
        offset
        for offset in range(0, end - 3, 4)
        if all(_half(each, offset) == UNSCHEDULED for each in before)
        and all(_half(each, offset) in BEGUN for each in after)
        and all(_half(each, offset) == BEGUN[-1] for each in fixed)
    )


def _operation_at(pending: list[bytes], drawing: Drawing) -> int | None:
    """The one offset at which all hold the address of the operation that is to compute them."""
    addresses = [drawing.address(place) for place in range(len(pending))]
    return _only(
        offset
        for offset in range(0, min(map(len, pending)) - 7, 8)
        if [_word(each, offset) for each in pending] == addresses
    )


def _only(offsets: Iterable[int]) -> int | None:
    found = list(offsets)
    return found[0] if len(found) == 1 else None


def _half(content: bytes, offset: int) -> int:
    return int(struct.unpack_from("i", content, offset)[0])


def _word(content: bytes, offset: int) -> int:
    return int(struct.unpack_from("q", content, offset)[0])


def _description(array: Any) -> bytes:
    return _copied(WORDS[(id(array) >> 3) + HEAD + 1], DESCRIBED)


def _copied(address: int, size: int) -> bytes:
    """The bytes at `address`, as far as there is memory: the kernel, asked to send them, refuses where none is."""
    receive, send = os.pipe()
    try:
        write = ctypes.CDLL(None).write
        write.argtypes, write.restype = (ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t), ctypes.c_ssize_t
        count = write(send, address, size)
        return os.read(receive, count) if count > 0 else b""
    finally:
        os.close(receive)
        os.close(send)
