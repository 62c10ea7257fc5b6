"""The part of `Cluster` that changes who is in the world, and keeps what the ranks hold."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

from allranks.arguments import known_backend
from allranks.errors import CannotStart, UsageError
from allranks.head.world import healing
from allranks.head.world.change import WorldChange
from allranks_backends.registry import cannot_run

from .base import ClusterBase
from .stop import undisturbed


def _unsaid(_line: str) -> None:
    pass


class ClusterMembers(ClusterBase):
    """Heal, resize, rewire."""

    def heal(
        self, *, source: int | None = None, kill: Sequence[int] = (), progress: Callable[[str], None] = _unsaid
    ) -> WorldChange:
        """Replace dead ranks by new processes and re-form the world; the others keep all variables.

        With ``source``, a new rank gets the variables of that rank, as far as they can be sent. Ranks to ``kill`` are
        killed first, for one that is stuck and cannot be interrupted. Where all processes must be started again,
        `progress` gets the variables that will not survive that, before anything is ended. Returns what was kept and
        what was lost. Raises CannotStart, NotLoaded where new processes lack what was saved for them (the
        message says where it is), and Busy where a cell cannot be interrupted.
        """
        ranks = self._up()
        dead = [rank.rank for rank in ranks.monitor.ranks if rank.dead]
        doomed = self.choose_ranks(kill) if kill else []
        busy = [rank.rank for rank in ranks.monitor.busy(range(self.size))]
        if not dead and not doomed and ranks.monitor.state == "whole":
            return self._unchanged("heal", busy)
        if source is not None and self.choose_ranks(source)[0] in (*dead, *doomed):
            raise UsageError(f"cannot copy from rank {source}: it is dead. Choose a living rank.")
        with self._changing, undisturbed():
            return healing.heal(ranks, source, doomed, progress)

    def _unchanged(self, verb: Literal["heal", "resize"], busy: Sequence[int] = ()) -> WorldChange:
        """There was nothing to do."""
        generation = self._up().monitor.generation
        return WorldChange(verb, self.size, self.backend, generation, changed=False, busy=tuple(busy))

    def resize(self, size: int, *, source: int | None = None, progress: Callable[[str], None] = _unsaid) -> WorldChange:
        """Grow or shrink the world to `size` ranks; those that stay keep their variables. Returns what became of them.

        With ``source``, a new rank gets the variables of that rank, as far as they can be sent. `progress` is as in
        `heal`. Raises what `heal` raises.
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
            return self._unchanged("resize")
        if reason := cannot_run(self._backend_name, ranks.sites(healing.resized(ranks.hosts, size))):
            raise CannotStart(reason)
        with self._changing, undisturbed():
            try:
                return healing.resize(ranks, size, source, progress)
            finally:
                self._hosts = ranks.hosts

    def rewire(
        self,
        backend: str | None = None,
        *,
        connections: int | None = None,
        progress: Callable[[str], None] = _unsaid,
    ) -> WorldChange:
        """The same ranks over another backend; they keep their variables. Returns what became of them.

        `progress` is as in `heal`. Raises what `heal` raises.
        """
        ranks = self._whole()
        if connections is not None and connections < 1:
            raise UsageError(f"--connections {connections}: a ring link needs at least 1.")
        name = backend or self._backend_name
        known_backend(name)
        if reason := cannot_run(name, ranks.sites(ranks.hosts), up=True):
            raise CannotStart(reason)
        with self._changing, undisturbed():
            try:
                return healing.rewire(ranks, name, connections or ranks.settings.connections, progress)
            finally:
                assert ranks.plan is not None
                self._backend_name = ranks.plan.backend
