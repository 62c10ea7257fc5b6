"""Describes the user's variables, leaf by leaf, without evaluating anything."""

from __future__ import annotations

import types
import zlib
from collections.abc import Container, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from allranks.messages.requests import DescribedVariable, Leaf
from allranks.rank.arrays import pending_arrays
from allranks.rank.arrays.pending_arrays import MOST_LEAVES

if TYPE_CHECKING:
    from mlx.core import array as Array

DEEPEST = 30
"""Maximum depth of nested containers."""
PLAIN = (bool, int, float, complex, str, bytes, type(None))


def leaves(value: object, path: str = "", depth: int = 0) -> Iterator[tuple[str, Any]]:
    """Each leaf with its path, as in ``['layers'][0]['weight']``; an ``nn.Module`` is a dict of its parameters."""
    if depth == DEEPEST:  # the value may contain itself
        yield path, object()
    elif isinstance(value, dict):
        for key, each in list(dict.items(value)):
            yield from leaves(each, f"{path}[{key!r}]", depth + 1)
    elif isinstance(value, (list, tuple)):
        for number, each in enumerate(value):
            yield from leaves(each, f"{path}[{number}]", depth + 1)
    else:
        yield path, value


def describe(
    variables: Mapping[str, object],
    on_its_way: Container[int] = (),
    invalid: Container[str] = (),
    *,
    compared: bool = True,
) -> list[DescribedVariable]:
    """One entry for each name: type, shape, dtype, bytes of its arrays, and if `compared`, a checksum.

    The checksum is None if a leaf is pending, holds Python objects, or is neither an array nor a plain value, or if
    there are more than `MOST_LEAVES` leaves. Names in `invalid` depend on an aborted collective. Arrays whose ``id`` is
    in `on_its_way` count as pending, since reading them would wait for their evaluation. Modules, functions and classes
    are left out: they are code.
    """
    return [
        DescribedVariable(name=name, invalid=name in invalid, **_described(value, on_its_way, compared))
        for name, value in sorted(variables.items())
        if not isinstance(value, (types.ModuleType, types.FunctionType, types.BuiltinFunctionType, type))
    ]


def describe_leaves(value: object, on_its_way: Container[int] = ()) -> list[Leaf]:
    """One entry for each leaf of `value`, up to `MOST_LEAVES`."""
    found = []
    for path, leaf in leaves(value):
        found.append(Leaf(path=path, **_described(leaf, on_its_way)))
        if len(found) == MOST_LEAVES:
            break
    return found


def leaf_at(value: object, path: str) -> Any:
    """The leaf that `leaves` yields with this `path`. Raises KeyError if there is none."""
    for found, leaf in leaves(value):
        if found == path:
            return leaf
    raise KeyError(path)


def _described(value: Any, on_its_way: Container[int], compared: bool = True) -> dict[str, Any]:
    entry: dict[str, Any] = {"type": type(value).__name__, "shape": None, "dtype": None, "nbytes": None}
    entry |= {"checksum": None, "pending": False}
    if is_array(value):
        entry["shape"], entry["dtype"] = list(value.shape), str(value.dtype).removeprefix("mlx.core.")
    checksum, nbytes, arrays = 0, 0, 0
    for number, (path, leaf) in enumerate(leaves(value)):
        if number == MOST_LEAVES:
            return {**entry, "nbytes": nbytes if arrays else None}
        if is_array(leaf):
            arrays += 1
            nbytes += leaf.nbytes
            entry["pending"] |= id(leaf) in on_its_way or is_pending(leaf)
        known = _bytes(leaf) if compared and not entry["pending"] else None
        if known is None:
            checksum = -1
        elif checksum >= 0:
            checksum = zlib.crc32(known, zlib.crc32(path.encode(), checksum))
    return {**entry, "nbytes": nbytes if arrays else None, "checksum": checksum if checksum >= 0 else None}


def is_array(value: object) -> bool:
    """Whether the value is an MLX or numpy array."""
    return type(value).__module__.split(".")[0] in ("mlx", "numpy") and all(
        hasattr(type(value), name) for name in ("shape", "dtype", "nbytes")
    )


def is_pending(array: Array) -> bool:
    """Whether the array is an MLX array that is not evaluated yet."""
    return type(array).__module__.split(".")[0] == "mlx" and pending_arrays.is_pending(array)


def _bytes(leaf: Any) -> bytes | memoryview | None:
    """A leaf's content as bytes, for a checksum; None unless it is a plain value or an array without objects."""
    if is_array(leaf):
        import numpy as np

        plain = leaf
        if str(leaf.dtype) == "mlx.core.bfloat16":
            import mlx.core as mx

            plain = leaf.view(mx.uint16)
        data = np.ascontiguousarray(np.asarray(plain))
        return None if data.dtype.hasobject else data.reshape(-1).view("uint8").data if data.size else b""
    return repr(leaf).encode() if isinstance(leaf, PLAIN) else None
