"""What an aborted collective delivers: NaN where the dtype has one, and zeros where it has none.

Not everything that holds a result can be known (an object, a closure, a file that a ``finally`` writes), but NaN shows
in whatever was computed from it. Integers and bool have none, and get zeros: an index of all ones in a gather ends the
process (mlx 0.32.4). Maximum and minimum get infinity: MLX's ring and MPI's own maximum compare, and a comparison with
NaN keeps the rank's own number.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from typing import Any

FORMATS = {"float16": "<e", "bfloat16": "", "float32": "<f", "float64": "<d", "complex64": "<ff"}
"""The dtypes that have a NaN, and how `struct` packs them."""
EXTREME = {"all_max": float("inf"), "all_min": float("-inf")}
"""What wins each comparison."""
NAN = b"\xff" * 8
"""NaN in each of these dtypes, wherever in the stream an element begins."""
ZEROS = bytes(8)

Asked = tuple[str, str]
"""Operation and dtype of a collective."""


def array(mx: Any, op: str, shape: Sequence[int], dtype: str) -> Any:
    """What a rank enters in another's place."""
    number: complex = EXTREME.get(op, float("nan")) if dtype in FORMATS else 0.0
    if dtype == "complex64":
        number = complex(number.real, number.real)
    with mx.stream(mx.cpu):  # a GPU has no float64
        # As an array: of a plain number mx.full makes a wider dtype than it is told (mlx 0.32.4).
        return mx.full(shape, mx.array(number, getattr(mx, "bool_" if dtype == "bool" else dtype)))


def pattern(in_flight: Iterable[Asked]) -> bytes:
    """Eight bytes which, repeated, make what these collectives of a ring deliver invalid, and are safe for all of them.

    One stream of bytes serves them all, and which takes which of them cannot be known.
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
    """Whether no number comes out of such a collective.

    `by` is the ring's `pattern`, None where ranks enter an `array`.
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
