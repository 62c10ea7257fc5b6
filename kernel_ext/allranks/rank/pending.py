"""Which of the user's arrays still wait for a collective, found out without evaluating any.

``mx.export_to_dot`` draws the graph an array is yet to be computed from; an evaluated array has none.
"""

from __future__ import annotations

import ast
import io
import re
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

PRIMITIVE = re.compile(r'label ="(\w+ )?(AllReduce|AllGather|ReduceScatter|Send|Recv)"')
"""As MLX labels them: ``Sum AllReduce``, ``AllGather``, ``Sum ReduceScatter`` (mlx 0.32.4)."""
LOOKED_AT = re.compile(r"^[ \t]*(\?{1,2}[\w.]+|[\w.]+\?{1,2})[ \t]*$", re.MULTILINE)
"""``x?`` and ``?x``, which on a rank evaluate nothing."""
LOOK_AT = 200
"""Arrays looked at in one container."""


def waits_for_collective(array: Any) -> bool:
    """Whether evaluating this MLX array would enter a collective."""
    import mlx.core as mx

    drawing = io.StringIO()
    mx.export_to_dot(drawing, array)
    return PRIMITIVE.search(drawing.getvalue()) is not None


def waits(value: Any) -> bool:
    """Whether a value is, or holds, an array that waits for a collective."""
    return any(waits_for_collective(array) for array in _arrays(value))


def pending_names(user_ns: Mapping[str, Any], names: set[str] | None = None, within: float = float("inf")) -> list[str]:
    """Names (of `names`, or all the user's) whose arrays wait for a collective; gives up looking after `within` s."""
    found, until = [], time.monotonic() + within
    for name, value in list(user_ns.items()):
        if time.monotonic() > until:
            break
        if name.startswith("_") or (names is not None and name not in names):
            continue
        if waits(value):
            found.append(name)
    return sorted(found)


def settle(variables: Iterable[tuple[str, Any]]) -> None:
    """Evaluate the arrays of these that wait for a collective, all at once."""
    import mlx.core as mx

    values = [value for name, value in variables if not name.startswith("_")]
    mx.eval([array for value in values for array in _arrays(value) if waits_for_collective(array)])


def names_in(code: str) -> set[str]:
    """Variables that `code` mentions; all words of it where it is no plain Python (magics)."""
    code = LOOKED_AT.sub("", code)
    try:
        tree = ast.parse(code)
    except SyntaxError:
        return set(re.findall(r"[^\W\d]\w*", code))
    return {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}


def _arrays(value: Any) -> Iterator[Any]:
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
