"""The ledger: a numbered record of every collective that this rank's code called.

`wrap_collectives` puts a thin wrapper around each operation of ``mx.distributed``. `nn.average_gradients` and the
sharded layers look the operations up at each call, so their collectives are recorded too. A collective in a function
that ``mx.compile`` compiles is recorded when MLX traces the function, and again at each later call of the function
(see `recompile`).
"""

from __future__ import annotations

import sys
import time
import zlib
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from itertools import takewhile
from typing import TYPE_CHECKING, Any

from allranks.messages.events import MOST_TIMED, LedgerEntry
from allranks.messages.value_types import Namespace
from allranks.rank.functions.refused_operations import RefusedOperations
from allranks.rank.functions.streams import StreamTurns

from . import poison
from .aborted import CollectiveAborted
from .evaluation_order import EvaluationOrder
from .ordered_chain import Chain
from .record import COLLECTIVE, NO_KIND, CallCount, Kind, LedgerCall, Record, record_of, records_of, user_place
from .trace import TRACE

if TYPE_CHECKING:
    from mlx.core import Stream
    from mlx.core.distributed import Group

KEEP = 16_000
"""Maximum number of calls kept: enough for 0.25 s of the fastest collectives (1 KiB in shared memory)."""
BETWEEN_WORLDS = "this rank has left its world and has not joined the next one"


