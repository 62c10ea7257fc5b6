"""Reads from MLX's memory whether an array is computed, in a fraction of a microsecond however large its graph is.

MLX has no function for that (0.32.4), and ``mx.export_to_dot`` walks the array's whole graph: 6 ms for 600 operations.
The offset of an array's status differs between versions and platforms. So `find` searches for it, once in each process:
it compares pending arrays with the same arrays after evaluation. Exactly one offset must fit, and must then agree with
MLX's drawing on arrays of every kind. Otherwise nothing is read, and `reader` stays None. The pointer to an array's
pending operation is found by the address that the drawing gives for that operation.

A read is safe in any thread: the caller's reference keeps the array alive, the array keeps its description alive, and
MLX changes a status by one store.
"""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Callable, Iterable
from contextlib import suppress
from types import ModuleType
from typing import TYPE_CHECKING, NamedTuple

from .graph_drawing import Drawing, drawing_of

if TYPE_CHECKING:
    from mlx.core import array as Array

DESCRIBED = 512
"""Bytes of an array's description that are searched; the description has 368 (0.32.4, Linux)."""
WORDS: ctypes.Array[ctypes.c_int64] = (ctypes.c_int64 * (1 << 59)).from_address(0)
"""The memory of this process, eight bytes at a time: indexing it takes half as long as making a ctypes object."""
HALVES: ctypes.Array[ctypes.c_int32] = (ctypes.c_int32 * (1 << 60)).from_address(0)
"""The same memory, four bytes at a time."""
HEAD = object.__basicsize__ // 8
"""Words before nanobind's part of an instance. That part is a word that locates the C++ object, then the object."""
UNSCHEDULED = 0
"""The status of an array whose evaluation has not begun; see ``Status`` in ``mlx/array.h``."""
BEGUN = (1, 2)
"""The other statuses: evaluation is under way or over, so the array is part of no graph."""


class ArrayReader(NamedTuple):
    """Functions that read an array's state from memory."""

    is_pending: Callable[[object], bool | None]
    """Whether the array is yet to be computed; False once its evaluation has begun.

    None if the object is not an ordinary array.
    """
    operation: Callable[[object], int]
    """The kind of the operation that is to compute the array: equal numbers for equal kinds, 0 for none or unknown."""
    is_there: Callable[[object], bool]
    """Whether the array is computed, and something has waited for it."""
    primitive: Callable[[object], int]
    """The address of the operation that is to compute the array, its name in MLX's drawing; 0 for none or unknown."""


reader: ArrayReader | None = None
"""The functions that `find` made; None if it has not run, or found no way to read arrays."""
_tried = False


def find(mx: ModuleType) -> None:
    """Find out how to read arrays. To be called in the main thread; further calls do nothing."""
    global reader, _tried
    if not _tried:
        with suppress(Exception):  # a later MLX may differ in any way
            reader = _found(mx)
        _tried = True  # not earlier, since the agent's thread calls `unreadable`


def unreadable() -> bool:
    """Whether `find` has run, and found no way to read arrays."""
    return _tried and reader is None


def _found(mx: ModuleType) -> ArrayReader | None:
    with mx.stream(mx.cpu):  # there no kernel needs compiling, and no other device wakes up
        if mx.array.__basicsize__ < (HEAD + 2) * 8:
            return None
        pending, constant = _pending(mx), [mx.array(3.0), mx.array([1, 2, 3, 4])]
        layouts = {WORDS[(id(array) >> 3) + HEAD] for array in (*pending, *constant)}
        head = layouts.pop()
        if layouts or head & 0xFFFFFFFF != (HEAD + 1) * 8:  # heads must be equal, and the C++ object must follow
            return None
        descriptions = [_description(array) for array in (*pending, *constant)]
        before, fixed = descriptions[: len(pending)], descriptions[len(pending) :]
        operation = _operation_at(before, drawing_of(pending))  # before the evaluation, which frees the operations
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


def _reader(kind: type, head: int, status: int, operation: int | None) -> ArrayReader:
    words, halves, at_head, at_array = WORDS, HALVES, HEAD, HEAD + 1

    def is_pending(array: object) -> bool | None:
        if type(array) is not kind:
            return None
        at = id(array) >> 3
        # The head is another word if the C++ object was never constructed.
        if words[at + at_head] != head or not (description := words[at + at_array]):
            return None
        return bool(halves[(description + status) >> 2] == UNSCHEDULED)

    def primitive_of(array: object) -> int:
        if operation is None or not is_pending(array):
            return 0
        return int(words[(words[(id(array) >> 3) + at_array] + operation) >> 3])

    def operation_of(array: object) -> int:
        primitive = primitive_of(array)
        return int(words[primitive >> 3]) if primitive else 0

    def is_there(array: object) -> bool:
        return is_pending(array) is False and halves[(words[(id(array) >> 3) + at_array] + status) >> 2] == BEGUN[-1]

    return ArrayReader(is_pending, operation_of, is_there, primitive_of)


def _pending(mx: ModuleType) -> list[Array]:
    """Pending arrays of different shapes, so that no field but the status has the values of a status in all of them."""
    shared = mx.ones((2, 3)) + 1
    return [shared, shared + shared, mx.zeros(5).sum(), mx.arange(7) * 2, (mx.ones((1, 2, 3, 4)) * 2).T]


def _all_kinds(mx: ModuleType) -> Iterable[Array]:
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
    """The only offset at which every description has the expected status; None if there is not exactly one."""
    end = min(map(len, (*before, *after, *fixed)))
    return _only(
        offset
        for offset in range(0, end - 3, 4)
        if all(_half(each, offset) == UNSCHEDULED for each in before)
        and all(_half(each, offset) in BEGUN for each in after)
        and all(_half(each, offset) == BEGUN[-1] for each in fixed)
    )


def _operation_at(pending: list[bytes], drawing: Drawing) -> int | None:
    """The only offset at which every description has the address of its pending operation.

    None if there is not exactly one.
    """
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


def _description(array: Array) -> bytes:
    return _copied(WORDS[(id(array) >> 3) + HEAD + 1], DESCRIBED)


def _copied(address: int, size: int) -> bytes:
    """Copy `size` bytes at `address`, or as many as are mapped: ``write`` fails at unmapped memory without a crash."""
    receive, send = os.pipe()
    try:
        write = ctypes.CDLL(None).write
        write.argtypes, write.restype = (ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t), ctypes.c_ssize_t
        count = write(send, address, size)
        return os.read(receive, count) if count > 0 else b""
    finally:
        os.close(receive)
        os.close(send)
