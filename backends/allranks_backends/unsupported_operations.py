"""The operations and dtypes that a backend does not support, and the error messages for cells that use them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from .protocol import POINT_TO_POINT, Backend
from .registry import BACKENDS, listed

INSTEAD = {
    "sum_scatter": "mx.distributed.all_sum(x) gives every rank the whole sum, of which each can take its part.",
}
"""Maps an operation to advice on how to do the same with other operations."""
CONVERTED = {
    "bool": "x.astype(mx.uint8)",
    "int16": "x.astype(mx.int32)",
    "uint16": "x.astype(mx.uint32)",
    "complex64": "x.view(mx.float32)",
}
"""Maps a dtype that a backend lacks to the code that converts `x` to a dtype that every backend supports."""
_EVERY = sorted({operation for backend in BACKENDS.values() for operation in backend.operations})


@dataclass(frozen=True)
class Limits:
    """The limits of one backend. They are plain values, since each rank receives them when it joins a world."""

    operations: Mapping[str, str] = field(default_factory=dict)
    """Maps each unsupported operation (``split`` for ``Group.split``) to its error message."""
    neighbours: str | None = None
    """Error message for a peer that is not a neighbour, with placeholders ``op rank size beside peer``; None if any
    rank can be a peer."""
    dtypes: Mapping[str, str] = field(default_factory=dict)
    """Maps the name of each unsupported dtype to its error message, with a placeholder ``op``."""
    reduced: Mapping[str, str] = field(default_factory=dict)
    """Same as `dtypes`, for dtypes that only reductions do not support."""


def limits(backend: Backend, can_run: Collection[str] | None = None) -> Limits:
    """Return the limits of `backend` in mlx 0.32.

    `can_run` are the names of the backends that the same hosts can run: error messages suggest only these. If it is
    None, they may suggest any backend.
    """
    return Limits(
        {
            operation: _no_operation(backend, operation, can_run)
            for operation in _EVERY
            if operation not in backend.operations
        },
        _no_neighbour(backend, can_run) if backend.neighbours_only else None,
        {dtype: _no_dtype(backend, dtype, can_run) for dtype in sorted(backend.no_dtypes)},
        {dtype: _no_dtype(backend, dtype, can_run) for dtype in sorted(backend.no_reduced)},
    )


def _no_operation(backend: Backend, operation: str, can_run: Collection[str] | None) -> str:
    able = [other for other in BACKENDS.values() if operation in other.operations]
    # Backends whose send and recv reach every rank come first.
    able.sort(key=lambda other: other.neighbours_only)
    shown = "Group.split" if operation == "split" else operation
    instead = INSTEAD.get(operation, "")
    return f"{backend.name} has no {shown} (mlx 0.32). {_have_it(able, can_run, instead)}"


def _no_neighbour(backend: Backend, can_run: Collection[str] | None) -> str:
    able = [other for other in BACKENDS.values() if other.operations >= POINT_TO_POINT and not other.neighbours_only]
    pass_on = "Pass it on from neighbour to neighbour."
    return (
        f"{backend.name} joins direct neighbours only: beside rank {{rank}} of {{size}} there is {{beside}}, and {{op}}"
        f" names rank {{peer}} (mlx 0.32). {_have_it(able, can_run, pass_on, 'reach every rank')}"
    )


def _no_dtype(backend: Backend, dtype: str, can_run: Collection[str] | None) -> str:
    able = [
        other for other in BACKENDS.values() if dtype not in other.no_dtypes | other.no_reduced and other is not backend
    ]
    convert = f"Convert it first: {CONVERTED[dtype]}"
    return f"{backend.name} has no {{op}} of {dtype} (mlx 0.32). {convert}. {_have_it(able, can_run)}"


def _have_it(able: Sequence[Backend], can_run: Collection[str] | None, instead: str = "", have: str = "have it") -> str:
    names = [backend.name for backend in able]
    have = f"{listed(names, 'and')} {have}"
    runs = [name for name in names if can_run is None or name in can_run]
    if runs:
        return f"{have}: %distributed rewire --backend {runs[0]}"
    return f"{have}, which cannot run here. {instead}".rstrip()
