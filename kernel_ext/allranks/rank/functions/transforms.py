"""Detects when code runs inside ``mx.grad``, ``mx.vmap`` and similar transformations: arrays there are tracers.

MLX does not distinguish a tracer from an array, so the functions that trace are wrapped once, when the rank starts.
Reverse-mode differentiation builds the same graph as a plain call of the function, and accepts arrays from outside.
``mx.compile``, ``mx.vmap`` and the others do not: they are `closed`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import ModuleType

from .replaced import Made, is_replaced, leave_out_our_frames, replaced

NAMES = ("grad", "value_and_grad", "vmap", "checkpoint")
"""Transformations that take a function and return one."""
DIRECT = ("vjp", "jvp")
"""Transformations that take a function and call it."""
OPEN = frozenset({"grad", "value_and_grad", "vjp"})
"""Transformations that accept arrays from outside; the others are closed."""


class Tracing:
    """Counts the calls under way that may trace."""

    __slots__ = ("closed", "depth", "finish", "unchained")

    def __init__(self) -> None:
        self.depth = 0
        self.closed = 0
        """How many of the counted calls are calls of closed transformations."""
        self.unchained = False
        """Whether code in the counted calls has called collectives that could not be chained (see `ordered_chain`)."""
        self.finish: Callable[[object], None] = lambda result: None
        """Called with the `result` of the outermost counted call if `unchained`."""

    def call(
        self, function: Callable[..., object], args: tuple[object, ...], kwargs: Mapping[str, object], closed: bool
    ) -> object:
        """Call `function`, and count the call as tracing meanwhile."""
        self.depth += 1
        self.closed += closed
        try:
            result = function(*args, **kwargs)
        finally:
            self.depth -= 1
            self.closed -= closed
            unchained = self.unchained
            if not self.depth:
                self.unchained = False
        if unchained and not self.depth:
            self.finish(result)
        return result


TRACING = Tracing()
"""The counts of this process."""


def inside() -> bool:
    """Whether a transformation is tracing now."""
    return TRACING.depth > 0


def install(mx: ModuleType) -> None:
    """Replace the transformations in `NAMES` and `DIRECT`; `recompile` replaces ``mx.compile``. May be called again."""
    for name in (*NAMES, *DIRECT):
        transform = getattr(mx, name, None)
        if transform is not None and not is_replaced(transform):
            call = noticed(transform, name) if name in DIRECT else _with_noticed_result(name, transform)
            setattr(mx, name, replaced(transform, call))


def noticed(function: Callable[..., object], name: str) -> Callable[..., object]:
    """Wrap `function`, which is the transformation `name` or was made by it, so that its calls count as tracing."""
    closed = name not in OPEN

    def call(*args: object, **kwargs: object) -> object:
        try:
            return TRACING.call(function, args, kwargs, closed)
        except BaseException as error:
            leave_out_our_frames(error)
            raise

    return call


def _with_noticed_result(name: str, transform: Callable[..., Callable[..., object]]) -> Callable[..., object]:
    """Wrap a transformation so that calls of its results count as tracing, and results can be pickled correctly.

    Our code pickles a result as the call that made it. MLX's own result is pickled as the function from which it was
    made: in another process, a gradient becomes that function, without an error (0.32.4).
    """

    def call(*args: object, **kwargs: object) -> object:
        try:
            result = transform(*args, **kwargs)
        except BaseException as error:
            leave_out_our_frames(error)
            raise
        made: Made = (name, args, kwargs)
        return replaced(result, noticed(result, name), made)

    return call
