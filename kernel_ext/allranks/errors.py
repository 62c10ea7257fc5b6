"""What can go wrong, one class for each thing a caller would handle differently.

All of them render in a notebook as their message alone: the reader made a slip, or a rank did, and our own frames would
only hide it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .head.world.change import WorldChange


class AllranksError(Exception):
    """Base of all errors of allranks."""

    def _render_traceback_(self) -> list[str]:
        """Called by IPython instead of formatting a traceback."""
        return [f"\x1b[31m{type(self).__name__}\x1b[0m: {self}"]


class UsageError(AllranksError, ValueError):
    """An invalid argument: an unknown verb or backend, a rank that does not exist, no ranks at all."""


class NoCluster(AllranksError, RuntimeError):
    """No cluster is up."""


@dataclass(frozen=True)
class HostCause:
    """Why a host keeps ranks from being started."""

    host: str
    why: str
    """A sentence, and what to do."""
    logged_in: bool = True
    """Whether its shell has run a command."""
    said: tuple[str, ...] = ()
    """What ssh, or the host's shell, said: the last lines."""
    hangs: bool = False
    """Whether its Python was started and did not run its first lines in time."""


@dataclass(frozen=True)
class Apart:
    """Two hosts, of which one cannot reach the other at this address."""

    one: str
    other: str
    address: str
    why: str
    """A clause."""


class CannotStart(AllranksError, RuntimeError):
    """The ranks or their world could not be started; `causes` and `apart` say it of each host, where hosts are why."""

    def __init__(
        self,
        message: str,
        *,
        transient: bool = False,
        causes: Sequence[HostCause] = (),
        apart: Sequence[Apart] = (),
    ) -> None:
        super().__init__(message)
        self.causes, self.apart = tuple(causes), tuple(apart)
        self.transient = transient
        """Whether the cause may be gone at the next try, such as a port that was taken after it had been chosen."""


class HostUnreachable(AllranksError, RuntimeError):
    """A host could not be reached, or could not be set up."""


class CannotCopy(AllranksError, RuntimeError):
    """Files could not be brought to a host or from one; the message says what is there now."""


class CannotSave(AllranksError, RuntimeError):
    """The ranks' variables could not be saved; what the folder held is whole."""


class CannotLoad(AllranksError, RuntimeError):
    """There is no saved state, or it cannot be loaded here; no rank has loaded any of it."""


class Busy(AllranksError, RuntimeError):
    """Ranks still run an earlier cell."""


class NoAnswer(AllranksError, TimeoutError):
    """A rank that is not dead does not answer: its process is stopped, or its host is unreachable."""


class WorldBroken(AllranksError, RuntimeError):
    """A rank is dead or a collective was aborted, so collectives cannot complete until the world is healed."""


class NotLoaded(AllranksError, RuntimeError):
    """The world was formed with new processes that lack variables: the message says which, and where they are.

    ``change`` has the same as fields.
    """

    def __init__(self, message: str, change: WorldChange) -> None:
        super().__init__(message)
        self.change = change


class RankError(AllranksError, RuntimeError):
    """A request to a rank raised an unexpected error there. ``traceback`` is that of the rank."""

    def __init__(self, message: str, traceback: str = "") -> None:
        super().__init__(message)
        self.traceback = traceback

    def _render_traceback_(self) -> list[str]:
        return [*super()._render_traceback_(), *([self.traceback] if self.traceback else [])]


class NotRun(AllranksError, RuntimeError):
    """A cell in the queue was not run, since another one did not end well, or it was dropped."""


class WouldHang(AllranksError, RuntimeError):
    """The cell would wait indefinitely: it evaluates on some ranks what all must compute together."""


class CannotTravel(AllranksError, TypeError):
    """A value cannot be sent to another process."""


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
    """Line of the cell, 1 for its first; of a function's file where one was applied."""
    place: str = ""
    """What that file is called: ``In[3]`` for a cell of the notebook, ``train.py``; empty for code."""

    @property
    def missing_name(self) -> str:
        """The name that a NameError is about; empty for other errors."""
        found = re.match(r"name '(\w+)' is not defined", self.evalue) if self.ename == "NameError" else None
        return found[1] if found else ""

    @property
    def missing_module(self) -> str:
        """The name that a ModuleNotFoundError is about, empty for other errors, and for a submodule."""
        found = re.match(r"No module named '(\w+)'$", self.evalue) if self.ename == "ModuleNotFoundError" else None
        return found[1] if found else ""

    def __str__(self) -> str:
        where = f" (line {self.line}{f' of {self.place}' if self.place else ''})" if self.line else ""
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
    """The stop button or Ctrl-C: the cell, or the transfer of values, was stopped, and so is "Run All"."""

    def _render_traceback_(self) -> list[str]:
        return [f"\x1b[31mKeyboardInterrupt\x1b[0m: {self}" if str(self) else "\x1b[31mKeyboardInterrupt\x1b[0m"]
