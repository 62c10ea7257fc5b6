"""Hosts joined by Ethernet: addresses, interface speeds, GPUs and the NVLinks between GPUs. Pure.

Most of this is for Linux hosts. A Mac counts as a host without NVIDIA GPUs, with its addresses on en0 and en1.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from ipaddress import IPv4Interface, IPv4Network

from allranks_backends.thunderbolt import mlx_config
from allranks_backends.thunderbolt.proposal import Proposal
from allranks_backends.thunderbolt.thunderbolt_ports import Mac

COMMANDS: Mapping[str, str] = {
    "addresses": "ip -o -4 addr show",
    "speeds": 'for f in /sys/class/net/*/speed; do d=${f%/speed}; echo "${d##*/} $(cat "$f" 2>/dev/null)"; done',
    "gpus": "nvidia-smi -L",
    "gpu links": "nvidia-smi topo -m",
    "mpirun": "command -v mpirun",
    "reached": 'echo "$SSH_CONNECTION"',
    "cpu": "sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -1",
    "meminfo": "sed -n 's/^MemTotal: *//p' /proc/meminfo",
}
"""Shell commands to run on a Linux host, by name; none needs root."""


@dataclass(frozen=True)
class InterfaceAddress:
    """An IPv4 address of a network interface."""

    name: str
    address: IPv4Interface
    speed: float | None = None
    """Speed of the interface, in bits a second; None if the driver does not report it."""


@dataclass(frozen=True)
class Server:
    """One host, as discovered."""

    name: str
    chip: str = ""
    memory: int | None = None
    """Bytes."""
    interfaces: tuple[InterfaceAddress, ...] = ()
    gpus: tuple[str, ...] = ()
    """Name of each GPU, from ``nvidia-smi -L``."""
    gpu_links: Mapping[tuple[int, int], str] = field(default_factory=dict)
    """By pair of GPUs: ``NV18`` for 18 NVLinks, else the PCIe path: ``PIX``, ``PXB``, ``PHB``, ``NODE``, ``SYS``."""
    mpirun: str = ""
    reached: str = ""
    """The address at which ssh reached it, or a Mac's address on en0 or else on en1; empty if unknown."""
    system: str = "Linux"

    def in_network(self, network: IPv4Network) -> InterfaceAddress | None:
        return next((each for each in self.interfaces if each.address.network == network), None)


def server_from(name: str, answers: Mapping[str, str]) -> Server:
    """Return the host `name`, given its answers to `COMMANDS`."""
    reached, memory = answers.get("reached", "").split(), answers.get("meminfo", "").split()
    return Server(
        name,
        chip=answers.get("cpu", "").strip(),
        memory=int(memory[0]) * 1024 if memory and memory[0].isdigit() else None,
        interfaces=tuple(_interfaces(answers.get("addresses", ""), _speeds(answers.get("speeds", "")))),
        gpus=tuple(re.findall(r"^GPU \d+: (.*?) \(UUID", answers.get("gpus", ""), re.MULTILINE)),
        gpu_links=_gpu_links(answers.get("gpu links", "")),
        mpirun=answers.get("mpirun", "").strip(),
        reached=reached[2] if len(reached) == 4 else "",
    )


def server_of(mac: Mac) -> Server:
    """Return a Mac as a host on Ethernet, with the addresses of en0 and en1."""
    interfaces = tuple(InterfaceAddress(name, address) for name, address in mac.networks if name in ("en0", "en1"))
    return Server(mac.name, mac.chip, mac.memory, interfaces, reached=mac.address, system="Darwin")


def common_network(servers: Sequence[Server]) -> IPv4Network | None:
    """Return the fastest network that all hosts share, by its slowest interface; None if they share none.

    Among equally fast networks, it is the first one of the first host. A network in which two hosts have the same
    address does not count: it is a bridge for containers, which exists on every host and joins no hosts.
    """
    shared = []
    for each in servers[0].interfaces if servers else ():
        network = each.address.network
        there = {found.address.ip for server in servers if (found := server.in_network(network))}
        if len(there) == len(servers):
            shared.append(network)
    return max(shared, key=lambda network: _slowest(servers, network), default=None)


def over_network(servers: Sequence[Server]) -> Proposal:
    """Propose NCCL with a rank for each GPU if every host has GPUs, else a ring with a rank for each host."""
    network = common_network(servers)
    everyone = tuple(range(len(servers)))
    with_gpus = all(server.gpus for server in servers)
    order = tuple(index for index in everyone for _ in (servers[index].gpus if with_gpus else (0,)))
    rows = [(servers[index].name, _address_in(servers[index], network), ()) for index in order]
    backend = "nccl" if with_gpus else "ring"
    if with_gpus:
        why = f"every host has NVIDIA GPUs, {len(order)} in all: one rank for each"
    else:
        also = (
            "; mpirun is there, so --backend mpi works too"
            if len(servers) > 1 and all(each.mpirun for each in servers)
            else ""
        )
        why = f"{'not every' if any(each.gpus for each in servers) else 'no'} host has NVIDIA GPUs{also}"
    return Proposal(backend, order, mlx_config.hostfile(rows, backend), why)


