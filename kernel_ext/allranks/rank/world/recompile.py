"""``mx.compile`` that survives a re-formed world.

A compiled function keeps the group it was traced with: after a re-form it would raise once and then hang indefinitely
(seen on mlx 0.32.4). So `install` puts a small callable in front, which compiles again when the world has changed; the
check costs 0.16 microseconds a call.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable
from typing import Any

from allranks.rank.collectives import transforms
from allranks.rank.collectives.ledger import Ledger


class Generation:
    """Counts the worlds this process has joined."""

    number = 0
    ledger: Ledger | None = None
    """Where the collectives of compiled functions are recorded at each call: MLX calls the wrappers at a trace only."""


def install(mx: Any) -> None:
    """Replace ``mx.compile``; harmless the second time. Call it before user code or ``mlx.nn`` is imported."""
    if isinstance(mx.compile, types.FunctionType):
        return
    compile_once = mx.compile

    @functools.wraps(compile_once, updated=())
    def compile(fun: Callable[..., Any], *args: Any, **kwargs: Any) -> _Compiled:
        traced = transforms.noticed(fun)
        return _Compiled(fun, functools.partial(compile_once, traced, *args, **kwargs))

    mx.compile = compile


class _Compiled:
    def __init__(self, function: Callable[..., Any], compile: functools.partial[Callable[..., Any]]) -> None:
        functools.update_wrapper(self, function, updated=())
        self._function = function
        self._compile, self._compiled = compile, compile()
        self._generation = Generation.number
        self._traced: list[tuple[Any, ...]] = []
        """The collectives of the last trace."""
        self._stream: Any = None
        """The stream of the last of them."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        __tracebackhide__ = True
        if self._generation != Generation.number:
            self._compiled, self._generation, self._traced = self._compile(), Generation.number, []
        ledger = Generation.ledger
        if ledger is None:
            return self._compiled(*args, **kwargs)
        if self._traced:
            ledger.raise_if_refused()
            ledger.take_turn(self._stream)
        before = ledger.seq
        result = self._compiled(*args, **kwargs)
        if ledger.seq != before:
            self._traced, self._stream = ledger.entries(before), ledger.turns.stream
        elif self._traced:
            ledger.repeat(self._traced)
        return result

    def __reduce__(self) -> Any:
        return _compile_again, (self._function, self._compile.args[1:], self._compile.keywords)

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        return self if instance is None else types.MethodType(self, instance)


def _compile_again(function: Callable[..., Any], args: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
    import mlx.core as mx

    return mx.compile(function, *args, **keywords)
