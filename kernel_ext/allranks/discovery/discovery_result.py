"""The result of `discover`, which users can display, inspect and write as a hostfile."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path

from allranks.units import count_text
from allranks_backends.machines.ethernet_hosts import Server
from allranks_backends.thunderbolt.addressing import PREFIX, Addressing
from allranks_backends.thunderbolt.cables import Cable
from allranks_backends.thunderbolt.mlx_config import HostfileJson
from allranks_backends.thunderbolt.proposal import Proposal
from allranks_backends.thunderbolt.thunderbolt_ports import Mac
from allranks_backends.views import RankView, Snapshot
from allranks_widgets.table import html_table, text_table

from . import discovery_snapshot

Table = tuple[tuple[str, ...], list[tuple[str, ...]]]
UNKNOWN = "–"


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
    """The world that these hosts can form; None if cables are missing, or for a single Mac over Thunderbolt."""
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
    def hostfile(self) -> HostfileJson | None:
        """The hostfile as ``mlx.distributed_config`` writes it; None without a proposal."""
        return self.proposal.hostfile if self.proposal is not None else None

    def write(self, path: str | os.PathLike[str]) -> None:
        """Write the hostfile for ``up --hostfile``. Without one, raises ValueError, which names the missing cables."""
        if self.hostfile is None:
            raise ValueError(f"no hostfile for these cables; missing: {'; '.join(self.missing)}.")
        Path(path).expanduser().write_text(json.dumps(self.hostfile, indent=4), encoding="utf-8")

    def setup(self) -> Discovery:
        """Run `todo` on the hosts with sudo, and discover again. Raises HostUnreachable with each host's failure."""
        return self.set_up(self)

    def snapshot(self) -> Snapshot:
        """The proposed ranks on their hosts and their links, for drawing; without a proposal, one rank per host."""
        ranks = self.proposal.order if self.proposal is not None else tuple(range(len(self.names)))
        links = (
            discovery_snapshot.between_servers(self.servers, ranks)
            if self.servers
            else discovery_snapshot.along_cables(self.cables, ranks, self.backend)
        )
        return Snapshot(
            name="discovered",
            backend=self.backend or self.over,
            state="planned",
            generation=0,
            ranks=tuple(RankView(rank, self.names[host], state="planned") for rank, host in enumerate(ranks)),
            at=time.time(),
            hosts=discovery_snapshot.hosts(self.macs, self.servers),
            links=tuple(links),
        )

    def __repr__(self) -> str:
        return _text(self)

    def _repr_html_(self) -> str:
        return _html(self)

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


def _text(found: Discovery) -> str:
    tables = [text_table(*table) for table in _tables(found) if table[1]]
    lists = [f"{head}\n" + "\n".join(f"  - {line}" for line in lines) for head, lines in _lists(found)]
    return "\n\n".join([_head(found), *tables, *lists])


def _html(found: Discovery) -> str:
    """The discovery as HTML without script or stylesheet, which an untrusted notebook displays too."""
    parts = [f'<div style="font-weight:bold;padding:2px 0">{escape(_head(found))}</div>']
    parts += [html_table(*table) for table in _tables(found) if table[1]]
    for head, lines in _lists(found):
        items = "".join(f"<li>{escape(line)}</li>" for line in lines)
        parts.append(f'<div style="padding:6px 0 0">{escape(head)}<ul style="margin:0">{items}</ul></div>')
    return f'<div style="padding:2px 6px">{"".join(parts)}</div>'


def setup_text(found: Discovery) -> str:
    """The commands to run on each host, to give the cables addresses."""
    parts = [f"on {name}:\n" + "\n".join(f"  {line}" for line in lines) for name, lines in found.todo.items()]
    return "\n".join(["Commands to run, with sudo:", *parts])


def _head(found: Discovery) -> str:
    count = len(found.names)
    hosts = count_text(count, "Mac" if found.macs else "host")
    if found.over == "thunderbolt":
        usable = sum(cable.usable for cable in found.cables)
        hosts += f", {usable or 'no'} Thunderbolt cable{'' if usable == 1 else 's'} between them"
    if found.proposal is None:
        return f"{hosts}: no world yet." if count > 1 else f"{hosts}."
    backend = found.proposal.backend or "any backend"
    return (
        f"{hosts}: {backend}, since there is {found.proposal.why.rstrip('.')}."
        if found.macs
        else (f"{hosts}: {backend}, since {found.proposal.why.rstrip('.')}.")
    )


def _tables(found: Discovery) -> list[Table]:
    if found.servers:
        return [_servers(found), _interfaces(found)]
    return [_cables(found), _macs(found)]


