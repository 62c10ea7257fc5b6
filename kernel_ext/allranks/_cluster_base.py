"""What every part of `Cluster` stands on: who is there, and what must hold before they are asked."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from allranks_backends._plan import Host, Snapshot, rank_label

from ._ranks import Answer, Ranks
from ._settings import Settings
from ._stop import undisturbed
from ._watch import Watch
from .errors import Busy, CannotTravel, NoCluster, UsageError, WorldBroken, WouldHang

if TYPE_CHECKING:
    from ._cell import Cell
    from ._logged import Logged
    from ._monitor import Monitor

FREED_WITHIN = 5.0
"""Seconds that a cell waits for ranks which end the cell before, when that has broken the world."""
REPLAY_WITHIN = 3.0
"""Seconds that a cell waits for ranks which still free others."""


class ClusterBase:
    """The ranks, and the way to ask them something."""

    def __init__(self, settings: Settings, hosts: Sequence[Host], backend: str) -> None:
        self.name = settings.name
        self._settings, self._hosts, self._backend_name = settings, list(hosts), backend
        self.check, self.ordered = settings.check, settings.ordered
        self._ranks: Ranks | None = None
        self._client: Any = None
        self._monitor: Monitor | None = None
        """What the ranks told, also after `down`."""
        self._cells = itertools.count(1)
        self._following: list[Cell] = []
        self._culprits: list[int] = []
        """The ranks that raised of their own in the last cell."""
        self._changing = threading.RLock()
        """Held while the world is changed: a click in a dashboard comes in a thread of its own."""
        self._watch = Watch(lambda: self.snapshot, lambda seen: self._logs.since(seen))

    @property
    def size(self) -> int:
        """Number of ranks."""
        return len(self._hosts)

    @property
    def backend(self) -> str:
        """The collective runtime in use; ``auto`` before `up` has chosen."""
        return self._backend_name

    @property
    def state(self) -> str:
        """``down``, ``starting``, ``whole`` or ``broken``."""
        return self._ranks.monitor.state if self._ranks is not None else "down"

    @property
    def snapshot(self) -> Snapshot:
        """Everything there is to show about the cluster now."""
        if self._ranks is None:
            return Snapshot(self.name, self.backend, "down", 0, ())
        return self._ranks.monitor.snapshot()

    def _up(self) -> Ranks:
        """The living ranks. Raises NoCluster."""
        if self._ranks is None or self._ranks.monitor.state == "starting":
            raise NoCluster(f"the cluster {self.name!r} is {self.state}. Start it with %distributed up.")
        return self._ranks

    @property
    def _logs(self) -> Logged:
        if self._monitor is None:
            raise NoCluster(f"the cluster {self.name!r} was never up. Start it with %distributed up.")
        return self._monitor.logged

    def choose_ranks(self, ranks: Sequence[int] | int | None) -> list[int]:
        """The ranks meant, checked; all of them for None."""
        if ranks is None:
            return list(range(self.size))
        chosen = sorted({ranks} if isinstance(ranks, int) else set(ranks))
        if not chosen:
            raise UsageError("no ranks were named.")
        if absent := [rank for rank in chosen if not 0 <= rank < self.size]:
            there = "only rank 0 is" if self.size == 1 else f"ranks 0-{self.size - 1} are"
            raise UsageError(f"there is no {rank_label(absent)}: {there} there.")
        return chosen

    # What must hold.

    def _whole(self) -> Ranks:
        ranks = self._up()
        if ranks.monitor.state == "broken" and not any(rank.dead for rank in ranks.monitor.ranks):
            # Ranks that a stop has just freed are done with their cell in a moment.
            ranks.monitor.wait(lambda: not ranks.monitor.busy(range(self.size)), FREED_WITHIN)
        with self._changing:
            if self._can_form_anew(ranks):  # the last rank was freed only after the cell's prompt was back
                with undisturbed():
                    ranks.form_anew()
        self._refuse_if_broken(ranks)
        return ranks

    def _can_form_anew(self, ranks: Ranks) -> bool:
        """Whether the world is broken, and every rank is alive and idle."""
        if ranks.monitor.state != "broken" or any(rank.dead for rank in ranks.monitor.ranks):
            return False
        return not ranks.monitor.busy(range(self.size))

    def _refuse_if_unable(self, chosen: Sequence[int]) -> Ranks:
        """The living ranks, if all of `chosen` can take a cell now. Raises NoCluster, WorldBroken or Busy."""
        ranks = self._whole()
        self._refuse_if_busy(ranks, chosen)
        return ranks

    def _refuse_if_busy(self, ranks: Ranks, chosen: Sequence[int]) -> None:
        # Ranks that enter collectives they had missed, to free others, are done with it in a moment.
        ranks.monitor.wait(lambda: not any(ranks.monitor.ranks[number].replaying for number in chosen), REPLAY_WITHIN)
        if busy := ranks.monitor.busy(chosen):
            snapshot = ranks.monitor.snapshot()
            doing = "; ".join(f"rank {rank.rank} {snapshot.ranks[rank.rank].doing}" for rank in busy[:4])
            verb = "is" if len(busy) == 1 else "are"
            raise Busy(
                f"{rank_label([rank.rank for rank in busy])} {verb} still busy with an earlier cell ({doing}). "
                "Wait for it, or stop it with %distributed interrupt."
            )

    def _refuse_pending(self, ranks: Ranks, chosen: Sequence[int], code: str) -> None:
        """A cell on some ranks must not evaluate what all ranks have to compute together."""
        for rank, answer in ranks.ask(chosen, {"do": "pending", "code": code}).items():
            try:
                names = answer.result(1.0)[0].get("names", [])
            except (TimeoutError, ConnectionError):
                continue
            if names:
                raise WouldHang(
                    f"{', '.join(names)} on rank {rank} is still to be computed by a collective, which every rank must "
                    f"enter. Run the cell on all ranks, or first mx.eval({', '.join(names)}) on all of them."
                )

    def _refuse_if_broken(self, ranks: Ranks) -> None:
        if ranks.monitor.state == "broken":
            causes: dict[str, list[int]] = {}
            for rank in ranks.monitor.ranks:
                if rank.dead:
                    causes.setdefault(rank.dead, []).append(rank.rank)
            dead = "; ".join(f"{rank_label(numbers)} {cause}" for cause, numbers in causes.items())
            raise WorldBroken(
                f"the world is broken: {dead or 'a collective was broken off'}. %distributed heal replaces dead ranks "
                "and forms it anew; the other ranks keep their variables."
            )

    # Asking.

    def _ask_all(
        self, order: dict[str, Any], ranks: Sequence[int] | int | None, buffers: Sequence[Any] = ()
    ) -> dict[int, Answer]:
        chosen = self.choose_ranks(ranks)
        # What the living ranks of a broken world hold can still be fetched.
        living = self._up()
        if living.monitor.state != "broken":
            self._refuse_if_broken(living)
        self._refuse_if_busy(living, [rank for rank in chosen if not living.monitor.ranks[rank].dead])
        return living.ask(chosen, order, buffers)

    def _answer(self, rank: int, answer: Answer, name: str) -> list[Any]:
        try:
            header, buffers = answer.result()
        except ConnectionError:
            cause = self.snapshot.ranks[rank].cause or "its connection closed"
            raise WorldBroken(f"rank {rank} ended meanwhile: {cause}.") from None
        if "error" in header:
            kinds: dict[str, type[Exception]] = {"CannotTravel": CannotTravel, "NameError": UsageError}
            raise kinds.get(header["kind"], CannotTravel)(f"rank {rank}: {name}: {header['error']}")
        return buffers

    def _told(self, rank: int, answer: Answer, name: str) -> dict[str, Any]:
        self._answer(rank, answer, name)
        return answer.result()[0]
