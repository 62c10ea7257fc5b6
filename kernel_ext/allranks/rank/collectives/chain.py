"""``--ordered``: each collective depends on the one before it, so that the order of evaluation is that of the calls.

The chain goes on over streams, groups, cells and differentiation. A second thread, whose order the ranks cannot share,
is refused. What ``mx.compile``, ``mx.vmap`` and the other closed transformations trace cannot depend on anything
outside: it is evaluated when they return, in MLX's own order, and counted.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any

from .invalid import arrays_in
from .pending import is_pending
from .transforms import TRACING

UNCHAINED = frozenset({"recv", "recv_like"})
"""They depend on no array: `recv_like` takes the shape and dtype of one (mlx 0.32.4)."""
TWO_THREADS = (
    "{op} was called in thread {thread}, while {other}, which called collectives in this cell, is still running: "
    "--ordered cannot order two threads alike on all ranks. Call all collectives of a cell in one thread"
)
WOULD_WAIT = (
    "{op} is on another stream than the collective before it, and would have to wait for that one, which other "
    "ranks may not have evaluated yet: under --check strict, evaluate that one first, on all ranks (mx.eval)"
)


class Chain:
    """The newest collective, on which the next one is to depend."""

    def __init__(self) -> None:
        self.newest: Any = None
        self._stream: Any = None
        self.left_out = 0
        """Collectives of this cell that could not be chained, since they were called inside a transformation."""
        self.refusal: str | None = None
        """Why the cell has failed: two of its threads called collectives."""
        self._strict = False
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()

    def begin_cell(self, *, strict: bool) -> None:
        self.left_out, self.refusal, self._thread, self._strict = 0, None, None, strict

    def end_cell(self) -> None:
        """What is computed needs no place in the chain, and no memory."""
        if self.newest is not None and not is_pending(self.newest):
            self.newest = None

    def refuse_other_threads(self, op: str) -> None:
        """Raise RuntimeError in each thread once a second one has come: which came first may differ between ranks."""
        __tracebackhide__ = True
        thread = threading.current_thread()
        with self._lock:
            if self._thread is None or not self._thread.is_alive():
                self._thread = thread
            if self.refusal is None and self._thread is not thread:
                self.refusal = TWO_THREADS.format(op=op, thread=thread.name, other=self._thread.name)
        if self.refusal is not None:
            raise RuntimeError(self.refusal)

    def add(
        self,
        mx: Any,
        op: str,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        result: Any,
        stream: Any,
    ) -> Any:
        """The call, made to depend on the one before it; `result` is without that.

        It is on `stream`, where there are several.
        """
        if TRACING.closed or (TRACING.depth and op in UNCHAINED):
            # What a transformation traces must not be mixed with arrays of another trace.
            self.leave_out(1)
            return result
        if self.newest is not None and op in UNCHAINED:
            if stream == self._stream:  # what is scheduled first is entered first
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
        """So many collectives were called inside a transformation."""
        self.left_out += count
        TRACING.unchained, TRACING.finish = True, self.evaluate

    def evaluate(self, result: Any) -> None:
        """What was called inside a transformation comes after what was called before it, and before what comes next."""
        import mlx.core as mx

        __tracebackhide__ = True
        before, self.newest = self.newest, None
        if before is not None:
            mx.eval(before)
        mx.eval(list(arrays_in(result)))


def subject_of(mx: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """The array that a collective works on: what MLX makes of a number or of an array of numpy."""
    subject = args[0] if args else kwargs["x"]
    return subject if type(subject) is mx.array else mx.array(subject)
