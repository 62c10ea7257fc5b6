"""A cluster's options, and the settings derived from them on this machine."""

from __future__ import annotations

import json
import secrets
import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeAlias

from allranks_backends.plan import Host
from allranks_backends.registry import get_backend

from .check_arguments import known_backend, lease_of
from .errors import UsageError
from .hosts_from_options import python_here
from .machine.lease import SAVED_WITHIN
from .up_options import OF_PLACE_AND_TIME, UpOptions

StoredSettings: TypeAlias = dict[str, Any]
"""Settings by attribute name, as values that JSON supports."""


@dataclass
class Settings:
    """The settings that the user asked for, the same for every rank."""

    options: UpOptions
    """The options as given, with the hostfile's variables, and with later changes by `rewire` and `auto_sync`."""
    python: str
    python_here: str
    """The interpreter on the notebook's machine; `python` may be meant for other hosts only."""
    cwd: str
    folder: str
    """The notebook's working folder."""
    shared: bool
    """Whether some ranks run on other hosts, or may, since a scheduler or ipyparallel starts them."""
    join_file: str | None
    """The file that tells ranks started by a scheduler how to connect; None if they learn it another way."""
    lease: float | None
    """Seconds that idle ranks stay when this process is gone or out of reach; None for no limit."""
    sync_limit: int | None = None
    """Maximum number of bytes to send of the folder; None for the default."""
    sync_include: Sequence[str] = ()
    """Patterns of files to send that would otherwise be left out."""
    folders: dict[str, str] = field(default_factory=dict)
    """Maps each host that has received the folder to the folder's path there."""
    attached_as: str = ""
    """The name for `attach`: the cluster's, unless another cluster has that name. Empty until it is chosen."""
    token: str = field(default_factory=lambda: secrets.token_hex(32))

    @classmethod
    def of(cls, options: UpOptions, hosts: Sequence[Host], backend: str, env: Mapping[str, str]) -> Settings:
        """The settings of ranks on `hosts`; `env` has the hostfile's variables.

        Raises UsageError if this machine lacks the working folder or the interpreter, if the backend is unknown or
        cannot be used, or if `save` is given without a lease.
        """
        others = any(not host.local for host in hosts)
        settings = cls(
            replace(options, env={**env, **(options.env or {})}),
            python=options.python or sys.executable,
            python_here=python_here(hosts, options.python),
            cwd=str(options.cwd or Path.cwd()),
            folder=str(Path.cwd()),
            shared=options.joins or others,
            join_file=str(Path(options.join).expanduser().absolute()) if options.join is not None else None,
            lease=lease_of(options.lease, lasts=options.keep or others),
        )
        if options.save is not None and not settings.lease:
            raise UsageError("--save saves before a lease ends the ranks: add --lease 12h, for example.")
        if backend != "auto":
            known_backend(backend)
            if options.joins and get_backend(backend).launcher == "mpirun":
                raise UsageError(
                    f"{backend} ranks must be started by mpirun, and these are started by something else: use --hosts."
                )
        if any(host.local for host in hosts) and not options.sync and not Path(settings.cwd).is_dir():
            raise UsageError(f"--cwd {settings.cwd}: no such folder.")
        if shutil.which(settings.python_here) is None:
            raise UsageError(f"--python {settings.python_here}: no such program.")
        return settings

    @classmethod
    def read(cls, stored: StoredSettings) -> Settings:
        """Restore the result of `stored`. Raises TypeError, KeyError or ValueError if another version wrote it."""
        return cls(**{**stored, "options": UpOptions(**stored["options"])})

    def stored(self) -> StoredSettings:
        """The settings as plain values, as they are written to the file for `attach`."""
        plain: StoredSettings = json.loads(json.dumps({**vars(self), "options": vars(self.options)}, default=_plain))
        return plain

    def change(self, **options: Any) -> None:
        """Change the values of these options."""
        self.options = replace(self.options, **options)

    def like(self) -> dict[str, object]:
        """The settings by which two clusters count as the same, wherever their ranks are."""
        stored = self.stored()
        alike = {name: each for name, each in stored["options"].items() if name not in OF_PLACE_AND_TIME}
        return {**alike, "cwd": stored["cwd"], "python": stored["python"], "python_named": self.python_named}

    @property
    def stays(self) -> float:
        """Seconds that ranks stay beyond the lease so that their variables can be saved."""
        return SAVED_WITHIN if self.options.save is not None else 0.0

    @property
    def lease_of_ranks(self) -> float | None:
        return self.lease + self.stays if self.lease is not None else None

    def saver(self) -> list[str]:
        """The command that the notebook's host runs when the lease has expired; empty for none."""
        if self.options.save is None:
            return []
        return [sys.executable, "-m", "allranks", "down", self.attached_as, "--save", self.options.save]

    @property
    def name(self) -> str:
        return self.options.name

    @property
    def env(self) -> Mapping[str, str]:
        """Variables that are set on all ranks."""
        return self.options.env or {}

    @property
    def python_named(self) -> bool:
        """Whether the user named one interpreter for all hosts.

        If not, a host for which none was named uses the environment of `setup` or, without one, the path of this
        process's Python.
        """
        return self.options.python is not None

    @property
    def cwd_named(self) -> bool:
        """Whether the user named the working folder. Otherwise it is the notebook's, which another host may lack."""
        return self.options.cwd is not None


def _plain(value: object) -> object:
    """Convert numpy's numbers and arrays, iterables and paths to values that JSON supports."""
    if hasattr(value, "tolist"):
        return value.tolist()
    return list(value) if isinstance(value, Iterable) else str(value)
