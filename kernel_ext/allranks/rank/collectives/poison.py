"""The values that an aborted collective delivers: NaN if the dtype has one, otherwise zeros.

Not everything that holds a result can be found (an object, a closure, a file that a ``finally`` writes), but NaN shows
in everything that is computed from the result. Integers and bool have no NaN and get zeros, since an index of all one
bits in a gather ends the process (mlx 0.32.4). ``all_max`` and ``all_min`` get infinity: MLX's ring and MPI's own
maximum compare numbers, and a comparison with NaN keeps the rank's own number.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from types import ModuleType
from typing import Any

FORMATS = {"float16": "<e", "bfloat16": "", "float32": "<f", "float64": "<d", "complex64": "<ff"}
"""Maps each dtype that has a NaN to its format in `struct`; empty for bfloat16, which `struct` lacks."""
EXTREME = {"all_max": float("inf"), "all_min": float("-inf")}
"""Maps each comparing operation to the number that wins every comparison."""
NAN = b"\xff" * 8
"""NaN in each dtype of `FORMATS`, at whatever byte of the stream an element begins."""
ZEROS = bytes(8)

Asked = tuple[str, str]
"""Operation and dtype of a collective."""


def array(mx: ModuleType, op: str, shape: Sequence[int], dtype: str) -> Any:
    """The array with which a rank enters a collective that it missed, so that other ranks return from it."""
    number: complex = EXTREME.get(op, float("nan")) if dtype in FORMATS else 0.0
    if dtype == "complex64":
        number = complex(number.real, number.real)
    with mx.stream(mx.cpu):  # a GPU has no float64
        # An array, since mx.full with a plain number returns a wider dtype than requested (mlx 0.32.4).
        return mx.full(shape, mx.array(number, getattr(mx, "bool_" if dtype == "bool" else dtype)))


def pattern(in_flight: Iterable[Asked]) -> bytes:
    """Eight bytes to repeat as results of these collectives: NaN or infinity if safe for all of them, else zeros.

    For a ring and JACCL: there, one stream of bytes serves all collectives, and which of the bytes each collective
    takes is unknown.
    """
    delivering = {(op, dtype) for op, dtype in in_flight if op != "send"}  # a send's result is the rank's own data
    if not delivering or any(dtype not in FORMATS for _, dtype in delivering):
        return ZEROS
    if len(delivering) == 1:
        ((op, dtype),) = delivering
        if op in EXTREME:
            return _packed(EXTREME[op], dtype)
    return NAN


def is_marked(op: str, dtype: str, by: bytes | None) -> bool:
    """Whether the result of an aborted collective, of this operation and dtype, cannot pass for a valid number.

    Also True for a ``send``, whose result is the rank's own data. `by` is the `pattern` of a ring or of JACCL. It is
    None if each result gets a value for its own dtype: on MPI, and if the ranks that missed the collective enter it
    with an `array`.
    """
    if op == "send":
        return True
    return dtype in FORMATS and by != ZEROS and (by != NAN or op not in EXTREME)


def _packed(number: float, dtype: str) -> bytes:
    if dtype == "bfloat16":  # the upper half of a float32
        once = struct.pack("<f", number)[2:]
    else:
        form = FORMATS[dtype]
        once = struct.pack(form, *[number] * (len(form) - 1))
    return once * (8 // len(once))
