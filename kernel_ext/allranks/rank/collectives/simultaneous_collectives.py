"""Detects collectives that one rank evaluates concurrently, on two streams or in two threads.

Ranks may pair such collectives in any order, and then the sums are wrong on all ranks, without an error (mlx 0.32.4).
This module prevents nothing (`ordered_chain` does). It notes what it sees, and the cell's end reports that.
"""

from __future__ import annotations

import threading
import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING

from allranks.rank.arrays import array_status
from allranks.rank.arrays.pending_arrays import waits_for_collective

from .record import Place

if TYPE_CHECKING:
    from mlx.core import Stream
    from mlx.core import array as Array

MOST = 64
"""Maximum number of pairs of collectives tracked at a time."""


@dataclass
class _Pair:
    """Two collectives on two streams. Neither collective depends on the other."""

    numbers: tuple[int, int]
    results: tuple[Array | None, Array]
    """Strong references to the results of the two collectives: perhaps only a graph holds the results otherwise."""
    begun: bool = False
    """Whether the evaluation of one of the results has begun, and nothing has waited for that evaluation."""


@dataclass
class _Evaluation:
    thread: str
    asked: bool
    """Whether the thread has called a collective since its last evaluation."""


class AtOnce:
    """What this cell evaluated concurrently: two collectives on two streams, or collectives of two threads."""

    def __init__(self) -> None:
        self.active = False
        """Whether evaluations are to be checked."""
        self.threads = False
        """Whether two threads were seen to evaluate concurrently."""
        self.numbers: tuple[int, ...] = ()
        """Numbers of two collectives on two streams that were evaluated concurrently; empty if none were."""
        self.names: tuple[str, ...] = ()
        """Names of two threads that evaluated collectives concurrently; empty if none did."""
        self.begin_cell()

    def begin_cell(self) -> None:
        self.active = self.threads = False
        self.numbers, self.names = (), ()
        self._newest: tuple[int, weakref.ref[Array], Stream | None] | None = None
        self._pairs: list[_Pair] = []
        self._independent: dict[Place, bool] = {}
        self._inside: dict[int, _Evaluation] = {}
        self._asked: set[int] = set()

    def end_cell(self) -> None:
        """Drop the strong references to the user's arrays."""
        self._pairs = []

    def asked(self, number: int, result: Array, stream: Stream | None, where: Place, subject: Array) -> None:
        """Note a collective that was called while there are several streams."""
        before, self._newest = self._newest, (number, weakref.ref(result), stream)
        if self.numbers or before is None or before[2] == stream or len(self._pairs) >= MOST:
            return
        earlier = before[1]()
        if _is_pending(earlier) and self._is_independent(where, subject):
            self._pairs.append(_Pair((before[0], number), (earlier, result)))
            self.active = True

    def _is_independent(self, where: Place, subject: Array) -> bool:
        """Whether `subject` waits for no collective; worked out once for each `where`, since that takes long."""
        if where not in self._independent:
            self._independent[where] = not waits_for_collective(subject)
        return self._independent[where]

    def called(self) -> None:
        """Note that this thread called a collective. Called only once `threads` is set."""
        self._asked.add(threading.get_ident())

    def two_threads(self) -> None:
        """Note that two threads evaluate concurrently."""
        self.active = self.threads = True

    def before(self) -> None:
        """Note that an evaluation begins. Drops each pair of which one result was waited for: such a pair is safe."""
        self._pairs = [
            pair
            for pair in self._pairs
            if all(map(_is_pending, pair.results)) or (pair.begun and not any(map(_is_there, pair.results)))
        ]
        if self.threads:
            ident = threading.get_ident()
            beside = [each for other, each in list(self._inside.items()) if each.asked and other != ident]
            new = _Evaluation(threading.current_thread().name, ident in self._asked)
            self._asked.discard(ident)
            self._inside[ident] = new
            if new.asked and beside:
                self.names = tuple(sorted((beside[0].thread, new.thread)))

    def after(self, *, waited: bool) -> None:
        """Note that ``mx.eval`` returned, or if not `waited`, ``mx.async_eval``, whose evaluation may not be over."""
        self._inside.pop(threading.get_ident(), None)
        left = []
        for pair in self._pairs:
            done = [not _is_pending(result) for result in pair.results]
            if all(done):
                self.numbers = pair.numbers
            elif not any(done) or not waited:
                pair.begun = any(done)
                left.append(pair)
        self._pairs = [] if self.numbers else left


def _is_there(array: Array | None) -> bool:
    return array_status.reader is not None and array_status.reader.is_there(array)


def _is_pending(array: Array | None) -> bool:
    return array_status.reader is not None and bool(array_status.reader.is_pending(array))
