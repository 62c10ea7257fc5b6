"""Functions of the notebook or of a module, called on the ranks: each call runs as a cell."""

from __future__ import annotations

import asyncio
import contextvars
import functools
import inspect
import linecache
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, ParamSpec, TypeVar

from allranks.errors import CannotTravel, CellFailed, CellInterrupted, RemoteError, UsageError
from allranks.head.state.code_constants import LONGEST, Constant
from allranks.messages.cell_options import CallKind
from allranks.messages.wire import Buffer
from allranks.notebook.ipython_shell import running_shell
from allranks.pickling import pickle_values

from .option_keywords import local_options

if TYPE_CHECKING:
    from .cell import Cell
    from .cell_result import CellResult

Arguments = ParamSpec("Arguments")
Returned = TypeVar("Returned")

AWAKE_EVERY = 0.2
"""Seconds between two turns of the event loop while a cell is awaited: ipykernel (7.4) notices the stop button at the
next turn, and nothing else may cause one."""


@dataclass(frozen=True)
class PackedCall:
    """A function with its arguments, packed for a cell."""

    kind: CallKind
    text: str
    """The function's source, or ``name(...)`` if there is none; it serves as the cell's code."""
    names: tuple[str, ...]
    """Global names that the function uses."""
    buffers: list[Buffer]
    """The function and its arguments, packed."""
    arguments: Mapping[str, Constant]
    """Arguments that are numbers, booleans or short text, by parameter name, or ``name.key`` if they are in a dict."""


class AppliedFunctions:
    """Calls functions on the ranks, in cells with the options given to `Cluster.options`.

    A function that is defined in the notebook (or in the script itself) looks up global names among the variables of
    the rank, as a cell does: ``mx``, ``world``, ``rank``, ``size``, ``log``, and what cells and `push` have set there.
    Functions, classes and modules that it uses are sent with it, unless a cell has defined that name on the rank; pass
    other variables of the notebook as arguments. A function of a module uses its module's globals, to which ``mx``,
    ``world``, ``rank``, ``size`` and ``log`` are added if the module does not define them. Arguments and returned
    values are sent as with `push` and `pull`: arrays as raw bytes.
    """

    def __init__(
        self,
        begin: Callable[..., Cell],
        shown: Callable[[Sequence[int] | int | None, bool], dict[str, object]],
        options: Mapping[str, object],
    ) -> None:
        """`begin` sends a cell. `shown` returns the options with which a cell is shown in the notebook, from the option
        ``ranks`` and whether the notebook's cell waits for it; empty outside a notebook."""
        self._begin, self._shown, self._options = begin, shown, dict(options)

    def begin(self, function: Callable[..., object], /, *args: object, **kwargs: object) -> Cell:
        """Call `function` without waiting; `Cell.finish` returns the result, with what was printed and raised.

        Raises UsageError if the function cannot be called on ranks, CannotTravel if it or an argument cannot be sent,
        NoAnswer if a rank does not answer, and what `Cluster.run` raises.
        """
        return self._begin(packed(function, args, kwargs), **self._options)

    def apply(self, function: Callable[..., Returned], /, *args: object, **kwargs: object) -> list[Returned]:
        """Call ``function(*args, **kwargs)`` on each rank, and return the values in rank order.

        In a notebook, what the function prints is shown. Raises CellFailed if the function raised: ``errors[rank]`` has
        the traceback on that rank. Raises CannotTravel if a returned value cannot be sent; and what `begin` raises.
        """
        return _returned(self._in_notebook(wait=True).begin(function, *args, **kwargs).finish(), function)

    async def apply_async(
        self, function: Callable[..., Returned], /, *args: object, **kwargs: object
    ) -> list[Returned]:
        """Same as `apply`, while other tasks of the event loop run. Cancelling it stops the cell, as Ctrl-C does."""
        calls = self._in_notebook(wait=False)
        return _returned(await finished(lambda: calls.begin(function, *args, **kwargs)), function)

    def remote(self, function: Callable[Arguments, Returned]) -> RemoteFunction[Arguments, Returned]:
        """Decorate a function so that calls to it run on the ranks and return what `apply` returns.

        ipyparallel and Ray use the same name. Options are given before ``remote``, so that they cannot be taken for the
        function's own arguments::

            @cluster.options(ranks=[0, 1], timeout=5).remote
            def mean(x): ...

            mean(x)  # [..., ...]
        """
        return RemoteFunction(self, function)

    def _in_notebook(self, *, wait: bool) -> AppliedFunctions:
        """A copy of this object whose cells show their output below the notebook's running cell, if there is one."""
        if "screen" in self._options:
            return self
        options = {**self._shown(local_options(**self._options).ranks, wait), **self._options}
        return AppliedFunctions(self._begin, self._shown, options)


class RemoteFunction(Generic[Arguments, Returned]):
    """A function whose calls run on the ranks (`AppliedFunctions.remote`); sent to a rank, it is the plain function."""

    def __init__(self, calls: AppliedFunctions, function: Callable[Arguments, Returned]) -> None:
        self._calls, self._function = calls, function
        functools.update_wrapper(self, function)

    def __call__(self, *args: Arguments.args, **kwargs: Arguments.kwargs) -> list[Returned]:
        return self._calls.apply(self._function, *args, **kwargs)

    async def call_async(self, *args: Arguments.args, **kwargs: Arguments.kwargs) -> list[Returned]:
        """Same as a call, but awaitable: see `AppliedFunctions.apply_async`."""
        return await self._calls.apply_async(self._function, *args, **kwargs)

    def __reduce__(self) -> tuple[object, ...]:
        return _itself, (self._function,)

    def __repr__(self) -> str:
        return f"<{self._function!r} on ranks>"


