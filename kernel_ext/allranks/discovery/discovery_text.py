"""A Discovery as text and as HTML: a headline, tables of cables and hosts, and lists of missing cables and notes."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING

from allranks.units import count_text
from allranks_backends.machines.ethernet_hosts import Server
from allranks_backends.thunderbolt.addressing import PREFIX
from allranks_backends.thunderbolt.cables import Cable
from allranks_backends.thunderbolt.thunderbolt_ports import Mac
from allranks_widgets.table import html_table, text_table

if TYPE_CHECKING:
    from .discovery_result import Discovery

Table = tuple[tuple[str, ...], list[tuple[str, ...]]]
UNKNOWN = "–"


def text(found: Discovery) -> str:
    tables = [text_table(*table) for table in _tables(found) if table[1]]
    lists = [f"{head}\n" + "\n".join(f"  - {line}" for line in lines) for head, lines in _lists(found)]
    return "\n\n".join([_head(found), *tables, *lists])


def html(found: Discovery) -> str:
    """The discovery as HTML without script or stylesheet, which an untrusted notebook displays too."""
    parts = [f'<div style="font-weight:bold;padding:2px 0">{escape(_head(found))}</div>']
    parts += [html_table(*table) for table in _tables(found) if table[1]]
    for head, lines in _lists(found):
        items = "".join(f"<li>{escape(line)}</li>" for line in lines)
        parts.append(f'<div style="padding:6px 0 0">{escape(head)}<ul style="margin:0">{items}</ul></div>')
    return f'<div style="padding:2px 6px">{"".join(parts)}</div>'


def setup(found: Discovery) -> str:
    """The commands to run on each host."""
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
