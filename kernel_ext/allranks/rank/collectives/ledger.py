"""The ledger: a numbered record of every collective this rank's code asked for.

`install` puts a thin wrapper around each function of ``mx.distributed`` (see `recorded`). `nn.average_gradients` and
the sharded layers look the functions up when they are called, so theirs are recorded too. A call inside ``mx.compile``
is seen when the function is traced, and repeated at each call of the compiled function (see `recompile`).
"""

from __future__ import annotations

import sys
import time
import zlib
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from itertools import takewhile
from typing import Any

from allranks.messages.events import MOST_TIMED, LedgerEntry
from allranks.rank.functions.limits import Limits
from allranks.rank.functions.replaced import is_replaced, replaced
from allranks.rank.functions.streams import Turns

from . import poison
from .aborted import CollectiveAborted
from .chain import Chain
from .order import EvaluationOrder
from .record import NO_KIND, Call, Kind, Record, record_of, records_of
from .recorded import COLLECTIVE, recorded, user_place
from .trace import TRACE

OPERATIONS = (*sorted(COLLECTIVE), "send", "recv", "recv_like")
KEEP = 16_000
"""Records: a quarter of a second of the fastest collectives there are (1 KiB in shared memory)."""
BETWEEN_WORLDS = "this rank has left its world and has not joined the next one"


