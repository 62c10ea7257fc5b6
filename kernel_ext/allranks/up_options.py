"""The options of a cluster, declared once.

The options of ``%distributed up`` (`magics.parsers`), the keywords of `Cluster`, and the options in the file for
`attach` are all made from the fields of `UpOptions`. A new option needs a field here and the code that acts on it.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Annotated, Literal, get_args

from allranks.check_arguments import lease_of
from allranks.errors import UsageError
from allranks.typed_options import Typed, typed

Check = Literal["off", "warn", "strict"]
BACKENDS = "auto, ring, jaccl, jaccl-ring, mpi or nccl"

OF_PLACE_AND_TIME = {
    *("n", "hosts", "hostfile", "ranks_per_host", "join", "ipp_profile", "timeout", "backend", "python", "cwd"),
    *("keep", "lease", "save", "name"),
}
"""Options that `Settings.like` leaves out, or compares by the settings made from them (`cwd`, `python`)."""


def listed(text: str) -> list[str]:
    """The comma-separated parts of `text`, without empty ones."""
    return [part.strip() for part in text.split(",") if part.strip()]


def setting(text: str) -> tuple[str, str]:
    """Split ``NAME=VALUE`` into a variable and its value. Raises argparse.ArgumentTypeError."""
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise argparse.ArgumentTypeError(f"invalid setting {text!r}: use NAME=VALUE")
    return name, value


def _ranks(n: int) -> None:
    if n < 1:
        raise UsageError(f"-n {n}: a world needs at least 1 rank.")


def _connections(number: int) -> None:
    if number < 1:
        raise UsageError(f"--connections {number}: a ring link needs at least 1.")


def _seconds(timeout: float) -> None:
    if not timeout >= 0:
        raise UsageError(f"--timeout {timeout:g}: use a number of seconds, 0 or more.")


def _known_check(check: str) -> None:
    if check not in ("off", "warn", "strict"):
        raise UsageError(f"invalid check {check!r}: use off, warn or strict.")


def _profile(name: str) -> None:
    if not name:
        raise UsageError("--ipp-profile '': use the name of a profile, such as default.")


def _name(name: str) -> None:
    if not isinstance(name, str) or not re.fullmatch(r"\w[\w.-]{0,63}", name):
        raise UsageError(f"--name {name!r}: use up to 64 letters, digits, dots, dashes and underscores.")


@dataclass(frozen=True)
class UpOptions:
    """The options of a cluster, as the user gives them. Raises UsageError for invalid values."""

    n: Annotated[int | None, Typed("ranks on this machine (default 2)", flag="-n", exclusive=True, refuse=_ranks)] = (
        None
    )
    _: KW_ONLY
    hosts: Annotated[
        Sequence[str] | str | None,
        Typed(
            "comma-separated hosts, one rank on each; 'mac1 python=P cwd=D' sets these", parse=listed, exclusive=True
        ),
    ] = None
    hostfile: Annotated[str | Path | None, Typed("mlx's JSON hostfile, or MPI's 'host slots=n'", exclusive=True)] = None
    join: Annotated[str | Path | None, Typed("write FILE, for ranks that a scheduler starts", "FILE")] = None
    ipp_profile: Annotated[
        str | None, Typed("ranks next to the engines of a running ipyparallel cluster", "P", refuse=_profile)
    ] = None
    timeout: Annotated[
        float | None, Typed("seconds to wait for the ranks, or engines, of these", "S", refuse=_seconds)
    ] = None
    ranks_per_host: Annotated[int, Typed("ranks per host of --hosts or --hostfile")] = 1
    backend: Annotated[str, Typed(BACKENDS)] = "auto"
    env: Annotated[
        Mapping[str, str] | None, Typed("set this variable on all ranks", "K=V", parse=setting, repeat=dict)
    ] = None
    python: Annotated[str | None, Typed("interpreter of the ranks (default: the notebook's)")] = None
    cwd: Annotated[str | Path | None, Typed("working folder of the ranks (default: the notebook's)")] = None
    connections: Annotated[int, Typed("TCP connections per ring link", refuse=_connections)] = 1
    mpi_args: Annotated[
        Sequence[str], Typed("passed to mpirun; may be repeated", "A", flag="--mpi-arg", repeat=tuple)
    ] = ()
    keep: Annotated[bool, Typed("keep running when the notebook ends; see attach")] = False
    lease: Annotated[
        float | str | None,
        Typed("how long ranks stay without a notebook: 12h (default), 0 or none", "T", parse=str, refuse=lease_of),
    ] = None
    save: Annotated[
        str | None, Typed("folder to save variables to before a lease ends the ranks (see %%distributed save)", "PATH")
    ] = None
    check: Annotated[Check, Typed("check that ranks' collectives agree", refuse=_known_check)] = "warn"
    ordered: Annotated[bool, Typed("run collectives in call order")] = False
    sync: Annotated[
        bool,
        Typed(
            "before each cell, bring the notebook's folder to all hosts and reload changed modules (default: no)",
            negatable=True,
        ),
    ] = False
    name: Annotated[str, Typed("name of the cluster", refuse=_name)] = "main"

    def __post_init__(self) -> None:
        object.__setattr__(self, "mpi_args", tuple(self.mpi_args))
        if self.hosts is not None and not isinstance(self.hosts, str):
            object.__setattr__(self, "hosts", list(self.hosts))
        for name, (kind, how) in typed(UpOptions).items():
            value = getattr(self, name)
            if how.refuse is not None and (value is not None or type(None) not in get_args(kind)):
                how.refuse(value)
        if self.joins and (self.hosts, self.hostfile, self.ranks_per_host) != (None, None, 1):
            raise UsageError(
                "--join and --ipp-profile cannot be combined with --hosts, --hostfile or --ranks-per-host."
            )
        if self.join is not None and self.ipp_profile is not None:
            raise UsageError("--join and --ipp-profile cannot be combined: each sets who starts the ranks.")
        if self.timeout is not None and not self.joins:
            raise UsageError("--timeout is for --join and --ipp-profile: other ranks are started at once.")
        if self.joins and lease_of(self.lease, lasts=self.keep) != 0:
            raise UsageError(
                "--keep and --lease do not work with --join and --ipp-profile: these ranks end with the notebook."
            )
        if self.keep and lease_of(self.lease) == 0:
            raise UsageError("--keep and --lease 0 contradict each other: choose one.")

    @property
    def joins(self) -> bool:
        """Whether the ranks are started by a scheduler, or beside ipyparallel engines, and connect to the notebook."""
        return self.join is not None or self.ipp_profile is not None
