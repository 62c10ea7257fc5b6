"""What the user asked of a cluster."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


@dataclass
class Settings:
    """What the user asked for, the same for every rank."""

    name: str
    python: str
    python_named: bool
    """Whether the user named it for all hosts; else a host may have one of its own, or one that `setup` made."""
    python_here: str
    """The same on the notebook's own machine, where it is not meant for other hosts only."""
    cwd: str
    cwd_named: bool
    """Whether the user named it; where it is only the notebook's, another host may lack it."""
    env: Mapping[str, str]
    folder: str = ""
    """The notebook's working folder."""
    sync: bool = False
    """Whether each cell first brings that to the other hosts."""
    sync_limit: int | None = None
    """Bytes of it that are sent; None for the default."""
    sync_include: Sequence[str] = ()
    """Patterns of files that are sent though they would be left out."""
    folders: dict[str, str] = field(default_factory=dict)
    """Where it is on hosts that have got it, by their names."""
    mpi_args: Sequence[str] = ()
    connections: int = 1
    keep: bool = False
    """Whether it stays when this process ends by itself."""
    lease: float | None = 0.0
    """Seconds that it stays, while it runs nothing, when this process is gone or out of reach; None for ever."""
    attached_as: str = ""
    """The name for attaching; another than `name` where a cluster of that name is up in another notebook."""
    check: str = "warn"
    ordered: bool = False
    shared: bool = False
    """Whether some ranks run on other hosts."""
    joins: bool = False
    """Whether they are started by a scheduler, and call in."""
    join_file: str | None = None
    """Where those find how; None where it travels another way."""
    token: str = field(default_factory=lambda: secrets.token_hex(32))
