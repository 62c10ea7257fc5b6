"""The ledger: a numbered record of every collective this rank's code asked for.

`install` puts a thin wrapper around each function of ``mx.distributed``. `nn.average_gradients` and the sharded layers
look the functions up when they are called, so theirs are recorded too. A call inside ``mx.compile`` is seen when the
function is traced, and repeated at each call of the compiled function (see `recompile`).
"""

from __future__ import annotations

import sys
import time
import weakref
import zlib
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from types import FrameType
from typing import Any

from allranks.messages.events import LedgerEntry

from . import poison
from .aborted import CollectiveAborted
from .limits import Limits
from .order import EvaluationOrder
from .record import NOWHERE, Place, Record, record_of
from .replaced import is_replaced, leave_out_our_frames, original, replaced
from .streams import Turns
from .trace import TRACE
from .transforms import TRACING

COLLECTIVE = frozenset({"all_sum", "all_max", "all_min", "all_gather", "sum_scatter"})
"""What all ranks of a group must enter alike; `send` and `recv` differ by nature."""
RESIZING = frozenset({"all_gather", "sum_scatter"})
"""What gives an array of another shape than it was given."""
OPERATIONS = (*sorted(COLLECTIVE), "send", "recv", "recv_like")
KEEP = 16_000
"""Records: a quarter of a second of the fastest collectives there are (1 KiB in shared memory)."""
TIMED = 4_000
"""Timed calls kept of a cell: its last ones."""


