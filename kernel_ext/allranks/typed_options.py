"""How options are typed after a magic: `Typed` annotates a declared option with facts that its type does not give.

Options are declared in two classes: `UpOptions` for ``%distributed up``, `CellOptions` for ``%%distributed``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal, get_args, get_origin, get_type_hints


@dataclass(frozen=True)
class Typed:
    """How an option is typed; the defaults follow from the option's name and type."""

    help: str
    metavar: str | None = None
    parse: Callable[[str], object] | None = None
    """Converts the typed text; by default, the option's type does."""
    flag: str | None = None
    """The flag before the value, if it is not ``--`` and the option's name."""
    repeat: Callable[[list[Any]], object] | None = None
    """If the option may be repeated, turns the list of its values into one value."""
    negatable: bool = False
    """Whether ``--no-`` and the option's name switches the option off."""
    exclusive: bool = False
    """At most one of the exclusive options may be given."""
    refuse: Callable[[Any], object] | None = None
    """Raises UsageError for an invalid value."""


@cache
def typed(declared: type) -> Mapping[str, tuple[Any, Typed]]:
    """Map each option of the class `declared` that is annotated with a `Typed` to its type and its `Typed`."""
    hints = get_type_hints(declared, include_extras=True)
    return {
        name: (hint.__origin__, how)
        for name, hint in hints.items()
        for how in getattr(hint, "__metadata__", ())
        if isinstance(how, Typed)
    }


def flag(name: str, how: Typed) -> str:
    """The flag of an option: ``--mpi-arg``."""
    return how.flag or f"--{name.replace('_', '-')}"


def choices(kind: object) -> list[str]:
    """The values that a type allows, if it allows only some; otherwise empty."""
    if kind is bool:
        return ["True", "False"]
    inner = [choice for each in get_args(kind) if get_origin(kind) is not Literal for choice in choices(each)]
    return list(get_args(kind)) if get_origin(kind) is Literal else inner
