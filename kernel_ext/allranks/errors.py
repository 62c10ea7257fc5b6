"""What can go wrong, one class for each thing a caller would handle differently.

All of them render in a notebook as their message alone: the reader made a slip, or a rank did, and our own frames would
only hide it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


class AllranksError(Exception):
    """Base of all errors of allranks."""

    def _render_traceback_(self) -> list[str]:
        """Called by IPython instead of formatting a traceback."""
        return [f"\x1b[31m{type(self).__name__}\x1b[0m: {self}"]


class UsageError(AllranksError, ValueError):
    """An argument that cannot be: an unknown verb or backend, a rank that is not there, no ranks at all."""


class NoCluster(AllranksError, RuntimeError):
    """Nothing is up."""


class CannotStart(AllranksError, RuntimeError):
    """The ranks or their world could not be started."""


class HostUnreachable(AllranksError, RuntimeError):
    """A host could not be asked what it is, or could not be set up."""


class Busy(AllranksError, RuntimeError):
    """Ranks still run an earlier cell."""


class WorldBroken(AllranksError, RuntimeError):
    """A rank is dead or a collective was broken off, so collectives cannot complete until the world is healed."""


class WouldHang(AllranksError, RuntimeError):
    """The cell would wait for ever: it evaluates on some ranks what all must compute together."""


class CannotTravel(AllranksError, TypeError):
    """A value cannot be moved between processes."""


@dataclass(frozen=True)
class RemoteError:
    """An exception as it was raised on a rank."""

    ename: str
    """Class name, such as ``ZeroDivisionError``."""
    evalue: str
    """Its message."""
    traceback: str
    """As IPython formatted it on the rank, with terminal colours."""
    line: int | None
    """Line of the cell, 1 for its first."""

    def __str__(self) -> str:
        where = f" (line {self.line})" if self.line else ""
        first = self.evalue.splitlines()[0][:200] if self.evalue else ""
        return f"{self.ename}: {first}{where}" if first else f"{self.ename}{where}"


class CellFailed(AllranksError, RuntimeError):
    """The cell raised on some ranks, or ranks died in it. ``errors`` has what each rank raised of its own."""

    def __init__(self, message: str, errors: Mapping[int, RemoteError]) -> None:
        super().__init__(message)
        self.errors = dict(errors)


class CellTimeout(AllranksError, TimeoutError):
    """The cell ran longer than its ``--timeout``."""


class CellInterrupted(KeyboardInterrupt):
    """The stop button or Ctrl-C: the ranks were interrupted, and so is "Run All"."""

    def _render_traceback_(self) -> list[str]:
        return [f"\x1b[31mKeyboardInterrupt\x1b[0m: {self}" if str(self) else "\x1b[31mKeyboardInterrupt\x1b[0m"]
