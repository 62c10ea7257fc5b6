"""A function of the notebook's or of a module, called on this rank by a cell.

The function and its arguments come down the lifeline before the cell (`Calls.keep`). The cell has no code of its own:
`CODE` calls `carry_out` and does nothing else. While the function runs, it takes the place of the cell's code: lines
are those of its own file, its globals tell the user's frames from a library's, and what it raises shows none of the
frames above it.
"""

from __future__ import annotations

import linecache
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from allranks.messages import values
from allranks.messages.cell_options import CallKind
from allranks.rank.main_thread.running_cell import RunningCell
from allranks.rank.world.given_names import GivenNames

CAME = "__allranks_came__"
"""Marks functions and classes that came with a call."""
GIVEN = "__allranks_given__"
"""Where a module's globals note which names were set in them here."""

Call = tuple[Callable[..., Any], Sequence[Any], Mapping[str, Any]]


class Calls:
    """The functions that this rank was sent; one in each process."""

    current: Calls

    def __init__(self, cell: RunningCell, user_ns: dict[str, Any], given: GivenNames, shell: Callable[[], Any]) -> None:
        self._cell, self._user_ns, self._given, self._shell = cell, user_ns, given, shell
        self._sent: dict[int, Sequence[Any]] = {}
        self._brought: dict[str, Any] = {}
        """What came with calls, by the names it was given."""
        self.returned: list[Any] | None = None
        """What the running cell's function returned, once it has; None for cells that call none."""
        Calls.current = self

    def keep(self, number: int, buffers: Sequence[Any]) -> None:
        """What cell `number` is to call; its code comes another way, and later."""
        self._sent[number] = buffers

    def begin_cell(self, number: int) -> None:
        """Discard what was sent for earlier cells, which never came."""
        self.returned = None
        for sent in [sent for sent in self._sent if sent < number]:
            self._sent.pop(sent, None)

    def left_here(self, value: Any) -> str:
        """What the running cell's function returned cannot be sent, and no variable has it; says where it is now."""
        if self.returned is None:
            return ""
        hook = self._shell().displayhook
        hook.update_user_ns(value)
        # A variable `_` of the user's own, as of a loop, is left alone.
        own = self._user_ns.get("_") is not value
        return f" It was kept on the rank as the variable _{hook.prompt_count if own else ''}."

    def loaded(self) -> Call:
        """What the running cell is to call. Raises CannotTravel."""
        try:
            sources, *buffers = self._sent.pop(self._cell.number)
            (function, args, kwargs), companions = values.unpack_call(buffers)
        except Exception as error:
            raise values.CannotTravel(
                f"the function or its arguments could not be loaded on this rank ({type(error).__name__}: {error}). "
                "Modules that they come from must be importable there."
            ) from None
        self._bring(companions)
        places = {file: self._place(file, *about) for file, about in values.unpack([sources]).items()}
        plain = values.python_function(function)
        if plain is not None:
            file = plain.__code__.co_filename
            self._cell.enter(file, places.get(file, os.path.basename(file)), plain.__globals__)
            self._give_names(plain.__globals__)
        return function, args, kwargs

    def _bring(self, companions: Mapping[str, Any]) -> None:
        """Define what a function uses, again where it came with an earlier call; what cells made of a name stays."""
        names = self._user_ns
        for name, code in companions.items():
            if name not in names or _is_marked(names[name]) or names[name] is self._brought.get(name):
                names[name] = self._brought[name] = code
                if getattr(code, "__module__", None) == "__main__":  # a library's are everybody's
                    _mark(code)

    def _place(self, file: str, text: str, count: int | None) -> str:
        """What a file is called where its lines are named; the text of one that is not here is put where Python looks.

        `count` is the number of the notebook's cell that is called so.
        """
        if text and not linecache.getlines(file):
            linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
        if count is None:
            return os.path.basename(file)
        self._shell().compile._filename_map[file] = count  # tracebacks of IPython (9.18) name it so
        return f"In[{count}]"

    def _give_names(self, names: dict[str, Any]) -> None:
        """A function that is not the notebook's has globals of its own: the names of a rank that it lacks are set."""
        if names is self._user_ns:
            return
        given = names.setdefault(GIVEN, set())
        for name, value in self._given.all().items():
            if name not in names or name in given:
                names[name] = value
                given.add(name)


def _mark(value: Any) -> None:
    """Note on a function or class that it came with a call; the note goes where the object goes, restarts included."""
    with suppress(AttributeError, TypeError):
        setattr(value, CAME, True)


def _is_marked(value: Any) -> bool:
    return CAME in getattr(value, "__dict__", ())  # a class that a cell derives from a marked one is the cell's own


def carry_out() -> None:
    """Call the function of the running cell."""
    __tracebackhide__ = True
    function, args, kwargs = Calls.current.loaded()
    Calls.current.returned = [function(*args, **kwargs)]


async def carry_out_async() -> None:
    """The same for a coroutine function."""
    __tracebackhide__ = True
    function, args, kwargs = Calls.current.loaded()
    Calls.current.returned = [await function(*args, **kwargs)]


CODE: Mapping[CallKind, str] = {
    "function": f'__import__("{__name__}", fromlist="*").{carry_out.__name__}()',
    "coroutine function": f'await __import__("{__name__}", fromlist="*").{carry_out_async.__name__}()',
}
"""The code of a cell that calls what it was sent."""
