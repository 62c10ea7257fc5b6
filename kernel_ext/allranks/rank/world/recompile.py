"""``mx.compile`` that survives a re-formed world.

A compiled function keeps the group it was traced with: after a re-form it would raise once and then hang indefinitely
(seen on mlx 0.32.4). So `install` puts a callable in front of each compiled function; after `forget_traces`, the
callable compiles the function again. MLX still gets the user's own function, by whose ``id`` it finds traces: two
compilations of one function share their traces.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from allranks.rank.collectives.ledger import Ledger
from allranks.rank.collectives.record import Kind
from allranks.rank.functions.replaced import is_replaced, leave_out_our_frames, replaced
from allranks.rank.functions.transforms import TRACING

if TYPE_CHECKING:
    from mlx.core import Stream


class Generation:
    """Holds the ledger for all compiled functions of this process."""

    ledger: Ledger | None = None
    """Notes the collectives of compiled functions at each call: MLX calls the user's function only to trace it.

    None if none are to be noted.
    """


def install(mx: Any) -> None:
    """Replace ``mx.compile``, unless it is replaced already. Call this before user code or ``mlx.nn`` is imported."""
    if is_replaced(mx.compile):
        return
    compile_once = mx.compile

    def compile(*args: object, **kwargs: object) -> object:
        try:
            compiled = compile_once(*args, **kwargs)
        except BaseException as error:
            leave_out_our_frames(error)
            raise
        again = functools.partial(compile_once, *args, **kwargs)
        function = args[0] if args else kwargs["fun"]
        return replaced(compiled, _Compiled(again, _trace_of(function)).call, ("compile", args, kwargs))

    mx.compile = replaced(compile_once, compile)


class _Trace:
    """The last trace of a function that was compiled, perhaps several times."""

    def __init__(self) -> None:
        self.collectives: list[Kind] = []
        self.stream: Stream | None = None
        """The stream of the last of `collectives`."""


_traces: weakref.WeakValueDictionary[int, _Trace] = weakref.WeakValueDictionary()
"""The traces, by the ``id`` of the function, as in MLX. A `_Compiled` keeps the function and its trace alive."""
_living: weakref.WeakSet[_Compiled] = weakref.WeakSet()


def _trace_of(function: object) -> _Trace:
    return _traces.setdefault(id(function), _Trace())


def forget_traces() -> None:
    """Discard the functions compiled in the previous world, whose traces must not run in the world just joined.

    MLX forgets the traces of a function when an object that was compiled from it, and called, is deleted.
    """
    for compiled in list(_living):
        compiled.forget()


class _Compiled:
    __slots__ = ("__weakref__", "_compile", "_compiled", "_trace")

    def __init__(self, compile: Callable[[], Any], trace: _Trace) -> None:
        self._compile, self._compiled, self._trace = compile, compile(), trace
        _living.add(self)

    def forget(self) -> None:
        self._compiled = None
        self._trace.collectives = []

    def call(self, *args: object, **kwargs: object) -> object:
        try:
            return TRACING.call(self._call, args, kwargs, closed=True)
        except BaseException as error:
            leave_out_our_frames(error)
            raise

    def _call(self, *args: object, **kwargs: object) -> object:
        if self._compiled is None:
            self._compiled = self._compile()
        ledger, trace = Generation.ledger, self._trace
        if ledger is None:
            return self._compiled(*args, **kwargs)
        if trace.collectives:
            ledger.enter_again(trace.collectives, trace.stream)
        before = ledger.seq
        result = self._compiled(*args, **kwargs)
        if ledger.seq != before:
            trace.collectives = [call.kind for call in ledger.calls(before)]
            trace.stream = ledger.turns.stream
        elif trace.collectives:
            ledger.repeat(trace.collectives)
        return result
