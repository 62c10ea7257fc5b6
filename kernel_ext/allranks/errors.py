"""The errors of allranks: one class for each case that a caller would handle differently.

In a notebook they show only their message (`RankError` also the rank's traceback): the mistake is in the user's code or
arguments, and the frames of allranks would only hide it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

Change = TypeVar("Change")


class AllranksError(Exception):
    """Base of all exceptions in this module except `CellInterrupted`."""

    def _render_traceback_(self) -> list[str]:
        """Called by IPython instead of formatting a traceback."""
        return [f"\x1b[31m{type(self).__name__}\x1b[0m: {self}"]


class UsageError(AllranksError, ValueError):
    """An invalid argument, such as a rank that does not exist, or a call at a wrong time, such as ``up`` twice."""


class NoCluster(AllranksError, RuntimeError):
    """No cluster is up, there is none to attach to or to end, or the cluster ended while a cell ran."""


@dataclass(frozen=True)
class HostCause:
    """Why ranks cannot be started on a host."""

    host: str
    why: str
    """The reason as a sentence, and what to do about it."""
    logged_in: bool = True
    """Whether the login worked: the shell of the host has run a command."""
    said: tuple[str, ...] = ()
    """The last lines that ssh or the host's shell printed."""
    hangs: bool = False
    """Whether the host's Python was started but did not run its first lines in time."""


@dataclass(frozen=True)
class Apart:
    """Two hosts: `one` cannot reach `other` at `address`."""

    one: str
    other: str
    address: str
    why: str
    """The reason, as a clause."""


class CannotStart(AllranksError, RuntimeError):
    """The ranks or their world could not be started; `causes` and `apart` name the hosts that caused it, if any."""

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
        """Whether another attempt may succeed, for example after a chosen port was taken by another process."""


class HostUnreachable(AllranksError, RuntimeError):
    """A host could not be reached or set up, or its answers could not be understood."""


class CannotCopy(AllranksError, RuntimeError):
    """Files or output could not be copied to or from a host; the message says why."""


class CannotSave(AllranksError, RuntimeError):
    """The ranks' variables could not be saved; an older state in the folder is not damaged."""


class CannotLoad(AllranksError, RuntimeError):
    """There is no saved state, or it cannot be loaded here; no rank has loaded anything."""


class Busy(AllranksError, RuntimeError):
    """Ranks are busy, usually with an earlier cell, or another process runs the same experiment."""


class NoAnswer(AllranksError, TimeoutError):
    """Some of the ranks did not answer: they are dead, their process is stopped, or their host is unreachable."""


class WorldBroken(AllranksError, RuntimeError):
    """A rank is dead, a collective was aborted, or a change of the world did not finish: the world must be healed."""


class NotLoaded(AllranksError, RuntimeError, Generic[Change]):
    """The world was formed, but ranks lack variables that they were meant to get.

    The message names the variables, and the files that hold them, if any. ``change`` is the `WorldChange` with the same
    facts as fields.
    """

    def __init__(self, message: str, change: Change) -> None:
        super().__init__(message)
        self.change = change


class RankError(AllranksError, RuntimeError):
    """A request to a rank raised an unexpected error there. ``traceback`` is the rank's traceback."""

    def __init__(self, message: str, traceback: str = "") -> None:
        super().__init__(message)
        self.traceback = traceback

    def _render_traceback_(self) -> list[str]:
        return [*super()._render_traceback_(), *([self.traceback] if self.traceback else [])]


class NotRun(AllranksError, RuntimeError):
    """A queued cell was not run: it was dropped, a cell before it did not succeed, or it could not be sent."""


class WouldHang(AllranksError, RuntimeError):
    """The ranks would wait indefinitely: some would evaluate an array that all must compute together."""


class CannotTravel(AllranksError, TypeError):
    """A value cannot be sent to another process."""


@dataclass(frozen=True)
class RemoteError:
    """An exception as it was raised on a rank."""

    ename: str
    """Class name, such as ``ZeroDivisionError``."""
    evalue: str
    """The message of the exception."""
    traceback: str
    """The traceback as IPython formatted it on the rank, with terminal colours."""
    line: int | None
    """Line of the cell, counted from 1, or of the file of an applied function; None if unknown."""
    place: str = ""
    """Name of the file of an applied function, ``In[3]`` if a cell defined it; empty if `line` is the cell's."""

    @property
    def missing_name(self) -> str:
        """The name that a NameError is about; empty for other errors."""
        found = re.match(r"name '(\w+)' is not defined", self.evalue) if self.ename == "NameError" else None
        return found[1] if found else ""

    @property
    def missing_module(self) -> str:
        """The module that a ModuleNotFoundError is about; empty for other errors and for submodules."""
        found = re.match(r"No module named '(\w+)'$", self.evalue) if self.ename == "ModuleNotFoundError" else None
        return found[1] if found else ""

    def __str__(self) -> str:
        where = f" (line {self.line}{f' of {self.place}' if self.place else ''})" if self.line else ""
        first = self.evalue.splitlines()[0][:200] if self.evalue else ""
        return f"{self.ename}: {first}{where}" if first else f"{self.ename}{where}"


class CellFailed(AllranksError, RuntimeError):
    """The cell raised on some ranks, or ranks died in it.

    ``errors`` maps each rank that raised to its `RemoteError`; ranks that were only unblocked are not included.
    """

    def __init__(self, message: str, errors: Mapping[int, RemoteError]) -> None:
        super().__init__(message)
        self.errors = dict(errors)


class CellTimeout(AllranksError, TimeoutError):
    """The cell ran longer than its ``--timeout``, or had not ended after the `timeout` passed to ``finish``."""


class CellInterrupted(KeyboardInterrupt):
    """The stop button or Ctrl-C was pressed, so "Run All" stops. A message says what else was stopped, or goes on."""

    def _render_traceback_(self) -> list[str]:
        return [f"\x1b[31mKeyboardInterrupt\x1b[0m: {self}" if str(self) else "\x1b[31mKeyboardInterrupt\x1b[0m"]
