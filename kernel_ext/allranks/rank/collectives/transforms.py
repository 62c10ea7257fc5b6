"""Know when code runs inside ``mx.grad``, ``mx.vmap`` and their like: arrays there are tracers.

MLX does not tell a tracer from an array, so the functions that trace are wrapped once, when the rank starts.
"""

from __future__ import annotations

import functools
import types
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
            setattr(mx, name, _noticed_result(name, transform))
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


def _noticed_result(name: str, transform: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(transform, updated=())
    def make(*args: Any, **kwargs: Any) -> Any:
        return _Transformed(name, transform(*args, **kwargs), args, kwargs)

    return make


class _Transformed:
    """What a transformation returned, and what it was made of.

    MLX's own function passes for the one it was made of when it is pickled: a gradient became the function itself, in
    another process, and nobody was told (0.32.4).
    """

    def __init__(self, name: str, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        functools.update_wrapper(self, function, updated=())
        self._made = (name, args, kwargs)
        self._call = _noticed(function)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        __tracebackhide__ = True
        return self._call(*args, **kwargs)

    def __reduce__(self) -> Any:
        return _transform_again, self._made

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        return self if instance is None else types.MethodType(self, instance)


def _transform_again(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    import mlx.core as mx

    return getattr(mx, name)(*args, **kwargs)


def noticed(function: Callable[..., Any]) -> Callable[..., Any]:
    """`function`, counted as tracing while it runs."""
    return _noticed(function)