class _Mode:
    """A setting that, unless None or False, makes collectives take the slow path (see `Ledger.slow`)."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = "_" + name

    def __get__(self, ledger: Ledger, owner: type | None = None) -> Any:
        return getattr(ledger, self._name)

    def __set__(self, ledger: Ledger, value: object) -> None:
        setattr(ledger, self._name, value)
        ledger.choose_path()


class Ledger(CallCount):
    """Keeps the last `KEEP` calls. `seq` numbers all calls from 1, and goes on counting in the next world."""

    refuse = _Mode()
    """Why no collective may be entered; None if collectives may be entered.

    In a broken world they may not: on a broken ring, the third collective never returns.
    """
    guard = _Mode()
    """Called with each shared collective before its evaluation; raises if the ranks disagree (``check=strict``)."""
    ordered = _Mode()
    """Whether each collective is chained to the previous one, so that evaluation order cannot swap results."""
    timing = _Mode()
    """Whether each shared collective is evaluated immediately, to time it, unless a transformation traces it.

    The times are exact, but nothing else runs meanwhile.
    """
    _refuse: str | None = None
    _guard: Callable[[Record], None] | None = None
    _ordered = _timing = False

    def __init__(self) -> None:
        super().__init__()
        self.slow = True
        """Whether collectives take the slow path, because noting them is not enough.

        True in any of the modes above, with several streams, after two threads have evaluated concurrently, if the
        backend lacks one of `COLLECTIVES`, and while the cell's first collectives are tracked.
        """
        self.refused_in_cell = False
        self.worlds = 0
        """Number of worlds that were entered."""
        self.in_world = True
        """False between two worlds, when MLX would form a world of this rank alone."""
        self.group: Group | None = None
        """The group of all ranks; None outside a world.

        The wrappers pass it to MLX in calls that give no group: MLX itself would look the group up only after the
        wrapper has checked whether collectives are refused.
        """
        self.timed: deque[tuple[str, int, float]] = deque(maxlen=MOST_TIMED)
        """Operation, bytes and seconds of the shared calls of this cell that were timed: the last `MOST_TIMED`."""
        self.order = EvaluationOrder(self, self.choose_path)
        self.invalid, self.aborted = self.order.invalid, self.order.aborted
        self.chain = Chain()
        self.limits = RefusedOperations(self.choose_path)
        self.turns = StreamTurns(self.choose_path)
        self.kinds: deque[Kind | LedgerCall] = deque(maxlen=KEEP)
        """The kind of each of the last calls, oldest first. Call numbers are counted back from `seq` and `number`.

        A `LedgerCall` marks where a world was joined, and has the numbers of the newest call before that.
        """
        self.user_ns: Namespace | None = None
        """The globals by which the user's frames are recognised."""
        self.choose_path()

    def choose_path(self) -> None:
        """Update `slow`, after something on which it depends has changed."""
        modes = self._refuse is not None or self._guard is not None or self._ordered or self._timing
        several = self.turns.several or self.order.at_once.threads
        self.slow = modes or several or self.limits.refuses_collectives or self.order.first.following

    def leave_world(self) -> None:
        """Refuse collectives until `enter_world`, since the user's other threads may call some."""
        # In this order, which `enter_world` reverses: a thread that finds no group must be refused.
        self.refuse = BETWEEN_WORLDS
        self.refused_in_cell, self.in_world, self.group = False, False, None

    def enter_world(self, number: int, size: int, group: Group | None = None) -> None:
        """Begin a new world, whose ranks all count from `number` on, so that equal numbers mean the same collective."""
        self.kinds.append(LedgerCall(self.seq, self.number, NO_KIND))
        self.seq += max(0, number - self.number)
        self.worlds += 1
        self.group, self.number, self.size, self.in_world = group, number, size, True
        self.refused_in_cell, self.order.returned, self.chain.newest = False, self.seq, None
        self.order.pending.clear()
        self.turns.forget()
        self.refuse = None

    def begin_cell(
        self,
        *,
        guard: Callable[[Record], None] | None,
        ordered: bool,
        watch_order: bool = False,
        timing: bool = False,
        after: int | None = None,
    ) -> None:
        """Set how this cell's collectives are treated; calls up to number `after` (None: all) count as complete."""
        self.timed.clear()
        self.refuse_in_cell(None)
        after = self.seq if after is None else after
        if not self.invalid.asked:
            self.order.returned = max(self.order.returned, after)
        self.chain.begin_cell(strict=guard is not None)
        self.order.begin(watching=watch_order and not ordered, after=after)
        self.guard, self.ordered, self.timing = guard, ordered, timing

    def forget_last(self) -> None:
        """Remove the last call, a shared one that was refused after it had been noted."""
        self.kinds.pop()
        self.seq -= 1
        self.number -= 1

    def end_cell(self) -> None:
        """Lift the cell's refusal, and drop references to its arrays that are not needed any more."""
        self.refuse_in_cell(None)
        self.chain.end_cell()
        self.order.at_once.end_cell()

    def note(self, kind: Kind) -> LedgerCall:
        """Number a call of this kind, keep it, and return it."""
        self.number += kind.shared
        # Python switches threads only at a call, so a reader finds as many kinds as there are calls.
        self.seq = seq = self.seq + 1
        self.kinds.append(kind)
        return LedgerCall(seq, self.number, kind)

    def _newest_first(self) -> Iterator[LedgerCall]:
        seq, number, kinds = self.seq, self.number, list(self.kinds)
        for kind in reversed(kinds):
            if isinstance(kind, LedgerCall):  # a world was joined
                seq, number = kind.seq, kind.entered
                continue
            yield LedgerCall(seq, number, kind)
            seq -= 1
            number -= kind.shared

    def calls(self, after: int) -> list[LedgerCall]:
        """The calls whose `seq` is above `after`, oldest first, as far as they are kept."""
        if after >= self.seq:  # as in a cell without collectives
            return []
        return list(takewhile(lambda call: call.seq > after, self._newest_first()))[::-1]

    def kinds_since(self, after: int) -> tuple[int, list[Any]]:
        """The newest `seq`, and the kinds of the calls whose `seq` is above `after`: ten times as fast as `calls`."""
        if after >= self.seq:
            return self.seq, []
        seq, kinds = self.seq, list(self.kinds)
        kinds = kinds[max(0, len(kinds) - (seq - after)) :]
        return seq, [call.kind for call in self.calls(after)] if LedgerCall in set(map(type, kinds)) else kinds

    def last(self) -> Record | None:
        """The record of the newest call, with sizes worked out; None if there is no call."""
        newest = next(self._newest_first(), None)
        return record_of(newest) if newest else None

    def shared_since(self, number: int) -> list[Record]:
        """The records of the shared calls after `number`, oldest first, as far as they are kept."""
        return records_of(self._shared_calls(number))

    def _shared_calls(self, number: int) -> list[LedgerCall]:
        if number >= self.number:
            return []
        calls = takewhile(lambda call: call.entered > number, self._newest_first())
        return [call for call in calls if call.kind.shared][::-1]

    @property
    def keep(self) -> int:
        """Maximum number of calls kept."""
        return self.kinds.maxlen or KEEP

    def repeat(self, kinds: Sequence[Kind]) -> None:
        """Note another call of a compiled function: all collectives in the function's trace, whose kinds are `kinds`.

        Raises RuntimeError if the ranks disagree (``check=strict``).
        """
        __tracebackhide__ = True
        where = user_place(self.user_ns, sys._getframe(1))
        for kind in kinds:
            call = self.note(kind._replace(where=where))
            if TRACE.active:
                TRACE.collective(call, time.perf_counter())
            if kind.shared and self.guard is not None:
                self.guard(record_of(call))

    def enter_again(self, kinds: Sequence[Kind], stream: Stream | None) -> None:
        """Prepare another call of a compiled function with these collectives, the last of which is on `stream`.

        Raises CollectiveAborted if no collective may be entered, and RuntimeError outside the main thread if `ordered`.
        """
        __tracebackhide__ = True
        self.raise_if_refused()
        if self.ordered:
            self.chain.refuse_other_threads(kinds[0].op)
            self.chain.leave_out(len(kinds))
        if self.turns.several:
            import mlx.core as mx

            self.turns.take(mx, stream, wait=True)

    def refuse_in_cell(self, because: str | None) -> None:
        """Refuse further collectives in the running cell, though the world stays whole; None lifts the refusal."""
        if self.refuse is None or self.refused_in_cell:
            self.refuse, self.refused_in_cell = because, because is not None

    def in_flight(self) -> list[Record]:
        """Collectives that may be in flight or yet to be evaluated, oldest first; some may be complete."""
        after, before = self.order.returned, self.order.called_before
        left = {number for number, _ in list(self.order.pending) if number > before}
        calls = self.calls(min([after, *(number - 1 for number in left)]))
        found = records_of([call for call in calls if call.seq > after or call.seq in left])
        # Calls inside mx.grad, mx.vmap and mx.compile, of sub-groups, and with the check off are not tracked.
        return found or records_of(self.calls(self.order.settled))

    def raise_if_refused(self) -> None:
        """Raise CollectiveAborted if no collective may be entered."""
        __tracebackhide__ = True
        if self._refuse is not None:
            raise CollectiveAborted(self._refuse)

    def raise_if_left(self) -> None:
        """Raise CollectiveAborted between two worlds."""
        __tracebackhide__ = True
        if not self.in_world:
            raise CollectiveAborted(BETWEEN_WORLDS)

    def fingerprint(self, number: int) -> tuple[int, int]:
        """Count of the shared collectives after `number`, and a checksum of them and of their evaluation order."""
        shared = [call.kind for call in self._shared_calls(number)]
        order = self.swapped(number), self.evaluated(number)
        if not shared and not any(order):
            return 0, 0
        alike = {id(kind): kind for kind in shared}  # a few kinds for thousands of calls
        texts = {key: f"{kind.op} {tuple(kind.shape)} {kind.dtype}\n" for key, kind in alike.items()}
        text = "".join([texts[id(kind)] for kind in shared])
        return len(shared), zlib.crc32(f"{text}{order}".encode())

    def evaluated(self, number: int) -> list[int]:
        """Numbers, counted from `number`, of the first collectives that this cell evaluated, in evaluation order.

        A collective that an earlier cell left pending has a number of 0 or less.
        """
        order = self.order.first.order
        numbers = self._counted_from(number, order)
        return [numbers[each] for each in order if each in numbers]

    def swapped(self, number: int) -> list[tuple[int, int]]:
        """Pairs of numbers, counted from `number`: a collective, and an older collective that was evaluated later."""
        swapped = self.order.swapped
        numbers = self._counted_from(number, {each for pair in swapped for each in pair})
        return [(numbers[late], numbers[early]) for late, early in swapped if late in numbers and early in numbers]

    def _counted_from(self, number: int, seqs: Collection[int]) -> dict[int, int]:
        """Maps the `seq` of each of these shared calls to its number, counted from `number`: 0 or less if older."""
        return {call.seq: call.entered - number for call in self._with(seqs)}

    def _with(self, seqs: Collection[int]) -> list[LedgerCall]:
        """The calls with these `seq`, as far as they are kept. The search ends at the lowest of `seqs`."""
        return [call for call in self.calls(min(seqs) - 1) if call.seq in seqs] if seqs else []

    def records(self, seqs: Collection[int]) -> list[Record]:
        """The records of the calls with these `seq`, as far as they are kept."""
        return records_of(self._with(seqs))

    def settled(self) -> int:
        """The number up to which all shared collectives have been evaluated, as far as is known."""
        after = self.calls(self.order.settled)
        dropped = after[0].seq - self.order.settled - 1 if after else 0
        return self.number - dropped - len([call for call in after if call.kind.shared])

    def replay(self, entries: Sequence[LedgerEntry]) -> None:
        """Enter the collectives that this rank missed, each with a `poison.array` as its input, and drop the results.

        `entries` are from another rank's ledger. Raises RuntimeError for a ``send`` or ``recv``, since its peer and its
        data cannot be made up.
        """
        import mlx.core as mx

        self.begin_cell(guard=None, ordered=False)
        for each in entries:
            if each.op not in COLLECTIVE:
                raise RuntimeError(f"cannot enter a {each.op} on behalf of another rank")
            mx.eval(getattr(mx.distributed, each.op)(poison.array(mx, each.op, each.shape, each.dtype)))
