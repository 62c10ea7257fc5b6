"""The keywords of `Cluster`, `Cluster.run`, `begin` and `options`: taken from the declarations of options."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar, get_type_hints

import msgspec

from allranks.messages.cell_options import OLD_NAMES, CellOptions, checked, unknown
from allranks.notebook.feed_dashboards import Screen
from allranks.notebook.keyboard import Read

Options = ParamSpec("Options")
Holder = TypeVar("Holder")
Result = TypeVar("Result")


class LocalOptions(CellOptions, frozen=True, kw_only=True):
    """A cell's options, including options that only the notebook uses."""

    screen: Screen | None = None
    """Shows the output as it arrives."""
    count: int | None = None
    """Number of the cell in tracebacks; by default, its number in the cluster."""
    widgets: bool = False
    """Whether the page of the cell shows widgets, so that tqdm.notebook uses its widget."""
    read: Read | None = None
    """Asks the user for the commands of the debugger (``input``) while `Cell.finish` follows the cell."""

    @property
    def shared(self) -> CellOptions:
        """The options that are sent to the ranks."""
        return CellOptions(**{name: getattr(self, name) for name in CellOptions.__struct_fields__})


def local_options(**given: Any) -> LocalOptions:
    """Check the options that a user has `given`. Raises UsageError."""
    shared = checked({name: value for name, value in given.items() if name in CellOptions.__struct_fields__})
    return LocalOptions(**{**given, **msgspec.structs.asdict(shared)})


class Keywords(Generic[Options]):
    """Gives methods that end in ``**options`` the keywords of a class.

    Editors, type checkers and ``help`` see each keyword. An unknown keyword raises TypeError; its message suggests the
    nearest one.
    """

    def __init__(
        self, declared: Callable[Options, object], old_names: Mapping[str, str] = MappingProxyType({})
    ) -> None:
        """`old_names` maps former names of options to their current names."""
        self._old_names = old_names
        hints = get_type_hints(declared)
        parameters = inspect.signature(declared).parameters.values()
        self._parameters = [each.replace(annotation=hints[each.name]) for each in parameters]

    def after_code(
        self, method: Callable[Concatenate[Holder, str, ...], Result]
    ) -> Callable[Concatenate[Holder, str, Options], Result]:
        """Decorate a method whose only other argument is the cell's code."""
        return self._given_to(method)

    def alone(
        self, method: Callable[Concatenate[Holder, ...], Result]
    ) -> Callable[Concatenate[Holder, Options], Result]:
        """Decorate a method without other arguments."""
        return self._given_to(method)

    def _given_to(self, method: Callable[..., Result]) -> Callable[..., Result]:
        own = inspect.signature(method)
        several = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
        positional = [each for each in own.parameters.values() if each.kind not in several]
        names, taken = [each.name for each in self._parameters], [each.name for each in positional]
        called = method.__qualname__.removesuffix(".__init__").rpartition(".")[2]

        @functools.wraps(method)
        def with_options(*args: object, **given: object) -> Result:
            options = {self._old_names.get(name, name): value for name, value in given.items()}
            for name in options:
                if name not in names and name not in taken:
                    raise TypeError(f"{called}(): {unknown(name, names)}")
            return method(*args, **options)

        signature = own.replace(parameters=[*positional, *self._parameters])
        with_options.__signature__ = signature  # type: ignore[attr-defined]
        return with_options


KEYWORDS = Keywords(LocalOptions, OLD_NAMES)
