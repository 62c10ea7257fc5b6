"""Calls a function, from the notebook or from a module, in a cell on this rank.

The function and its arguments arrive over the lifeline before the cell (`CalledFunctions.keep`). The cell's code
(`CODE`) only calls `carry_out` or `carry_out_async`. While the function runs, it counts as the cell's code: line
numbers refer to the function's file, the function's globals distinguish the user's frames from a library's, and
tracebacks leave out the frames that called the function.
"""

from __future__ import annotations

import linecache
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from allranks.messages.cell_options import CallKind
from allranks.messages.value_types import Namespace
from allranks.messages.wire import Buffer
from allranks.pickling import pickle_values
from allranks.rank.main_thread.running_cell import RunningCell
from allranks.rank.world.given_names import GivenNames

CAME = "__allranks_came__"
"""Attribute that marks functions and classes that were sent with a call."""
GIVEN = "__allranks_given__"
"""Key, in the globals of a user's module, of the set of names that allranks has assigned there."""

Call = tuple[Callable[..., Any], Sequence[object], Mapping[str, object]]


class CalledFunctions:
    """Holds the functions that were sent to this rank; each process has one `CalledFunctions`."""

    current: CalledFunctions

    def __init__(self, cell: RunningCell, user_ns: Namespace, given: GivenNames, shell: Callable[[], Any]) -> None:
        self._cell, self._user_ns, self._given, self._shell = cell, user_ns, given, shell
        self._sent: dict[int, Sequence[Buffer]] = {}
        self._brought: Namespace = {}
        """The functions and classes that were sent for use by called functions, by name in the user's namespace."""
        self.returned: list[object] | None = None
        """A list with the return value of the cell's function; None until it returns, or if the cell calls none."""
        CalledFunctions.current = self

    def keep(self, number: int, buffers: Sequence[Buffer]) -> None:
        """Keep the function that cell `number` is to call; the cell itself arrives later."""
        self._sent[number] = buffers

    def begin_cell(self, number: int) -> None:
        """Reset `returned`, and discard functions that were sent for earlier cells that never arrived."""
        self.returned = None
        for sent in [sent for sent in self._sent if sent < number]:
            self._sent.pop(sent, None)

    def left_here(self, value: object) -> str:
        """Keep the function's result, which cannot be sent, in a variable; return a sentence that names the variable.

        Does nothing and returns "" if the cell has called no function.
        """
        if self.returned is None:
            return ""
        hook = self._shell().displayhook
        hook.update_user_ns(value)
        # The user's own variable `_`, such as that of a loop, is left alone.
        own = self._user_ns.get("_") is not value
        return f" It was kept on the rank as the variable _{hook.prompt_count if own else ''}."

    def loaded(self) -> Call:
        """Load the cell's function and its arguments; the function's file becomes the cell's. Raises NotPicklable."""
        try:
            sources, *buffers = self._sent.pop(self._cell.number)
            (function, args, kwargs), companions = pickle_values.unpack_call(buffers)
        except Exception as error:
            raise pickle_values.NotPicklable(
                f"the function or its arguments could not be loaded on this rank ({type(error).__name__}: {error}). "
                "Modules that they come from must be importable there."
            ) from None
        self._bring(companions)
        places = {file: self._place(file, *about) for file, about in pickle_values.unpack([sources]).items()}
        plain = pickle_values.python_function(function)
        if plain is not None:
            file = plain.__code__.co_filename
            self._cell.enter(file, places.get(file, os.path.basename(file)), plain.__globals__)
            self._give_names(plain.__globals__)
        return function, args, kwargs

    def _bring(self, companions: Mapping[str, object]) -> None:
        """Bind, in the user's namespace, the names that a sent function uses; names that a cell has bound stay."""
        names = self._user_ns
        for name, code in companions.items():
            if name not in names or _is_marked(names[name]) or names[name] is self._brought.get(name):
                names[name] = self._brought[name] = code
                if getattr(code, "__module__", None) == "__main__":  # a library's code is shared with other code
                    _mark(code)

    def _place(self, file: str, text: str, count: int | None) -> str:
        """Return the name of `file` in messages; add its `text` to Python's `linecache` if this host lacks the file.

        `count` is the number of a notebook's cell if `file` stands for the code of that cell, and None otherwise.
        """
        if text and not linecache.getlines(file):
            linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
        if count is None:
            return os.path.basename(file)
        self._shell().compile._filename_map[file] = count  # IPython's tracebacks (9.18) look it up here
        return f"In[{count}]"

    def _give_names(self, names: Namespace) -> None:
        """Add the given names, such as ``world``, to the globals of a function's module; the module's names stay."""
        if names is self._user_ns:
            return
        given = names.setdefault(GIVEN, set())
        for name, value in self._given.all().items():
            if name not in names or name in given:
                names[name] = value
                given.add(name)


def _mark(value: object) -> None:
    """Mark a function or class as sent with a call. The mark stays when a restarted rank restores the object."""
    with suppress(AttributeError, TypeError):
        setattr(value, CAME, True)


def _is_marked(value: object) -> bool:
    return CAME in getattr(value, "__dict__", ())  # a class that a cell derives from a marked one is the cell's own


def carry_out() -> None:
    """Call the function of the running cell."""
    __tracebackhide__ = True
    function, args, kwargs = CalledFunctions.current.loaded()
    CalledFunctions.current.returned = [function(*args, **kwargs)]


async def carry_out_async() -> None:
    """Call and await the coroutine function of the running cell."""
    __tracebackhide__ = True
    function, args, kwargs = CalledFunctions.current.loaded()
    CalledFunctions.current.returned = [await function(*args, **kwargs)]


CODE: Mapping[CallKind, str] = {
    "function": f'__import__("{__name__}", fromlist="*").{carry_out.__name__}()',
    "coroutine function": f'await __import__("{__name__}", fromlist="*").{carry_out_async.__name__}()',
}
"""By kind of call, the code of a cell that calls the function that was sent for it."""
