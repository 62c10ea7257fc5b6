"""Know when code runs inside ``mx.grad``, ``mx.vmap`` and their like: arrays there are tracers.

MLX does not tell a tracer from an array, so the functions that trace are wrapped once, when the rank starts.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .replaced import Made, is_replaced, leave_out_our_frames, replaced

NAMES = ("grad", "value_and_grad", "vmap", "checkpoint")
"""They take a function and return one."""
DIRECT = ("vjp", "jvp")
"""They take a function and call it."""


class _Tracing:
    """How many calls that may trace are under way."""

    __slots__ = ("depth",)

    def __init__(self) -> None:
        self.depth = 0


TRACING = _Tracing()
"""This process's."""


def inside() -> bool:
    """Whether a transformation is tracing now."""
    return TRACING.depth > 0


def install(mx: Any) -> None:
    """Replace the transformations; harmless the second time."""
    for name in (*NAMES, *DIRECT):
        transform = getattr(mx, name, None)
        if transform is not None and not is_replaced(transform):
            call = noticed(transform) if name in DIRECT else _with_noticed_result(name, transform)
            setattr(mx, name, replaced(transform, call))


def noticed(function: Callable[..., Any]) -> Callable[..., Any]:
    """`function`, counted as tracing while it runs."""

    def call(*args: Any, **kwargs: Any) -> Any:
        TRACING.depth += 1
        try:
            return function(*args, **kwargs)
        except BaseException as error:
            leave_out_our_frames(error)
            raise
        finally:
            TRACING.depth -= 1

    return call


def _with_noticed_result(name: str, transform: Callable[..., Any]) -> Callable[..., Any]:
    """A transformation whose results are pickled, by us, as what they were made of.

    MLX's own passes for the function it was made of: a gradient becomes that function in another process, without an
    error (0.32.4).
    """

    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            result = transform(*args, **kwargs)
        except BaseException as error:
            leave_out_our_frames(error)
            raise
        made: Made = (name, args, kwargs)
        return replaced(result, noticed(result), made)

    return call
