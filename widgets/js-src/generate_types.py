"""Write what JavaScript knows of the Snapshot (``src/snapshot-types.js``), from the dataclasses that it is made of.

``make js`` runs it, and a test fails where the file is another than it would write. A field that has its default is
left out of a frame, and so is optional there.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Iterator
from pathlib import Path

from allranks_backends import plan, views

FILE = Path(__file__).parent / "src" / "snapshot-types.js"
VIEWS = (
    views.Collective,
    views.OpView,
    views.GpuView,
    views.RankView,
    views.HostView,
    plan.Link,
    views.LinkView,
    views.Snapshot,
)
STATES = {"RankState": views.RankState, "WorldState": views.WorldState}
PLAIN = {str: "string", int: "number", float: "number", bool: "boolean"}


def text() -> str:
    """The file's content."""
    return "\n".join(
        [
            "// Made by generate_types.py from allranks_backends/views.py: change its dataclasses, and run `make js`.",
            "// A field that is missing has its default; a missing figure is unknown, which is not zero.",
            "",
            *(f"/** @typedef {{{_type(states)}}} {name} */" for name, states in STATES.items()),
            *(line for view in VIEWS for line in _view(view)),
            "",
            "export {};",
            "",
        ]
    )


def _view(view: type) -> Iterator[str]:
    hints = typing.get_type_hints(view)
    yield ""
    yield "/**"
    yield f" * {(view.__doc__ or '').splitlines()[0]}"
    yield f" * @typedef {{object}} {view.__name__}"
    for field in dataclasses.fields(view):
        optional = field.default is not dataclasses.MISSING or field.default_factory is not dataclasses.MISSING
        name = f"[{field.name}]" if optional else field.name
        yield f" * @property {{{_type(hints[field.name])}}} {name}"
    yield " */"


def _type(hint: object) -> str:
    """What JSDoc calls a type of a field."""
    if isinstance(hint, type) and hint in PLAIN:
        return PLAIN[hint]
    if dataclasses.is_dataclass(hint):
        return str(getattr(hint, "__name__", ""))
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Literal:
        return " | ".join(f'"{each}"' for each in args)
    if origin is tuple:
        return f"{_type(args[0])}[]"
    if origin in (types.UnionType, typing.Union):  # a figure that is None is left out
        return _type(next(each for each in args if each is not types.NoneType))
    raise TypeError(f"no JavaScript type for {hint}")


if __name__ == "__main__":
    FILE.write_text(text())