def notes(servers: Sequence[Server]) -> list[str]:
    """Return what is wrong or worth knowing about the hosts, one sentence each."""
    return [*_apart(servers), *_uneven(servers), *_mixed(servers), *_without_nvlink(servers)]


def _interfaces(text: str, speeds: Mapping[str, float]) -> Iterator[InterfaceAddress]:
    """Yield the addresses in the output of ``ip``, except of loopback and of bridges made by Docker or libvirt."""
    for found in re.finditer(r"^\d+: (\S+)\s+inet (\S+)", text, re.MULTILINE):
        if found[1] != "lo" and not found[1].startswith(("docker", "virbr", "br-")):
            yield InterfaceAddress(found[1], IPv4Interface(found[2]), speeds.get(found[1]))


def _speeds(text: str) -> dict[str, float]:
    """Return the speed of each interface in bits a second.

    The kernel reports Mbit/s, and -1 or nothing if it does not know the speed.
    """
    words = (line.split() for line in text.splitlines())
    return {each[0]: float(each[1]) * 1e6 for each in words if len(each) == 2 and each[1].isdigit()}


def _gpu_links(text: str) -> dict[tuple[int, int], str]:
    rows = [line.split("\t") for line in re.sub(r"\x1b\[[0-9;]*m", "", text).splitlines()]
    names = next(([cell.strip() for cell in row[1:]] for row in rows if any("GPU0" in cell for cell in row[1:])), [])
    links = {}
    for row in rows:
        if not (own := re.fullmatch(r"GPU(\d+)", row[0].strip())):
            continue
        for name, cell in zip(names, row[1:], strict=False):
            if (other := re.fullmatch(r"GPU(\d+)", name)) and cell.strip() != "X":
                links[int(own[1]), int(other[1])] = cell.strip()
    return links


def _slowest(servers: Sequence[Server], network: IPv4Network) -> float:
    found = [server.in_network(network) for server in servers]
    return min((each.speed or 0.0 for each in found if each), default=0.0)


def _address_in(server: Server, network: IPv4Network | None) -> list[str]:
    interface = server.in_network(network) if network is not None else None
    if interface is not None:
        return [str(interface.address.ip)]
    return [server.reached] if server.reached else []


def _apart(servers: Sequence[Server]) -> Iterator[str]:
    if len(servers) > 1 and common_network(servers) is None:
        where = "; ".join(
            f"{server.name}: {', '.join(str(each.address.network) for each in server.interfaces) or 'none'}"
            for server in servers
        )
        yield f"The hosts share no network ({where}): the addresses are those at which ssh reached them."


def _uneven(servers: Sequence[Server]) -> Iterator[str]:
    network = common_network(servers)
    if network is None:
        return
    used = [(server.name, each) for server in servers if (each := server.in_network(network))]
    fastest = max((each.speed or 0.0 for _, each in used), default=0.0)
    for name, each in used:
        if each.speed and each.speed < fastest / 2:
            yield (
                f"{name}'s {each.name} runs at {each.speed / 1e9:g} Gbit/s where others have {fastest / 1e9:g}:"
                " all ranks wait for the slowest."
            )


def _mixed(servers: Sequence[Server]) -> Iterator[str]:
    systems = {server.system for server in servers}
    if len(systems) > 1 and any(server.gpus for server in servers):
        yield "Macs and CUDA in one world hang or give wrong sums (mlx #3876): make one world of each kind."
    having = [server.name for server in servers if server.gpus]
    if having and len(having) < len(servers):
        lacking = ", ".join(server.name for server in servers if not server.gpus)
        yield f"nvidia-smi lists no GPU on {lacking}, but NCCL needs one on every host."
    counts = Counter(len(server.gpus) for server in servers if server.gpus)
    if len(counts) > 1:
        listed = ", ".join(f"{each.name} {len(each.gpus)}" for each in servers)
        yield f"The hosts have different numbers of GPUs: {listed}."


def _without_nvlink(servers: Sequence[Server]) -> Iterator[str]:
    for server in servers:
        ways = sorted({way for way in server.gpu_links.values() if not way.startswith("NV")})
        if ways:
            some = "some" if any(way.startswith("NV") for way in server.gpu_links.values()) else "no two"
            yield (
                f"{server.name}: {some} GPUs are joined by NVLink{' only' if some == 'some' else ''};"
                f" the others reach each other over PCIe ({', '.join(ways)})."
            )
