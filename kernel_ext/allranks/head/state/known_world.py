"""The state of a world, its ranks and its hosts, from which a Snapshot is made: data, without a thread."""

from __future__ import annotations

from collections.abc import Sequence

from allranks_backends.plan import Link, rank_label
from allranks_backends.views import WorldState

from .collective_times import CollectiveTimes
from .known_rank import Away, Rank, SavedVariables


class KnownWorld:
    """The state of a world, its ranks and its hosts; the `Monitor` keeps it up to date."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.backend = ""
        self.state: WorldState = "starting"
        self.generation = 0
        self.changing = False
        """Whether the world is being changed."""
        self.breakable = False
        """Whether a blocked collective can be made to raise."""
        self.not_breakable = ""
        """As a clause, why blocked collectives cannot be aborted though the backend may allow it; otherwise empty."""
        self.ranks: list[Rank] = []
        self.owed: dict[int, SavedVariables | None] = {}
        """For each rank that a change of the world has started and that still lacks variables: the variables saved for
        it, or None for a new rank, which may get copies of another rank's variables."""
        self.away: dict[str, Away] = {}
        """Hosts that cannot be reached at the moment."""
        self.shown: dict[str, str] = {}
        """By the name of a host, the name under which tables show it."""
        self.links: Sequence[Link] = ()
        """Every link on which the backend sends."""
        self.peak: float | None = None
        """Highest bus bandwidth in the last `bench` of this world, in bytes a second; None before the first."""
        self.times = CollectiveTimes()

    def alive(self) -> list[Rank]:
        return [rank for rank in self.ranks if rank.dead is None]

    def awaited(self) -> list[Rank]:
        """Return living ranks that are not connected although their host can be reached."""
        return [rank for rank in self.alive() if not rank.connected and rank.host not in self.away]

    def busy(self, ranks: Sequence[int]) -> list[Rank]:
        """Return which of `ranks` are busy. Numbers without a rank, as after an interrupted restart, are ignored."""
        wanted = set(ranks)
        return [rank for rank in self.ranks if rank.rank in wanted and rank.busy]

    def shown_as(self, host: str) -> str:
        """Return the name under which status shows this host."""
        return self.shown.get(host, host)

    def label(self, ranks: Sequence[int]) -> str:
        """``rank 2``; if the world runs on several hosts, followed by the hosts of these ranks."""
        hosts = dict.fromkeys(self.shown_as(self.ranks[rank].host) for rank in ranks)
        several = len({rank.host for rank in self.ranks}) > 1
        return f"{rank_label(list(ranks))} on {', '.join(hosts)}" if several else rank_label(list(ranks))
