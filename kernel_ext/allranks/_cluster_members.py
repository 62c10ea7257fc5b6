"""The part of `Cluster` that changes who is in the world, and keeps what the ranks hold."""

from __future__ import annotations

from collections.abc import Sequence

from allranks_backends._backend import cannot_run
from allranks_backends._plan import rank_label

from . import _heal
from ._arguments import known_backend
from ._cluster_base import ClusterBase
from ._stop import undisturbed
from .errors import CannotStart, UsageError


class ClusterMembers(ClusterBase):
    """Heal, resize, rewire."""

    def heal(self, *, source: int | None = None, kill: Sequence[int] = ()) -> str:
        """Replace dead ranks by new processes and form the world anew; the others keep every variable.

        With ``source``, a new rank gets the variables of that rank, as far as they can travel. Ranks to ``kill`` are
        ended first: for one that is stuck where nothing else reaches it. Returns a sentence on what was kept and what
        was lost. Raises CannotStart, and Busy where a cell cannot be interrupted.
        """
        ranks = self._up()
        dead = [rank.rank for rank in ranks.monitor.ranks if rank.dead]
        doomed = self.choose_ranks(kill) if kill else []
        busy = [rank.rank for rank in ranks.monitor.busy(range(self.size))]
        if not dead and not doomed and ranks.monitor.state == "whole":
            stuck = f" {rank_label(busy)} still runs a cell: %distributed interrupt stops it." if busy else ""
            return f"Nothing to heal: every rank is alive and the world is whole.{stuck}"
        if source is not None and self.choose_ranks(source)[0] in (*dead, *doomed):
            raise UsageError(f"rank {source} is dead itself: name a living rank to copy from.")
        with self._changing, undisturbed():
            return _heal.heal(ranks, source, doomed)

    def resize(self, size: int, *, source: int | None = None) -> str:
        """Grow or shrink the world to `size` ranks; those that stay keep their variables. Returns what became of them.

        With ``source``, a new rank gets the variables of that rank, as far as they can travel. Raises what `heal`
        raises.
        """
        ranks = self._up()
        if size < 1:
            raise UsageError(f"resize {size}: a world needs at least 1 rank.")
        if source is not None:
            self.choose_ranks(source)
        dead = [rank.rank for rank in ranks.monitor.ranks if rank.dead]
        if not dead or dead[0] < size:  # a world whose dead ranks go is whole without them
            ranks = self._whole()
        if size == self.size:
            return f"The world has {size} {'rank' if size == 1 else 'ranks'} already."
        if reason := cannot_run(self._backend_name, ranks.sites(_heal.resized(ranks.hosts, size))):
            raise CannotStart(reason)
        with self._changing, undisturbed():
            try:
                return _heal.resize(ranks, size, source)
            finally:
                self._hosts = ranks.hosts

    def rewire(self, backend: str | None = None, *, connections: int | None = None) -> str:
        """The same ranks over another backend; they keep their variables. Returns what became of them.

        Raises what `heal` raises.
        """
        ranks = self._whole()
        if connections is not None and connections < 1:
            raise UsageError(f"--connections {connections}: a ring link needs at least 1.")
        name = backend or self._backend_name
        known_backend(name)
        if reason := cannot_run(name, ranks.sites(ranks.hosts), up=True):
            raise CannotStart(reason)
        with self._changing, undisturbed():
            told = _heal.rewire(ranks, name, connections or ranks.settings.connections)
            self._backend_name = name
        return told
