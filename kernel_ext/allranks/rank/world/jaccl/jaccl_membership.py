"""A rank's membership in JACCL worlds: whether they can be aborted here, and the release of their RDMA resources.

RDMA resources that a process holds when it is killed may be lost until the Mac is restarted (mlx #3207, #3910). So a
world is left before the process ends, whether on request or by SIGTERM.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from types import ModuleType
from typing import TYPE_CHECKING

from allranks.machine.jaccl_systems import PROVEN, SWITCH, macos_version
from allranks.rank.collectives.ledger import Ledger
from allranks.rank.world.last_signal import before_sigterm
from allranks.rank.world.shared_libraries import NotInPlace

from .abortable_jaccl import AbortableJaccl
from .verbs_check import VerbsTrial
from .verbs_table import VerbsTable

if TYPE_CHECKING:
    from mlx.core import Stream

ENDS = "this rank's process is being ended"
"""Message of the error that further collectives raise."""
RETURNS_WITHIN = 1.5
"""Seconds that collectives get to return before the process ends."""


class JacclMember:
    def __init__(self, ledger: Ledger, blocked: Callable[[], bool], on_sigterm: Callable[[], None]) -> None:
        """`blocked` returns whether the main thread waits on a lock.

        `on_sigterm` is called before SIGTERM ends the process.
        """
        self._ledger, self._blocked, self._on_sigterm = ledger, blocked, on_sigterm
        self._table: VerbsTable | None = None
        self._trial: VerbsTrial | None = None
        self._before: dict[str, set[int]] = {}
        """The resources that JACCL held before the newest world, by verb."""
        self.not_in_place = ""
        """Why collectives of JACCL cannot be aborted here, as a clause; empty if they can, or before `prepare`."""
        self._streams: list[Stream] = []

    @property
    def is_tracked(self) -> bool:
        """Whether the resources that JACCL makes are tracked."""
        return self._table is not None

    def prepare(self, mx: ModuleType) -> None:
        """Note which resources exist. The first call begins to track them, and to handle SIGTERM.

        Call this before each JACCL world.
        """
        if self._table is not None:
            self._before = {make: set(held) for make, held in self._table.held.items()}
        if self._table is not None or self.not_in_place:
            return
        before_sigterm(self._on_sigterm)
        try:
            found = usable_table(mx)
            self._trial = VerbsTrial(found)
        except NotInPlace as error:
            self.not_in_place = str(error)
            return
        found.install()
        self._table = found
        self._before = {make: set() for make in found.held}

    def joined(self, streams: list[Stream]) -> AbortableJaccl | None:
        """Return the means to abort the world just joined; None if it cannot be aborted.

        `streams` are the streams that its collectives use.
        """
        if self._table is None or self._trial is None or self.not_in_place:
            return None
        self._streams = streams
        try:
            return AbortableJaccl(self._blocked, self._table, self._trial, self._table.held_since(self._before))
        except NotInPlace as error:
            self.not_in_place = str(error)
            return None

    def give_up(self, because: str) -> None:
        """Abort no more collectives, in this world and the next ones: other ranks cannot, and `because` says why."""
        self.not_in_place = self.not_in_place or because

    def release(self, break_up: Callable[[bytes | None], None]) -> None:
        """End the world's collectives with `break_up`, and free JACCL's resources if all collectives have returned."""
        if self._table is not None and any(self._table.held.values()):
            self._refuse()  # the main thread goes on until the process ends
            break_up(None)
            if self._returned():  # otherwise a thread still uses them
                self._table.free_all()

    def _refuse(self) -> None:
        ledger = self._ledger
        ledger.refuse = ENDS
        if (newest := ledger.last()) is not None:
            ledger.aborted.note(newest, ledger.in_flight(), None)

    def _returned(self) -> bool:
        """Whether all collectives return within `RETURNS_WITHIN`."""
        import mlx.core as mx

        def wait() -> None:
            for stream in self._streams:
                try:
                    mx.synchronize(stream)
                except RuntimeError:
                    pass  # an aborted collective may raise

        thread = threading.Thread(target=wait, daemon=True)
        thread.start()
        thread.join(RETURNS_WITHIN)
        return not thread.is_alive()


def usable_table(mx: ModuleType) -> VerbsTable:
    """MLX's table of verbs. Raises NotInPlace if it is not found or may not be used; writes nothing."""
    _check_switch()
    if not mx.distributed.is_available("jaccl"):  # MLX opens librdma only now
        raise NotInPlace(f"MLX cannot load {sys.platform}'s librdma")
    return VerbsTable()


def _check_switch() -> None:
    """Raise NotInPlace if `SWITCH` is 0, or if it is not 1 on a version of macOS that is not in `PROVEN`."""
    switch = os.environ.get(SWITCH, "")
    if switch == "0":
        raise NotInPlace(f"{SWITCH}=0 is set", f"unset {SWITCH}")
    if sys.platform == "darwin" and switch != "1" and (version := macos_version()) not in PROVEN:
        raise NotInPlace(
            f"this is not proven on macOS {version} ({SWITCH}=1 turns it on)", f"%distributed up --env {SWITCH}=1"
        )
