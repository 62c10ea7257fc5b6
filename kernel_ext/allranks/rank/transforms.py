"""Know when code runs inside ``mx.grad``, ``mx.vmap`` and their like: arrays there are tracers.

MLX does not tell a tracer from an array, so the functions that trace are wrapped once, when the rank starts.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

NAMES = ("grad", "value_and_grad", "vmap", "checkpoint")
"""They take a function and return one."""
DIRECT = ("vjp", "jvp")
"""They take a function and call it."""

_depth = 0


def inside() -> bool:
    """Whether a transformation is tracing now."""
    return _depth > 0


def install(mx: Any) -> None:
    """Wrap the transformations; harmless the second time."""
    for name in NAMES:
        transform = getattr(mx, name, None)
        if transform is not None and not hasattr(transform, "__wrapped__"):
            setattr(mx, name, _noticed_result(transform))
    for name in DIRECT:
        transform = getattr(mx, name, None)
        if transform is not None and not hasattr(transform, "__wrapped__"):
            setattr(mx, name, _noticed(transform))


def _noticed(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function, updated=())
    def call(*args: Any, **kwargs: Any) -> Any:
        __tracebackhide__ = True
        global _depth
        _depth += 1
        try:
            return function(*args, **kwargs)
        finally:
            _depth -= 1

    return call


def _noticed_result(transform: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(transform, updated=())
    def make(*args: Any, **kwargs: Any) -> Any:
        return _noticed(transform(*args, **kwargs))

    return make


def noticed(function: Callable[..., Any]) -> Callable[..., Any]:
    """`function`, counted as tracing while it runs."""
    return _noticed(function)
