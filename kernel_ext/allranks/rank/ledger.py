"""The ledger: a numbered record of every collective this rank's code asked for.

`install` puts a thin wrapper around each function of ``mx.distributed``. `nn.average_gradients` and the sharded layers
look the functions up when they are called, so theirs are recorded too. A call inside ``mx.compile`` is seen once, when
the function is traced.
"""

from __future__ import annotations

import functools
import sys
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

OPERATIONS = ("all_sum", "all_max", "all_min", "all_gather", "sum_scatter", "send", "recv", "recv_like")


class Record(NamedTuple):
    seq: int
    op: str
    shape: tuple[int, ...]
    dtype: str
    nbytes: int
    file: str | None
    line: int | None


class Ledger:
    """The last `keep` collectives; `seq` counts them all, from 1, since the rank started."""

    def __init__(self, keep: int = 1000) -> None:
        self.seq = 0
        self.refuse: str | None = None
        """Why no collective may be entered: the world is broken. A third one on a broken ring would hang for ever."""
        self._records: deque[tuple[Any, ...]] = deque(maxlen=keep)
        self._user_ns: dict[str, Any] | None = None

    def install(self, distributed: Any, user_ns: dict[str, Any]) -> None:
        """Record the calls of ``mx.distributed``; `user_ns` tells the user's frames from a library's."""
        self._user_ns = user_ns
        for op in OPERATIONS:
            function = getattr(distributed, op, None)
            if function is not None and not hasattr(function, "__wrapped__"):
                setattr(distributed, op, self._recorded(op, function))

    def enter(self, seq: int) -> None:
        """A new world begins: all its ranks count from `seq` on, so that equal numbers mean the same collective."""
        self.seq, self.refuse = seq, None

    def last(self) -> Record | None:
        """The newest record, with sizes worked out."""
        return _record(*self._records[-1]) if self._records else None

    def since(self, seq: int) -> list[Record]:
        """The records after number `seq`, oldest first, as far as they are kept."""
        return [_record(*record) for record in list(self._records) if record[0] > seq]

    def replay(self, records: Sequence[Sequence[Any]]) -> None:
        """Enter these collectives (of another rank's ledger) with zeros; their results are thrown away.

        Reductions and gathers only: what a ``send`` or ``recv`` wants from whom cannot be made up.
        """
        import mlx.core as mx

        for _seq, op, shape, dtype, *_ in records:
            if op not in ("all_sum", "all_max", "all_min", "all_gather", "sum_scatter"):
                raise RuntimeError(f"a {op} cannot be entered in another rank's place")
            zeros = mx.zeros(shape, getattr(mx, dtype))
            mx.eval(getattr(mx.distributed, op)(zeros))

    def _recorded(self, op: str, function: Callable[..., Any]) -> Callable[..., Any]:
        records = self._records

        @functools.wraps(function, updated=())
        def call(*args: Any, **kwargs: Any) -> Any:
            __tracebackhide__ = True
            if self.refuse is not None:
                raise RuntimeError(self.refuse)
            self.seq = seq = self.seq + 1
            frame = sys._getframe(1)
            user_ns = self._user_ns
            while frame is not None and frame.f_globals is not user_ns:
                frame = frame.f_back  # type: ignore[assignment]
            subject = args[0] if args else kwargs.get("x")
            where = (frame.f_code.co_filename, frame.f_lineno) if frame is not None else (None, None)
            # Shape and dtype are plain facts of a pending array: reading them evaluates nothing.
            shape = getattr(subject, "shape", subject)
            dtype = getattr(subject, "dtype", args[1] if len(args) > 1 else kwargs.get("dtype"))
            records.append((seq, op, shape, dtype, where))
            return function(*args, **kwargs)

        return call


def _record(seq: int, op: str, shape: Any, dtype: Any, where: tuple[str | None, int | None]) -> Record:
    sizes = tuple(shape) if isinstance(shape, (tuple, list)) else ()
    count = 1
    for size in sizes:
        count *= size
    name = str(dtype).removeprefix("mlx.core.")
    return Record(seq, op, sizes, name, count * getattr(dtype, "size", 0), *where)
