"""Completion and inspection on a rank that evaluate nothing.

Printing a pending collective on one rank alone blocks that rank. So nothing here calls ``__getattr__`` or a property of
the user's objects, or ``repr`` of anything but plain values such as numbers and strings. Shapes, dtypes and lengths are
read; everything else comes from an object's ``__dict__`` and its class.
"""

from __future__ import annotations

import builtins
import inspect as python_inspect
import keyword
import re
import sys
import tokenize
from typing import TYPE_CHECKING, Any

from allranks.messages.requests import Completed
from allranks.messages.value_types import Namespace

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell

_TOKEN = re.compile(r"(?P<path>[^\W\d]\w*(?:\.[^\W\d]\w*)*\.)?(?P<start>\w*)$")
_MISSING = object()
PLAIN = (str, int, float, bool, bytes, type(None))
"""Types whose values are shown. A subclass may have a `repr` of its own."""


def install(shell: Any, rank: int) -> None:
    """Let ``x?`` and the pager print without ``repr``, which would evaluate a pending collective on this rank."""

    def pinfo(line: str, detail: int = 0) -> None:
        found = inspect(shell.user_ns, line.strip(), detail)
        print(found["text/plain"] if found else f"Object `{line.strip()}` not found on rank {rank}.")

    def page(_shell: object, text: object, *_: object, **__: object) -> None:
        print(text["text/plain"] if isinstance(text, dict) else text)

    shell.register_magic_function(pinfo, "line", "pinfo")
    shell.register_magic_function(lambda line: pinfo(line, 1), "line", "pinfo2")
    shell.set_hook("show_in_pager", page, 0)


def complete(shell: InteractiveShell, code: str, cursor: int) -> Completed:
    """Return the names (at most 500) that complete `code` at `cursor`; all offsets are in characters."""
    match = _TOKEN.search(code[:cursor])
    if match is None:
        return Completed(cursor, cursor, [])
    path, start = match["path"] or "", match["start"]
    if path:
        owner = find(shell.user_ns, path[:-1])
        names = _attributes(owner) if owner is not _MISSING else []
    else:
        magics = []
        if code[: match.start()].endswith("%"):
            magics = [*shell.magics_manager.magics["line"], *shell.magics_manager.magics["cell"]]
        names = magics or [*_variables(shell.user_ns), *dir(builtins), *keyword.kwlist]
    names = sorted({name for name in names if name.startswith(start)}, key=lambda name: (name.startswith("_"), name))
    if not start.startswith("_"):
        names = [name for name in names if not name.startswith("_")]
    return Completed(cursor - len(start), cursor, names[:500])


def find(user_ns: Namespace, path: str) -> Any:
    """The object that a dotted path names; `_MISSING` if there is none, or if only a property could return it."""
    root, *parts = path.split(".")
    value = user_ns.get(root, getattr(builtins, root, _MISSING))
    for part in parts:
        if value is _MISSING:
            return value
        value = _plain_attribute(value, part)
    return value


def inspect(user_ns: Namespace, name: str, detail: int) -> dict[str, str] | None:
    """Describe the value of a name as text without evaluating it; None if the rank does not know the name."""
    value = find(user_ns, name)
    if value is _MISSING:
        return None
    lines = [f"Type:      {type(value).__name__}"]
    if _is_array(value):
        lines.append(f"Shape:     {tuple(value.shape)}")
        lines.append(f"Dtype:     {str(value.dtype).removeprefix('mlx.core.')}")
    if callable(value):
        try:
            lines.insert(0, f"Signature: {name.rpartition('.')[2]}{_signature(value)}")
        except (TypeError, ValueError):
            pass
    elif type(value) in PLAIN:
        lines.append(f"Value:     {value!r:.200}")
    elif isinstance(value, (list, tuple, dict, set)):
        lines.append(f"Length:    {len(value)}")
    documented = value if callable(value) or python_inspect.ismodule(value) else type(value)
    if detail and (source := _source(value)):
        lines.append(f"Source:\n{source}")
    elif doc := python_inspect.getdoc(documented):
        lines.append(f"Docstring:\n{doc}")
    return {"text/plain": "\n".join(lines)}


class _NotShown:
    def __repr__(self) -> str:
        return "..."


def _signature(function: Any) -> python_inspect.Signature:
    """The signature, with ``...`` for each default that is not plain: it may be a pending array. Raises ValueError."""
    signature = python_inspect.signature(function)
    return signature.replace(
        parameters=[
            each if each.default is each.empty or type(each.default) in PLAIN else each.replace(default=_NotShown())
            for each in signature.parameters.values()
        ]
    )


def _source(value: Any) -> str | None:
    try:
        return python_inspect.getsource(value)
    except (TypeError, OSError, SyntaxError, tokenize.TokenError):  # the source may be cut off, or not Python
        return None


def _is_array(value: object) -> bool:
    mx = sys.modules.get("mlx.core")
    numpy = sys.modules.get("numpy")
    return bool((mx and isinstance(value, mx.array)) or (numpy and isinstance(value, numpy.ndarray)))


def _variables(user_ns: Namespace) -> list[str]:
    for _ in range(3):
        try:
            return [name for name in list(user_ns) if isinstance(name, str)]
        except RuntimeError:  # the main thread grew the dict meanwhile
            continue
    return []


def _plain_attribute(value: object, name: str) -> object:
    found = python_inspect.getattr_static(value, name, _MISSING)
    if isinstance(found, (property, staticmethod, classmethod)) or hasattr(type(found), "__get__"):
        if callable(found) and not isinstance(found, property):
            return found
        return _MISSING
    if found is _MISSING and isinstance(value, dict):  # an nn.Module keeps its parameters as dict items
        return dict.get(value, name, _MISSING)
    return found


def _attributes(value: object) -> list[str]:
    names: set[str] = set()
    names.update(getattr(value, "__dict__", ()) if not _is_array(value) else ())
    for kind in type(value).__mro__ if not isinstance(value, type) else value.__mro__:
        names.update(vars(kind))
    if isinstance(value, dict) and type(value) is not dict:
        names.update(key for key in dict.keys(value) if isinstance(key, str) and key.isidentifier())
    return list(names)
