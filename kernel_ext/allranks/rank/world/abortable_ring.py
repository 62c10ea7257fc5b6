"""Aborting a ring within the process: its sockets, and the placeholders that replace them."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from allranks.rank.collectives import poison
from allranks.rank.collectives.poison import Asked
from allranks.rank.metrics.link_stats import LinkStats

from .held_sockets import hold
from .placeholders import Placeholders
from .ring_sockets import has_ended, with_ports


class AbortableRing:
    """The ring that this process is in."""

    def __init__(self, holder: int | None, wire: LinkStats, sockets: frozenset[int], ports: Collection[int]) -> None:
        """The ring's sockets are the ones among `sockets` that have one of `ports`.

        All of `sockets` were opened while the ring was joined: an older, unrelated socket may also have one of `ports`.
        """
        self._holder, self._wire, self._sockets, self.ports = holder, wire, sockets, frozenset(ports)
        own = self._own()
        hold(holder, own)
        self._joined = len(own)
        self._placeholders: Placeholders | None = None

    @property
    def broken_up(self) -> bool:
        """Whether collectives of this world were aborted."""
        return self._placeholders is not None

    def pattern(self, in_flight: Iterable[Asked]) -> bytes:
        """The pattern with which `break_up` is to abort these collectives."""
        return poison.pattern(in_flight)

    def break_up(self, pattern: bytes | None) -> None:
        """Make the collectives in flight return, with invalid results that `pattern` marks (zeros if it is None)."""
        if self._placeholders is None and (descriptors := self._own()):
            self._wire.leave()
            self._placeholders = Placeholders(pattern or poison.ZEROS)
            self._placeholders.take(descriptors)

    def broken_elsewhere(self) -> None:
        """Do nothing: another rank has broken this world, and the head unblocks this rank if it is blocked."""

    def help(self) -> float | None:
        """Return None: no rank of a ring needs an answer from this one."""
        return None

    def is_whole(self) -> bool:
        """Whether nothing was aborted and all sockets are open at both ends, which MLX does not check (0.32.4)."""
        left = self._own()
        return not self.broken_up and len(left) == self._joined and not any(map(has_ended, left))

    def leave(self) -> list[int]:
        """Make arrays that still wait for this world raise instead of hang; returns the placeholders' descriptors."""
        hold(self._holder, ())
        if self._placeholders is None:
            return []
        self._placeholders.close()
        return self._placeholders.descriptors

    def let_go(self) -> None:
        """Close the sockets to the neighbours. Called once all ranks have left this world.

        If the sockets were closed earlier, a collective in a neighbour's thread would return an undefined result.
        """
        if self._placeholders is not None:
            self._placeholders.let_go()

    def _own(self) -> list[int]:
        return with_ports(self._sockets, self.ports)
