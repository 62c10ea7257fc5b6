"""Collectives that one rank evaluates at once, on two streams or in two threads, meet those of others in any order.

The sums are then wrong on all ranks, without an error (mlx 0.32.4). Nothing is prevented here, which is `chain`'s to
do: what is seen to happen is noted, and reported when the cell is over.
"""

from __future__ import annotations

import threading
import weakref
from dataclasses import dataclass
from typing import Any

from allranks.rank.arrays import computed
from allranks.rank.arrays.pending import waits_for_collective

from .record import Place

MOST = 64
"""Pairs of collectives followed at once."""


@dataclass
class _Pair:
    """Two collectives on two streams, neither of which depends on the other."""

    numbers: tuple[int, int]
    results: tuple[Any, Any]
    """Held, since a graph may hold what no variable does; for as long as both are pending."""
    begun: bool = False
    """Whether one is on its way, and has not been waited for."""


@dataclass
class _Evaluation:
    thread: str
    asked: bool
    """Whether its thread has called a collective since its last one."""


class AtOnce:
    """What was evaluated at once in this cell."""

    def __init__(self) -> None:
        self.active = False
        """Whether evaluations are to be looked at."""
        self.threads = False
        """Whether two have been seen to evaluate at once."""
        self.numbers: tuple[int, ...] = ()
        """Calls of two collectives of two streams that were."""
        self.names: tuple[str, ...] = ()
        """Threads of two that were."""
        self.begin_cell()

    def begin_cell(self) -> None:
        self.active = self.threads = False
        self.numbers, self.names = (), ()
        self._newest: tuple[int, weakref.ref[Any], Any] | None = None
        self._pairs: list[_Pair] = []
        self._independent: dict[Place, bool] = {}
        self._inside: dict[int, _Evaluation] = {}
        self._asked: set[int] = set()

    def end_cell(self) -> None:
        """Hold no array of the user's."""
        self._pairs = []

    def asked(self, number: int, result: Any, stream: Any, where: Place, subject: Any) -> None:
        """A collective was called, where there are several streams."""
        before, self._newest = self._newest, (number, weakref.ref(result), stream)
        if self.numbers or before is None or before[2] == stream or len(self._pairs) >= MOST:
            return
        earlier = before[1]()
        if _is_pending(earlier) and self._is_independent(where, subject):
            self._pairs.append(_Pair((before[0], number), (earlier, result)))
            self.active = True

    def _is_independent(self, where: Place, subject: Any) -> bool:
        """Whether `subject` is not computed from a collective; looked up once for each line, since it takes long."""
        if where not in self._independent:
            self._independent[where] = not waits_for_collective(subject)
        return self._independent[where]

    def called(self) -> None:
        """A collective was called, where two threads have evaluated at once."""
        self._asked.add(threading.get_ident())

    def two_threads(self) -> None:
        """A thread evaluates while another one does."""
        self.active = self.threads = True

    def before(self) -> None:
        """Something is about to be evaluated; what was waited for already is safe."""
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
        """It was evaluated, or is on its way where it was not `waited` for."""
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


def _is_there(array: Any) -> bool:
    return computed.reader is not None and computed.reader.is_there(array)


def _is_pending(array: Any) -> bool:
    return computed.reader is not None and bool(computed.reader.is_pending(array))