def _lists(found: Discovery) -> list[tuple[str, Sequence[str]]]:
    lists: list[tuple[str, Sequence[str]]] = []
    if found.missing:
        lists.append(("Missing, for a ring through all of them:", found.missing))
    if found.for_mesh and tuple(found.for_mesh) != tuple(found.missing):
        lists.append(("Missing, for a mesh (backend jaccl, the fastest):", found.for_mesh))
    if found.notes:
        lists.append(("Notes:", found.notes))
    if found.todo:
        lists.append(("To do:", [_todo(found)]))
    return lists


def _todo(found: Discovery) -> str:
    lines = [line for each in found.todo.values() for line in each]
    what = ["addresses of the cables"] if any(" inet " in line for line in lines) else []
    what += ["taking down the bridge"] if any("bridge0" in line for line in lines) else []
    return f"Not set up yet on {', '.join(found.todo)}: {' and '.join(what)}. --setup shows the commands and asks."


def _cables(found: Discovery) -> Table:
    rows: list[tuple[str, ...]] = []
    for cable in found.cables:
        ends = ((cable.one, cable.port), (cable.other, cable.other_port))
        rows.append(
            (
                " — ".join(f"{found.macs[index].name} {port.label}" for index, port in ends),
                _link(cable),
                " — ".join(port.interface or UNKNOWN for _, port in ends),
                " — ".join(dict.fromkeys(_rdma(found.macs[index], port.interface) for index, port in ends)),
                _network(found, cable),
            )
        )
    return ("cable", "link", "interfaces", "RDMA", "addresses"), rows


def _link(cable: Cable) -> str:
    if cable.behind:
        return f"through {' and '.join(cable.behind)}"
    if cable.seen_by is not None:
        return "seen from one end only"
    return UNKNOWN if cable.speed is None else f"{cable.speed:g} Gb/s (Thunderbolt {cable.generation})"


def _rdma(mac: Mac, interface: str | None) -> str:
    return f"rdma_{interface}" if f"rdma_{interface}" in mac.rdma_devices else "no"


def _network(found: Discovery, cable: Cable) -> str:
    """The planned addresses of a cable's two ends, and whether they are still to be set."""
    given = dict(found.addresses.ends.get(cable.pair, ()))
    back = dict(found.addresses.ends.get(cable.pair[::-1], ()))
    wanted = (given.get(cable.port.interface or ""), back.get(cable.other_port.interface or ""))
    have = (cable.port.address, cable.other_port.address)
    if not cable.usable or None in wanted:
        return UNKNOWN
    ready = all(str(now) == f"{want}/{PREFIX}" for now, want in zip(have, wanted, strict=True))
    return " — ".join(map(str, wanted)) + ("" if ready else " (to be set)")


def _macs(found: Discovery) -> Table:
    rows: list[tuple[str, ...]] = [
        (
            mac.name,
            " · ".join(part for part in (mac.model, mac.chip) if part) or UNKNOWN,
            mac.macos or UNKNOWN,
            f"Thunderbolt {mac.generation}" if mac.generation else UNKNOWN,
            f"{len(mac.rdma_devices)} devices" if mac.has_rdma else mac.rdma_status or "no",
            mac.bridge,
            ", ".join(port.number for port in mac.ports if not port.plugged) or "none",
            mac.address or UNKNOWN,
        )
        for mac in found.macs
    ]
    return ("host", "machine", "macOS", "ports", "RDMA", "bridge0", "free ports", "address"), rows


def _servers(found: Discovery) -> Table:
    rows: list[tuple[str, ...]] = [
        (
            server.name,
            server.chip or UNKNOWN,
            f"{len(server.gpus)} × {server.gpus[0]}" if server.gpus else "none",
            _between(server),
            server.mpirun or "no",
        )
        for server in found.servers
    ]
    return ("host", "processor", "GPUs", "between GPUs", "mpirun"), rows


def _between(server: Server) -> str:
    ways = sorted(set(server.gpu_links.values()))
    return ", ".join(f"{way[2:]} NVLinks" if way.startswith("NV") else f"PCIe ({way})" for way in ways) or UNKNOWN


def _interfaces(found: Discovery) -> Table:
    chosen = {address for host in (found.hostfile or {"hosts": []})["hosts"] for address in host["ips"]}
    rows: list[tuple[str, ...]] = [
        (
            server.name,
            each.name,
            str(each.address),
            UNKNOWN if each.speed is None else f"{each.speed / 1e9:g} Gbit/s",
            "taken" if str(each.address.ip) in chosen else "",
        )
        for server in found.servers
        for each in server.interfaces
    ]
    return ("host", "interface", "address", "speed", ""), rows
