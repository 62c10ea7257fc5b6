"""Aborting a JACCL world within the process: its queue pairs, and how the loops that poll them are ended.

JACCL's loops poll until the work requests that they posted are complete, and never look at a completion's status (mlx
0.32.4). A queue pair that is moved to the state ERR completes all its work requests, including later ones. So if the
registered memory has been filled with NaN, every collective in flight returns NaN. If the driver completes nothing in
ERR, a function of ours answers the polls with invented completions, which end the loops, and another makes posting
fail. Then JACCL's collectives raise, and the result of the last one may be any number.
"""

from __future__ import annotations

import ctypes
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from allranks.rank.collectives import poison
from allranks.rank.collectives.poison import Asked
from allranks.rank.world.shared_libraries import NotInPlace, address_of

from .verbs_check import POLL, POLL_CQ, POST, POST_RECV, POST_SEND, VerbsTrial, is_in_error, put, slots, to_error
from .verbs_table import VerbsTable

RETURNS_WITHIN = 0.3
"""Seconds in which aborted collectives return if the driver completes their work requests."""
LOOK_EVERY = 0.05
_ENODEV = 19
_SEND, _RECEIVE = 1, 2
_SENDS_FIRST = 128
"""Number of the poll, in each thread, that gets the first invented receive.

More sends are invented before it than a loop has in flight to and from 7 peers."""


class AbortableJaccl:
    """The queue pairs of the world that this process is in."""

    def __init__(
        self, blocked: Callable[[], bool], table: VerbsTable, trial: VerbsTrial, made: dict[str, list[int]]
    ) -> None:
        """`made` lists the resources that JACCL made for this world, by verb.

        Raises NotInPlace if the driver's functions in this world's contexts differ from those in the trial's context.
        """
        self._blocked, self._table, self._trial, self._made = blocked, table, trial, made
        if any(slots(context) != trial.slots for context in made["open_device"]):
            raise NotInPlace("the driver has other functions in the contexts of this world than in one that was tried")
        self.broken_up = False
        """Whether collectives of this world were aborted."""
        self._look_at: float | None = None
        """The time.monotonic at which to check whether the aborted collectives returned; None if no check is due."""
        self._polls: Counter[int] = Counter()
        """Number of polls that were answered here, by thread."""
        self._kept = POLL(lambda *_: 0), POLL(self._invent), POST(lambda *_: _ENODEV)
        self._waits, self._ends, self._fails = map(address_of, self._kept)

    def pattern(self, in_flight: Iterable[Asked]) -> bytes:
        """The pattern with which `break_up` is to abort these collectives; zeros if ERR completes nothing."""
        return poison.pattern(in_flight) if self._trial.flushes else poison.ZEROS

    def break_up(self, pattern: bytes | None) -> None:
        """Make the collectives in flight return, with invalid results that `pattern` marks (zeros if it is None).

        If ERR completes nothing, the collectives raise instead.
        """
        if self.broken_up:
            return
        self.broken_up = True
        if not self._trial.flushes:
            return self._stop()
        with self._table.lock, self._paused():  # data that arrives after `_fill` would count as a result
            for region in self._left("reg_mr"):
                _, memory, size, _ = self._table.held["reg_mr"][region]
                _fill(memory, size, pattern or poison.ZEROS)
            for pair in self._left("create_qp"):
                to_error(self._table, pair)
        self._look_at = time.monotonic() + RETURNS_WITHIN

    def broken_elsewhere(self) -> None:
        """Do nothing: another rank has broken this world, and the head unblocks this rank if it is blocked."""

    def help(self) -> float | None:
        """Answer polls in the driver's place if the driver does not complete the aborted work.

        Returns the seconds until the next call; None if none is needed.
        """
        if self._look_at is None:
            return None
        if time.monotonic() < self._look_at:
            return LOOK_EVERY
        self._look_at = None
        if self._blocked():
            self._stop()
        return None

    def has_failed(self) -> bool:
        """Whether a transfer failed before any abort. MLX does not notice (0.32.4), but a queue pair is in ERR then."""
        with self._table.lock:
            return not self.broken_up and any(is_in_error(self._table, pair) for pair in self._left("create_qp"))

    def is_whole(self) -> bool:
        """Whether nothing was aborted and no transfer has failed; the loss of a peer may go unnoticed."""
        return not self.broken_up and not self.has_failed()

    def leave(self) -> list[int]:
        """Return no descriptors: this world has none, and its abort has ended all collectives in flight."""
        self._look_at = None
        return []

    def _stop(self) -> None:
        """Answer polls in the driver's place, and make posts fail."""
        with self._table.lock:
            for context in self._left("open_device"):
                put(context, {POST_SEND: self._fails, POST_RECV: self._fails, POLL_CQ: self._ends})

    @contextmanager
    def _paused(self) -> Iterator[None]:
        """Let polls find nothing within the context."""
        contexts = self._left("open_device")
        for context in contexts:
            put(context, {POLL_CQ: self._waits})
        try:
            yield
        finally:
            for context in contexts:
                put(context, {POLL_CQ: self._trial.slots[POLL_CQ]})

    def _left(self, make: str) -> list[int]:
        """The resources that the verb `make` made for this world and that have not been freed."""
        return [made for made in self._made[make] if made in self._table.held[make]]

    def _invent(self, _queue: int, room: int, completions: int) -> int:
        """Invent one completion per poll, so that no loop gets more than it waits for.

        The first completions (before `_SENDS_FIRST`) are of sends, for which JACCL copies nothing. The later ones are
        of receives: only a mesh's reduction waits for receives as well, and it accepts any.
        """
        if not room:
            return 0
        self._polls[thread := threading.get_ident()] += 1
        count = self._polls[thread]
        kind, peer = (_SEND, 0) if count < _SENDS_FIRST else (_RECEIVE, count % 8)
        # JACCL's ids of work requests: kind, buffer, peer; the id comes first in an ibv_wc.
        ctypes.c_uint64.from_address(completions).value = kind << 16 | (count // 2 % 2) << 8 | peer
        return 1


def _fill(memory: int, size: int, pattern: bytes) -> None:
    ctypes.memmove(memory, pattern * (size // len(pattern)), size // len(pattern) * len(pattern))