def _itself(function: Callable[..., object]) -> Callable[..., object]:
    return function


async def finished(begin: Callable[[], Cell]) -> CellResult:
    """Begin a cell in a thread and await its result; if the awaiting task is cancelled, the cell is stopped first."""
    cells: list[Cell] = []
    cancelled = False

    def follow() -> CellResult:
        cells.append(cell := begin())
        if cancelled:
            cell.stop()
        return cell.finish()

    # In this task's context, so that ipykernel shows output below the cell that awaits.
    context = contextvars.copy_context()
    following = asyncio.get_running_loop().run_in_executor(None, context.run, follow)
    try:
        while not following.done():
            await asyncio.wait([following], timeout=AWAKE_EVERY)
        return following.result()
    except asyncio.CancelledError:
        cancelled = True
        for cell in cells:
            cell.stop()
        with suppress(Exception, CellInterrupted):
            await following
        raise


def packed(function: object, args: Sequence[object], kwargs: Mapping[str, object]) -> PackedCall:
    """Pack a call for sending. Raises UsageError and CannotTravel."""
    plain = pickle_values.python_function(function)
    name = getattr(function, "__name__", None) or type(function).__name__
    if not callable(function):
        code = " Cluster.run takes code as a string." if isinstance(function, str) else ""
        raise UsageError(f"a {type(function).__name__} is not a function.{code}")
    if plain is not None and (inspect.isgeneratorfunction(plain) or inspect.isasyncgenfunction(plain)):
        raise UsageError(f"{name} is a generator function, and a generator cannot leave its rank: return a list.")
    given = {"mx", "world", "rank", "size", "log", *getattr(running_shell(), "user_ns_hidden", ())}
    try:
        buffers, files = pickle_values.pack_call((function, tuple(args), dict(kwargs)), without=given)
    except pickle_values.NotPicklable as whole:
        named = {name: function, **{f"argument {number} of {name}": value for number, value in enumerate(args, 1)}}
        named |= {f"argument {key} of {name}": value for key, value in kwargs.items()}
        for what, value in named.items():
            try:
                pickle_values.pack(value, for_rank=True)
            except pickle_values.NotPicklable as error:
                raise CannotTravel(f"{what}: {error}") from None
        raise CannotTravel(str(whole)) from None
    names = tuple(pickle_values.global_names(plain.__code__)) if plain is not None else ()
    kind: CallKind = "coroutine function" if inspect.iscoroutinefunction(plain) else "function"
    packed_call = [*pickle_values.pack(_sources(files)), *buffers]
    return PackedCall(kind, _text(plain, name), names, packed_call, _constants(function, args, kwargs))


def _constants(
    function: Callable[..., object], args: Sequence[object], kwargs: Mapping[str, object]
) -> dict[str, Constant]:
    """The arguments that are constants, by parameter name; constants in a dict are named ``name.key``."""
    try:
        bound = inspect.signature(function).bind(*args, **kwargs)
        bound.apply_defaults()
        given = dict(bound.arguments)
        for each in bound.signature.parameters.values():
            if each.kind is each.VAR_KEYWORD:
                given |= given.pop(each.name)
    except (TypeError, ValueError):  # a wrong call raises on the ranks; some functions have no signature
        given = dict(kwargs)
    for name, value in list(given.items()):
        if isinstance(value, dict):
            given |= {f"{name}.{key}": each for key, each in value.items() if isinstance(key, str)}
    return {name: value for name, value in given.items() if _is_constant(value)}


def _is_constant(value: object) -> bool:
    return len(value) <= LONGEST if isinstance(value, str) else isinstance(value, (bool, int, float))


def _sources(files: Iterable[str]) -> dict[str, tuple[str, int | None]]:
    """Map files that ranks may lack to their text, for tracebacks, and to their cell number in the notebook."""
    cells = getattr(getattr(running_shell(), "compile", None), "_filename_map", {})  # of IPython 9.18
    return {file: ("".join(linecache.getlines(file)), cells.get(file)) for file in files}


def _text(plain: types.FunctionType | None, name: str) -> str:
    try:
        return inspect.getsource(plain) if plain is not None else f"{name}(...)"
    except OSError:
        return f"{name}(...)"


def _returned(result: CellResult, function: Callable[..., Returned]) -> list[Returned]:
    """The value that each rank returned. Raises CellFailed and CannotTravel."""
    try:
        result.check()
    except CellFailed as failed:
        raise CellFailed(f"{failed}{_hint(failed.errors.values(), function)}", failed.errors) from None
    return [rank.value for rank in result.values()]


def _hint(errors: Iterable[RemoteError], function: object) -> str:
    """Advice on a variable of the notebook that the function lacks on the ranks; empty if there is none."""
    plain = pickle_values.python_function(function)
    here = plain.__globals__ if plain is not None and plain.__module__ == "__main__" else {}
    missing = [name for name in dict.fromkeys(error.missing_name for error in errors) if name in here]
    return (
        f". {missing[0]} is defined here and not on the ranks: pass it as an argument, or push it." if missing else ""
    )
