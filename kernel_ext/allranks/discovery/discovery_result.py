"""The result of `discover`, which users can display, inspect and write as a hostfile."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from allranks_backends.machines.ethernet_hosts import Server
from allranks_backends.thunderbolt.addressing import Addressing
from allranks_backends.thunderbolt.cables import Cable
from allranks_backends.thunderbolt.proposal import Proposal
from allranks_backends.thunderbolt.thunderbolt_ports import Mac
from allranks_backends.views import Snapshot

from . import discovery_snapshot as picture_module
from . import discovery_text


@dataclass(frozen=True, repr=False)
class Discovery:
    """Hosts and how they are connected. Displays itself in a notebook; ``print`` it elsewhere."""

    names: tuple[str, ...]
    """The hosts' names for ssh, as they were given."""
    over: str
    """``thunderbolt`` or ``ethernet``."""
    macs: tuple[Mac, ...] = ()
    servers: tuple[Server, ...] = ()
    """The hosts, if not all of them are Macs."""
    cables: tuple[Cable, ...] = ()
    """Thunderbolt cables between the Macs."""
    addresses: Addressing = field(default_factory=lambda: Addressing({}))
    """The addresses that the cables' ends have or are to get."""
    proposal: Proposal | None = None
    """The world that these hosts can form; None if cables are missing."""
    missing: tuple[str, ...] = ()
    """The cables to connect before a ring can pass through all hosts, one sentence each."""
    for_mesh: tuple[str, ...] = ()
    """The cables to connect for a full mesh with RDMA, one sentence each."""
    notes: tuple[str, ...] = ()
    """Problems and other remarks, with what to do about them."""
    todo: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """The commands to run on each host to give the cables addresses; see `setup`."""
    set_up: Callable[[Discovery], Discovery] = field(default=lambda found: found, repr=False, compare=False)
    """Runs `todo` and discovers again (`discover.set_up`)."""

    @property
    def backend(self) -> str | None:
        """The backend that the proposal names; None without a proposal, or if it names none."""
        return self.proposal.backend or None if self.proposal is not None else None

    @property
    def hostfile(self) -> dict[str, Any] | None:
        """The hostfile as ``mlx.distributed_config`` writes it; None if cables are missing."""
        return self.proposal.hostfile if self.proposal is not None else None

    def write(self, path: str | os.PathLike[str]) -> None:
        """Write the hostfile for ``up --hostfile``. Raises ValueError that names the cables if cables are missing."""
        if self.hostfile is None:
            raise ValueError(f"no hostfile for these cables; missing: {'; '.join(self.missing)}.")
        Path(path).expanduser().write_text(json.dumps(self.hostfile, indent=4), encoding="utf-8")

    def setup(self) -> Discovery:
        """Run `todo` on the hosts with sudo, and discover again. Raises HostUnreachable with each host's failure."""
        return self.set_up(self)

    def snapshot(self) -> Snapshot:
        """The world that these hosts could form, for drawing."""
        return picture_module.drawn(self)

    def __repr__(self) -> str:
        return discovery_text.text(self)

    def _repr_html_(self) -> str:
        return discovery_text.html(self)

    def _ipython_display_(self) -> None:
        from IPython.core.display_functions import display
        from IPython.core.getipython import get_ipython

        if getattr(get_ipython(), "kernel", None) is None:
            print(repr(self))
            return
        if len(self.names) > 1:
            from allranks_widgets import Dashboard

            picture = Dashboard(["topology"], tables=False)
            picture.show(self.snapshot())
            picture.flush()
            display(picture)  # type: ignore[no-untyped-call]
        bundle = {"text/plain": repr(self), "text/html": self._repr_html_()}
        display(bundle, raw=True)  # type: ignore[no-untyped-call]