class Ledger:
    """The last `KEEP` calls; `seq` counts them all, from 1, and goes on through every world this rank joins."""

    def __init__(self) -> None:
        self.seq = 0
        self.number = 0
        """How many of them all ranks share: equal numbers mean the same collective on every rank."""
        self.refuse: str | None = None
        """Why no collective may be entered: the world is broken. A third one on a broken ring never returns."""
        self.refused_in_cell = False
        self.in_world = True
        """False between two worlds, where MLX would try to form one by itself."""
        self.guard: Callable[[Record], None] | None = None
        """Called before each shared collective; it raises where the ranks disagree (``check=strict``)."""
        self.ordered = False
        """Chain each collective to the one before, so that evaluation order cannot swap results."""
        self.unordered = 0
        """Collectives of this cell that could not be chained, since they were asked for inside a transformation."""
        self.timing = False
        """Time each call by evaluating it on the spot: exact, at the cost of what else could be computed meanwhile."""
        self.timed: deque[tuple[str, int, float]] = deque(maxlen=TIMED)
        """Op, bytes and seconds of this cell's timed calls that all ranks share."""
        self.order = EvaluationOrder(self)
        self.invalid, self.aborted = self.order.invalid, self.order.aborted
        self.limits = Limits()
        self.turns = Turns()
        self._newest: Any = None
        self._size = 1
        self._records: deque[tuple[Any, ...]] = deque(maxlen=KEEP)
        self.user_ns: dict[str, Any] | None = None
        """The globals by which the user's frames are known."""

    def install(self, mx: Any, user_ns: dict[str, Any]) -> None:
        """Record the calls of ``mx.distributed``; `user_ns` tells the user's frames from a library's."""
        self.user_ns = user_ns
        for op in OPERATIONS:
            function = getattr(mx.distributed, op, None)
            if function is not None and not is_replaced(function):
                setattr(mx.distributed, op, replaced(function, self._recorded(mx, op, function)))
        self.order.install(mx)
        self.limits.install(mx)
        self.turns.install(mx)

    def enter_world(self, number: int, size: int) -> None:
        """A new world begins: all its ranks count from `number` on, so that equal numbers mean the same collective."""
        self.seq += max(0, number - self.number)
        self.number, self._size, self.refuse, self._newest, self.in_world = number, size, None, None, True
        self.refused_in_cell, self.order.returned = False, self.seq
        self.turns.forget()

    def begin_cell(
        self,
        *,
        guard: Callable[[Record], None] | None,
        ordered: bool,
        watch_order: bool = False,
        timing: bool = False,
        after: int | None = None,
    ) -> None:
        """Set how this cell's collectives are treated; those up to the call `after` (all so far) are done with."""
        self.timing = timing
        self.timed.clear()
        self.guard, self.ordered, self._newest, self.unordered = guard, ordered, None, 0
        self.refuse_in_cell(None)
        after = self.seq if after is None else after
        if not self.invalid.asked:
            self.order.returned = max(self.order.returned, after)
        self.order.begin(watching=watch_order and not ordered, after=after)

    def last(self) -> Record | None:
        """The newest record, with sizes worked out."""
        return record_of(*self._records[-1]) if self._records else None

    def shared_since(self, number: int) -> list[Record]:
        """The records of what all ranks share after that `number`, oldest first, as far as they are kept."""
        missing = self.number - number
        return [record_of(*each) for each in list(self._records) if each[5] and each[6] > number] if missing else []

    def entries(self, seq: int) -> list[tuple[Any, ...]]:
        """The raw records after call `seq`, oldest first, as far as they are kept; `repeat` takes them."""
        records = list(self._records)
        # Numbers grow, but jump where a world was joined: look from the end.
        first = len(records)
        while first and records[first - 1][0] > seq:
            first -= 1
        return records[first:]

    @property
    def keep(self) -> int:
        """How many records are kept."""
        return self._records.maxlen or KEEP

    def repeat(self, entries: Sequence[tuple[Any, ...]]) -> None:
        """A compiled function is called again, and with it these collectives of its trace."""
        __tracebackhide__ = True
        where = self._user_place()
        for _seq, op, shape, dtype, _where, shared, _number, peer in entries:
            self.seq += 1
            self.number += shared
            self._records.append((self.seq, op, shape, dtype, where, shared, self.number, peer))
            if TRACE.active:
                TRACE.collective(self._records[-1], time.perf_counter())
            if shared and self.guard is not None:
                self.guard(record_of(*self._records[-1]))

    def take_turn(self, stream: Any) -> None:
        """A compiled function is called again, whose collectives are on this stream (None: the default one)."""
        if self.turns.several:
            import mlx.core as mx

            self.turns.take(mx, stream)

    def refuse_in_cell(self, because: str | None) -> None:
        """Let the running cell enter no more collectives, though the world stays whole; None: that cell is over."""
        if self.refuse is None or self.refused_in_cell:
            self.refuse, self.refused_in_cell = because, because is not None

    def in_flight(self) -> list[Record]:
        """Collectives that may be on their way or are left to be evaluated, oldest first; some may be complete."""
        after, left = self.order.returned, {number for number, _ in list(self.order.pending)}
        entries = self.entries(min([after, *(number - 1 for number in left)]))
        found = [record_of(*entry) for entry in entries if entry[0] > after or entry[0] in left]
        # Those inside mx.grad, mx.vmap and mx.compile, of sub-groups, and with the check off are not tracked.
        return found or [record_of(*entry) for entry in self.entries(self.order.settled)]

    def raise_if_refused(self) -> None:
        """Raise CollectiveAborted where no collective may be entered."""
        __tracebackhide__ = True
        if self.refuse is not None:
            raise CollectiveAborted(self.refuse)

    def _user_place(self) -> Place:
        """The user's innermost frame."""
        frame: FrameType | None = sys._getframe(1)
        while frame is not None and frame.f_globals is not self.user_ns:
            frame = frame.f_back
        return (frame.f_code, frame.f_lasti) if frame is not None else NOWHERE

    def fingerprint(self, number: int) -> tuple[int, int]:
        """How many shared collectives came after that `number`, and a checksum of their ops, shapes and dtypes."""
        shared = self.shared_since(number)
        if not shared:
            return 0, 0
        text = repr([(record.op, record.shape, record.dtype) for record in shared] + self.swapped(number))
        return len(shared), zlib.crc32(text.encode())

    def swapped(self, number: int) -> list[tuple[int, int]]:
        """Which collectives were evaluated before which older ones, counted from that `number`."""
        swapped = self.order.swapped
        numbers = {each[0]: each[6] - number for each in list(self._records)} if swapped else {}
        return [(numbers[late], numbers[early]) for late, early in swapped if late in numbers and early in numbers]

    def settled(self) -> int:
        """All shared collectives up to this number have been evaluated, for all that is known."""
        after = self.entries(self.order.settled)
        dropped = after[0][0] - self.order.settled - 1 if after else 0
        return self.number - dropped - len([each for each in after if each[5]])

    def replay(self, entries: Sequence[LedgerEntry]) -> None:
        """Enter these reductions and gathers (of another rank's ledger) with `poison.array`, and drop the results.

        What a ``send`` or ``recv`` wants from whom cannot be made up.
        """
        import mlx.core as mx

        self.begin_cell(guard=None, ordered=False)
        for each in entries:
            if each.op not in COLLECTIVE:
                raise RuntimeError(f"cannot enter a {each.op} on behalf of another rank")
            mx.eval(getattr(mx.distributed, each.op)(poison.array(mx, each.op, each.shape, each.dtype)))

    def _recorded(self, mx: Any, op: str, function: Callable[..., Any]) -> Callable[..., Any]:
        records, shared_op, order, pending = self._records, op in COLLECTIVE, self.order, self.order.pending
        caller, reference, turns = sys._getframe, weakref.ref, self.turns
        limits, checks, lacking = self.limits, self.limits.checks, self.limits.dtypes
        alike = op not in RESIZING

        def call(*args: Any, **kwargs: Any) -> Any:
            # A collective in shared memory takes 15 microseconds: whatever can be worked out later is only noted here.
            try:
                if self.refuse is not None:
                    self._refuse(function, args, kwargs)
                # First, so that MLX refuses wrong arguments in its own words. Nothing is entered before an evaluation.
                result = function(*args, **kwargs) if kwargs else function(*args)
                # Plain facts of a pending array: reading them evaluates nothing.
                described = result if alike else _subject(mx, args, kwargs)
                shape, dtype = described.shape, described.dtype
                if op in checks:
                    checks[op](args, kwargs)
                if op in lacking and dtype in lacking[op]:
                    limits.refuse_dtype(op, dtype, kwargs)
                shared, peer = shared_op, None
                if not shared_op:
                    peer = self._peer(args, kwargs)
                elif kwargs:
                    group = kwargs.get("group")
                    shared = group is None or group.size() == self._size
                self.seq = seq = self.seq + 1
                if shared:
                    self.number += 1
                frame: FrameType | None = caller(1)
                user_ns = self.user_ns
                while frame is not None and frame.f_globals is not user_ns:
                    frame = frame.f_back
                where = (frame.f_code, frame.f_lasti) if frame is not None else NOWHERE
                records.append((seq, op, shape, dtype, where, shared, self.number, peer))
                if shared and self.guard is not None:
                    self.guard(record_of(*records[-1]))
                if turns.several:
                    turns.take(mx, kwargs.get("stream"))
                if self.timing and shared and not TRACING.depth:
                    return self._timed(mx, function, args, kwargs)
                if TRACE.active:
                    TRACE.collective(records[-1], time.perf_counter())
                if self.ordered:
                    return self._chained(mx, op, function, args, kwargs, result)
                if shared and order.watching and not TRACING.depth:
                    pending.append((seq, reference(result)))
                return result
            except BaseException as error:
                leave_out_our_frames(error)
                raise

        return call

    def _peer(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> int | None:
        """The rank that a ``send`` or ``recv`` is with, its last argument; None in a sub-group, which counts anew."""
        group = kwargs.get("group")
        if group is not None and group.size() != self._size:
            return None
        return int(kwargs.get("dst", kwargs.get("src", args[-1] if args else None)))

    def _refuse(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Raise CollectiveAborted, or what MLX raises for these arguments."""
        if self.in_world:
            function(*args, **kwargs)
        self.raise_if_refused()

    def _timed(self, mx: Any, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The call, evaluated at once; what it works on is computed before the clock starts."""
        evaluate, subject = original(mx.eval), _subject(mx, args, kwargs)
        record, asked = self._records[-1], time.perf_counter()
        evaluate(subject)
        began = time.perf_counter()
        traced = TRACE.collective(record, asked, began)
        result = function(*args, **kwargs)
        evaluate(result)
        ended = time.perf_counter()
        if traced is not None:
            traced[3] = ended
        self.timed.append((record[1], subject.nbytes, ended - began))
        return result

    def _chained(
        self, mx: Any, op: str, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], result: Any
    ) -> Any:
        """The call, made to depend on the one before it; `result` is without that."""
        if TRACING.depth:
            # What a transformation traces must not be mixed with arrays of another trace.
            self.unordered += 1
            return result
        if self._newest is not None and op != "recv":
            subject = mx.depends(_subject(mx, args, kwargs), self._newest)
            result = function(subject, *args[1:], **{name: kwargs[name] for name in kwargs if name != "x"})
        self._newest = result
        return result


def _subject(mx: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """The array that a collective works on: what MLX makes of a number or of an array of numpy."""
    subject = args[0] if args else kwargs["x"]
    return subject if type(subject) is mx.array else mx.array(subject)