class _Mode:
    """A setting that takes collectives off the short way (see `Ledger.rare`) unless it is false."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = "_" + name

    def __get__(self, ledger: Ledger, owner: type | None = None) -> Any:
        return getattr(ledger, self._name)

    def __set__(self, ledger: Ledger, value: Any) -> None:
        setattr(ledger, self._name, value)
        ledger.choose_path()


class Ledger:
    """The last `KEEP` calls; `seq` counts them all, from 1, and goes on through every world this rank joins."""

    refuse = _Mode()
    """Why no collective may be entered: the world is broken. A third one on a broken ring never returns."""
    guard = _Mode()
    """Called before each shared collective; it raises where the ranks disagree (``check=strict``)."""
    ordered = _Mode()
    """Chain each collective to the one before, so that evaluation order cannot swap results."""
    timing = _Mode()
    """Time each call by evaluating it on the spot: exact, at the cost of what else could be computed meanwhile."""
    _refuse: str | None = None
    _guard: Callable[[Record], None] | None = None
    _ordered = _timing = False

    def __init__(self) -> None:
        self.rare = True
        """Whether a collective is to be more than noted: in one of the modes above, over several streams or threads."""
        self.seq = 0
        self.number = 0
        """How many of them all ranks share: equal numbers mean the same collective on every rank."""
        self.refused_in_cell = False
        self.in_world = True
        """False between two worlds, where MLX would form one by itself, of this rank alone."""
        self.group: Any = None
        """The group of all ranks. Calls without a group get it from here, since MLX would look for it only later."""
        self.timed: deque[tuple[str, int, float]] = deque(maxlen=MOST_TIMED)
        """Op, bytes and seconds of this cell's timed calls that all ranks share."""
        self.order = EvaluationOrder(self)
        self.invalid, self.aborted = self.order.invalid, self.order.aborted
        self.chain = Chain()
        self.limits = Limits(self.choose_path)
        self.turns = Turns(self.choose_path)
        self.size = 1
        """Ranks of the world."""
        self.kinds: deque[Kind | Call] = deque(maxlen=KEEP)
        """The last calls, oldest first; their numbers follow from `seq` and `number`, but for those before a `Call`."""
        self.user_ns: dict[str, Any] | None = None
        """The globals by which the user's frames are known."""
        self.choose_path()

    def choose_path(self) -> None:
        """Something changed on which `rare` depends."""
        modes = self._refuse is not None or self._guard is not None or self._ordered or self._timing
        several = self.turns.several or self.order.at_once.threads
        self.rare = modes or several or self.limits.refuses_collectives or self.order.first.following

    def install(self, mx: Any, user_ns: dict[str, Any]) -> None:
        """Record the calls of ``mx.distributed``; `user_ns` tells the user's frames from a library's."""
        self.user_ns = user_ns
        for op in OPERATIONS:
            function = getattr(mx.distributed, op, None)
            if function is not None and not is_replaced(function):
                setattr(mx.distributed, op, replaced(function, recorded(self, mx, op, function)))
        self.order.install(mx)
        self.limits.install(mx)
        self.turns.install(mx)

    def leave_world(self) -> None:
        """From here to `enter_world`, other threads of the user's enter no collective."""
        # In this order, and the other way round in `enter_world`: whoever finds no group is refused.
        self.refuse = BETWEEN_WORLDS
        self.refused_in_cell, self.in_world, self.group = False, False, None

    def enter_world(self, number: int, size: int, group: Any = None) -> None:
        """A new world begins: all its ranks count from `number` on, so that equal numbers mean the same collective."""
        self.kinds.append(Call(self.seq, self.number, NO_KIND))
        self.seq += max(0, number - self.number)
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
        """Set how this cell's collectives are treated; those up to the call `after` (all so far) are done with."""
        self.timed.clear()
        self.refuse_in_cell(None)
        after = self.seq if after is None else after
        if not self.invalid.asked:
            self.order.returned = max(self.order.returned, after)
        self.chain.begin_cell(strict=guard is not None)
        self.order.begin(watching=watch_order and not ordered, after=after)
        self.guard, self.ordered, self.timing = guard, ordered, timing

    def forget_last(self) -> None:
        """The last call, which all ranks share, was refused after it had been noted."""
        self.kinds.pop()
        self.seq -= 1
        self.number -= 1

    def end_cell(self) -> None:
        """Hold nothing of the cell's that is computed."""
        self.refuse_in_cell(None)
        self.chain.end_cell()
        self.order.at_once.end_cell()

    def note(self, kind: Kind) -> Call:
        """Number one call."""
        self.number += kind.shared
        # As in `recorded`: Python switches threads at a call only, so who reads finds as many kinds as there are calls.
        self.seq = seq = self.seq + 1
        self.kinds.append(kind)
        return Call(seq, self.number, kind)

    def _newest_first(self) -> Iterator[Call]:
        seq, number, kinds = self.seq, self.number, list(self.kinds)
        for kind in reversed(kinds):
            if isinstance(kind, Call):  # a world was joined
                seq, number = kind.seq, kind.entered
                continue
            yield Call(seq, number, kind)
            seq -= 1
            number -= kind.shared

    def calls(self, after: int) -> list[Call]:
        """The calls after number `after` of all, oldest first, as far as they are kept."""
        return list(takewhile(lambda call: call.seq > after, self._newest_first()))[::-1]

    def kinds_since(self, after: int) -> tuple[int, list[Any]]:
        """Number of the newest call, and the kinds of those after number `after`: `calls`, in a tenth of the time."""
        seq, kinds = self.seq, list(self.kinds)
        kinds = kinds[max(0, len(kinds) - (seq - after)) :]
        return seq, [call.kind for call in self.calls(after)] if Call in set(map(type, kinds)) else kinds

    def last(self) -> Record | None:
        """The newest record, with sizes worked out."""
        newest = next(self._newest_first(), None)
        return record_of(newest) if newest else None

    def shared_since(self, number: int) -> list[Record]:
        """The records of what all ranks share after that `number`, oldest first, as far as they are kept."""
        return records_of(self._shared_calls(number))

    def _shared_calls(self, number: int) -> list[Call]:
        calls = takewhile(lambda call: call.entered > number, self._newest_first())
        return [call for call in calls if call.kind.shared][::-1]

    @property
    def keep(self) -> int:
        """How many calls are kept."""
        return self.kinds.maxlen or KEEP

    def repeat(self, kinds: Sequence[Kind]) -> None:
        """A compiled function is called again, and with it these collectives of its trace."""
        __tracebackhide__ = True
        where = user_place(self, sys._getframe(1))
        for kind in kinds:
            call = self.note(kind._replace(where=where))
            if TRACE.active:
                TRACE.collective(call, time.perf_counter())
            if kind.shared and self.guard is not None:
                self.guard(record_of(call))

    def enter_again(self, kinds: Sequence[Kind], stream: Any) -> None:
        """A compiled function is about to be called again, and with it these collectives; the last is on this stream.

        Raises CollectiveAborted where no collective may be entered, and RuntimeError in a thread that is refused.
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
        """Let the running cell enter no more collectives, though the world stays whole; None: that cell is over."""
        if self.refuse is None or self.refused_in_cell:
            self.refuse, self.refused_in_cell = because, because is not None

    def in_flight(self) -> list[Record]:
        """Collectives that may be on their way or are left to be evaluated, oldest first; some may be complete."""
        after, before = self.order.returned, self.order.called_before
        left = {number for number, _ in list(self.order.pending) if number > before}
        calls = self.calls(min([after, *(number - 1 for number in left)]))
        found = records_of([call for call in calls if call.seq > after or call.seq in left])
        # Those inside mx.grad, mx.vmap and mx.compile, of sub-groups, and with the check off are not tracked.
        return found or records_of(self.calls(self.order.settled))

    def raise_if_refused(self) -> None:
        """Raise CollectiveAborted where no collective may be entered."""
        __tracebackhide__ = True
        if self._refuse is not None:
            raise CollectiveAborted(self._refuse)

    def raise_if_left(self) -> None:
        """Raise CollectiveAborted between two worlds."""
        __tracebackhide__ = True
        if not self.in_world:
            raise CollectiveAborted(BETWEEN_WORLDS)

    def fingerprint(self, number: int) -> tuple[int, int]:
        """How many shared collectives came after that `number`, and a checksum of them and of their order."""
        shared = [call.kind for call in self._shared_calls(number)]
        order = self.swapped(number), self.evaluated(number)
        if not shared and not any(order):
            return 0, 0
        alike = {id(kind): kind for kind in shared}  # a few, of thousands of calls
        texts = {key: f"{kind.op} {tuple(kind.shape)} {kind.dtype}\n" for key, kind in alike.items()}
        text = "".join([texts[id(kind)] for kind in shared])
        return len(shared), zlib.crc32(f"{text}{order}".encode())

    def evaluated(self, number: int) -> list[int]:
        """The first collectives of this cell, counted from that `number`, as they were evaluated."""
        order = self.order.first.order
        numbers = self._counted_from(number, order)
        return [numbers[each] for each in order if each in numbers]

    def swapped(self, number: int) -> list[tuple[int, int]]:
        """Which collectives were evaluated before which older ones, counted from that `number`."""
        swapped = self.order.swapped
        numbers = self._counted_from(number, {each for pair in swapped for each in pair})
        return [(numbers[late], numbers[early]) for late, early in swapped if late in numbers and early in numbers]

    def _counted_from(self, number: int, seqs: Collection[int]) -> dict[int, int]:
        """The number that all ranks share of each of these calls, counted from that `number`, by its `seq`."""
        return {call.seq: call.entered - number for call in self._with(seqs)}

    def _with(self, seqs: Collection[int]) -> list[Call]:
        """The calls with these `seq`, as far as they are kept; those before them are not looked at."""
        return [call for call in self.calls(min(seqs) - 1) if call.seq in seqs] if seqs else []

    def records(self, seqs: Collection[int]) -> list[Record]:
        """The records of the calls with these `seq`, as far as they are kept."""
        return records_of(self._with(seqs))

    def settled(self) -> int:
        """All shared collectives up to this number have been evaluated, for all that is known."""
        after = self.calls(self.order.settled)
        dropped = after[0].seq - self.order.settled - 1 if after else 0
        return self.number - dropped - len([call for call in after if call.kind.shared])

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
