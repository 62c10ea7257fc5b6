"""Finds the user's arrays that still wait for a collective, without evaluating any.

Most arrays are computed or are themselves the result of a collective. Both states are read from memory (see
`array_status`). For all other arrays, ``mx.export_to_dot`` makes one drawing of the graphs from which they are to be
computed (see `graph_drawing`).
"""

from __future__ import annotations

import ast
import re
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from types import ModuleType
from typing import TYPE_CHECKING

from allranks.rank.functions.replaced import original

from . import array_status
from .graph_drawing import drawing_of

if TYPE_CHECKING:
    from mlx.core import array as Array

LOOKED_AT = re.compile(r"^[ \t]*(\?{1,2}[\w.]+|[\w.]+\?{1,2})[ \t]*$", re.MULTILINE)
"""Lines such as ``x?`` and ``?x``, which evaluate nothing on a rank."""
MOST_LEAVES = 10_000
"""Maximum number of objects examined in one value."""
LOOK_AT = 200
"""Maximum number of arrays examined in one value, and of items in one container."""

_collectives: set[int] = set()
"""The values of `array_status.ArrayReader.operation` for results of collectives; empty if they are not known."""


def learn_collectives(mx: ModuleType, size: int) -> None:
    """Learn how to recognise results of collectives, in a world of `size` ranks; evaluates none."""
    if array_status.reader is None or _collectives or size == 1:  # with one rank, MLX returns the array itself
        return
    for name in ("all_sum", "all_gather", "sum_scatter"):
        with suppress(Exception):  # this backend may lack the operation
            result = original(getattr(mx.distributed, name))(mx.zeros(size))
            _collectives.add(array_status.reader.operation(result))
    _collectives.discard(0)


def is_collective(result: Array) -> bool:
    """Whether this pending array, returned by a collective, is still its result; True if that cannot be known."""
    return not _collectives or array_status.reader is None or array_status.reader.operation(result) in _collectives


def is_pending(array: Array) -> bool:
    """Whether an MLX array is yet to be computed and its evaluation has not begun."""
    known = array_status.reader.is_pending(array) if array_status.reader is not None else None
    return drawing_of([array]).computes(0) if known is None else known


def waits_for_collective(array: Array) -> bool:
    """Whether evaluating this MLX array would enter a collective."""
    return bool(waiting([array]))


def waiting(arrays: Iterable[Array]) -> set[int]:
    """The ``id`` of each of `arrays` that waits for a collective."""
    found: set[int] = set()
    unknown: dict[int, Array] = {}
    for array in arrays:
        if array_status.reader is None or (known := array_status.reader.is_pending(array)) is None:
            unknown[id(array)] = array
        elif known and array_status.reader.operation(array) in _collectives:
            found.add(id(array))
        elif known:
            unknown[id(array)] = array
    while unknown:
        numbers, drawing = list(unknown), drawing_of(list(unknown.values()))
        if not drawing.has_collectives:
            break
        found.update(numbers[position] for position in drawing.dependent(len(numbers)))
        left = {number: unknown[number] for position, number in enumerate(numbers) if not drawing.shows(position)}
        if len(left) == len(unknown):  # another version of MLX draws otherwise: count all, since at least one waits
            return found | set(left)
        unknown = left
    return found


def indexes(arrays: Iterable[Array]) -> bool:
    """Whether any operation that is to compute these MLX arrays takes indices."""
    return drawing_of(list(arrays)).has_indexing


def waits(value: object) -> bool:
    """Whether a value is, or holds, an array that waits for a collective."""
    return bool(waiting(_arrays(value)))


def pending_names(
    user_ns: Mapping[str, object], names: set[str] | None = None, within: float = float("inf")
) -> list[str]:
    """The names of variables, among `names` if given, whose arrays wait for a collective.

    Skips names that begin with ``_``. Stops looking after `within` seconds of this thread's processor time: a limit in
    real time would leave out names because the machine is busy.
    """
    held: dict[str, list[Array]] = {}
    until = time.thread_time() + within
    for name, value in list(user_ns.items()):
        if time.thread_time() > until:
            break
        if not name.startswith("_") and (names is None or name in names):
            held[name] = list(_arrays(value))
    found = waiting(array for arrays in held.values() for array in arrays)
    return sorted(name for name, arrays in held.items() if any(id(array) in found for array in arrays))


def settle(variables: Iterable[tuple[str, object]]) -> None:
    """Evaluate in one call the arrays in `variables` that wait for a collective. Skips names with a leading ``_``."""
    import mlx.core as mx

    arrays = [array for name, value in variables if not name.startswith("_") for array in _arrays(value)]
    found = waiting(arrays)
    mx.eval([array for array in arrays if id(array) in found])


def names_in(code: str) -> set[str]:
    """Names that `code` mentions; all its words if it is not plain Python (magics)."""
    code = LOOKED_AT.sub("", code)
    try:
        tree = ast.parse(code)
    except SyntaxError:
        return set(re.findall(r"[^\W\d]\w*", code))
    return {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}


def _arrays(value: object) -> Iterator[Array]:
    """The MLX arrays in a value, through lists, tuples and dicts (an ``nn.Module`` is one)."""
    import mlx.core as mx

    waiting, seen = [value], 0
    looked_into: set[int] = set()  # a container may hold itself
    while waiting and seen < LOOK_AT:
        each = waiting.pop()
        if isinstance(each, (dict, list, tuple)):
            if id(each) in looked_into:
                continue
            looked_into.add(id(each))
        if isinstance(each, mx.array):
            seen += 1
            yield each
        elif isinstance(each, dict):
            waiting.extend(list(dict.values(each))[:LOOK_AT])
        elif isinstance(each, (list, tuple)):
            waiting.extend(each[:LOOK_AT])
