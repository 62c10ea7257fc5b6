"""``--ordered`` and ``--check strict``: each collective depends on the one before it, so call order is kept.

The chain spans streams, groups, cells and differentiation. Calls in other threads are refused, since their order
may differ between ranks. Collectives that ``mx.compile``, ``mx.vmap`` and the other closed transformations trace cannot
depend on arrays outside. Such collectives are counted, and are evaluated in MLX's own order when the call of the
transformed function returns.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import TYPE_CHECKING, Any

from allranks.messages.value_types import Args, Kwargs
from allranks.rank.arrays.invalid_arrays import arrays_in
from allranks.rank.arrays.pending_arrays import is_pending
from allranks.rank.functions.transforms import TRACING

if TYPE_CHECKING:
    from mlx.core import Stream
    from mlx.core import array as Array

UNCHAINED = frozenset({"recv", "recv_like"})
"""Operations that depend on no array; `recv_like` takes only the shape and dtype of its array (mlx 0.32.4)."""
OTHER_THREAD = (
    "{op} was called in thread {thread}: --ordered and --check strict cannot order threads alike on all ranks. "
    "Call all collectives of a cell in the main thread"
)
WOULD_WAIT = (
    "{op} is on another stream than the collective before it, and would have to wait for that one, which other "
    "ranks may not have evaluated yet: under --check strict, evaluate that one first, on all ranks (mx.eval)"
)


class Chain:
    """The newest collective, on which the next one is to depend."""

    def __init__(self) -> None:
        self.newest: Array | None = None
        self._stream: Stream | None = None
        self.left_out = 0
        """Number of collectives of this cell that could not be chained, since a transformation traced them."""
        self.refusal: str | None = None
        """Why the cell fails: a thread other than the main thread called a collective. None if none did."""
        self._strict = False

    def begin_cell(self, *, strict: bool) -> None:
        self.left_out, self.refusal, self._strict = 0, None, strict

    def end_cell(self) -> None:
        """Drop the newest collective unless it is pending: nothing has to wait for it, and it takes memory."""
        if self.newest is not None and not is_pending(self.newest):
            self.newest = None

    def refuse_other_threads(self, op: str) -> None:
        """Raise RuntimeError in all threads but the main one; the cell fails too, since the error may go unseen.

        The order of two threads may differ between ranks, and only the main thread can be unblocked.
        """
        __tracebackhide__ = True
        if (thread := threading.current_thread()) is not threading.main_thread():
            self.refusal = OTHER_THREAD.format(op=op, thread=thread.name)
            raise RuntimeError(self.refusal)

    def add(
        self,
        mx: ModuleType,
        op: str,
        function: Callable[..., Array],
        args: Args,
        kwargs: Kwargs,
        result: Array,
        stream: Stream | None,
    ) -> Array:
        """Return the result of a collective, with a dependency on the previous collective.

        `result` is the result without that dependency. It is returned as it is for a receive, which can have none (the
        previous collective is evaluated first), and in a closed transformation. `stream` is the stream of the call, if
        the code has several.
        Raises RuntimeError (`WOULD_WAIT`) if a receive under ``--check strict`` would have to wait for another stream.
        """
        if TRACING.closed or (TRACING.depth and op in UNCHAINED):
            # The arrays of one trace must not depend on arrays of another.
            self.leave_out(1)
            return result
        if self.newest is not None and op in UNCHAINED:
            if stream == self._stream:  # a stream enters collectives in the order in which they are scheduled
                mx.async_eval(self.newest)
            elif self._strict and is_pending(self.newest):
                raise RuntimeError(WOULD_WAIT.format(op=op))
            else:
                mx.eval(self.newest)
        elif self.newest is not None:
            subject = mx.depends(subject_of(mx, args, kwargs), self.newest)
            result = function(subject, *args[1:], **{name: kwargs[name] for name in kwargs if name != "x"})
        self.newest, self._stream = result, stream
        return result

    def leave_out(self, count: int) -> None:
        """Count collectives as not chained, and have the enclosing transformation's result evaluated at its end."""
        self.left_out += count
        TRACING.unchained, TRACING.finish = True, self.evaluate

    def evaluate(self, result: object) -> None:
        """Evaluate the `result` of a transformation now: after the chain so far, and before the next collective."""
        import mlx.core as mx

        __tracebackhide__ = True
        before, self.newest = self.newest, None
        if before is not None:
            mx.eval(before)
        mx.eval(list(arrays_in(result)))


def subject_of(mx: ModuleType, args: Args, kwargs: Mapping[str, Any]) -> Any:
    """The array that a collective works on; a number or a NumPy array is converted, as MLX does."""
    subject = args[0] if args else kwargs["x"]
    return subject if type(subject) is mx.array else mx.array(subject)
