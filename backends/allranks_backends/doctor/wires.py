"""Check that a hostfile lists, for every two ranks, the RDMA devices at both ends of each cable, in one order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import combinations, zip_longest

from allranks_backends.plan import Host, Placement, rank_list
from allranks_backends.protocol import BackendError
from allranks_backends.registry import get_backend
from allranks_backends.runtimes.jaccl_wires import named
from allranks_backends.thunderbolt.cables import Cable, find_cables
from allranks_backends.thunderbolt.thunderbolt_ports import Mac

from .finding import Finding, sentence_and_fix
from .host_facts import Asked, HostFacts

PORT = 20_000
"""The first of a rank's placeholder ports: the plan is only checked, and nothing listens on them."""
End = tuple[int, str]
"""Index of a Mac, and the RDMA device of one of its ports."""
Ends = Mapping[End, End]
"""Maps each device to the device at the other end of its cable."""


def planned(_hosts: Sequence[HostFacts], asked: Asked) -> Iterator[Finding]:
    """Report why the backend refuses the listed devices, by making the plan that `up` would make."""
    backend, of_host = get_backend(asked.backend), Counter[str]()
    placements = []
    for rank, host in enumerate(asked.ranks):
        known = host if host.addresses else replace(host, addresses=(f"192.0.2.{rank + 1}",))  # `up` asks the hosts
        ports = range(PORT, PORT + backend.ports(1, len(known.addresses)))
        placements.append(Placement(rank, known, of_host[host.name], tuple(ports)))
        of_host[host.name] += 1
    try:
        backend.plan(placements, generation=1, connections=1)
    except BackendError as error:
        what, fix = sentence_and_fix(str(error))
        names = ", ".join(dict.fromkeys(host.name for host in asked.ranks))
        yield Finding("error", names, what, "", fix)


def wires(hosts: Sequence[HostFacts], asked: Asked) -> Iterator[Finding]:
    """Compare each device of the hostfile with the ports and cables that the Macs report."""
    macs = [host.mac for host in hosts if host.mac is not None and host.mac.ports]
    at = {mac.name: index for index, mac in enumerate(macs)}
    ends = _ends(find_cables(macs))
    write = f"%distributed discover --hosts {','.join(dict.fromkeys(host.name for host in asked.ranks))} --output F"
    for rank, host in enumerate(asked.ranks):
        if host.name not in at or not macs[at[host.name]].has_rdma:
            continue
        gone = [name for entry in host.rdma for name in named(entry) if name not in macs[at[host.name]].rdma_devices]
        if gone:
            yield Finding(
                "error",
                host.name,
                f"The hostfile lists {', '.join(gone)} for rank {rank}, and there is no such device there: names change"
                " with a restart.",
                "ibv_devices",
                write,
                source="#3207",
            )
            continue
        for peer in range(rank + 1, len(asked.ranks)):
            if asked.ranks[peer].name in at:
                yield from _between(asked.ranks, (rank, peer), at, macs, ends, write)
    yield from _idle(asked.ranks)


def _between(
    ranks: Sequence[Host], pair: tuple[int, int], at: Mapping[str, int], macs: Sequence[Mac], ends: Ends, write: str
) -> Iterator[Finding]:
    rank, peer = pair
    here, there = at[ranks[rank].name], at[ranks[peer].name]
    listed, back = _entry(ranks[rank], peer), _entry(ranks[peer], rank)
    for name, wanted in zip_longest(listed, back, fillvalue=""):
        if not name or not wanted or (there, wanted) == ends.get((here, name)):
            continue
        found = ends.get((here, name))
        at_other_place = found is not None and found[0] == there and found[1] in back
        if at_other_place:
            what = f"lists {name} and {wanted} at the same place, and they are of two cables"
        else:
            leads = "leads nowhere" if found is None else f"is joined to {found[1]} of {macs[found[0]].name}"
            what = f"pairs {name} with {wanted} of {macs[there].name}, and {name} {leads}"
        yield Finding(
            "error",
            ranks[rank].name,
            f"Between ranks {rank} and {peer} the hostfile {what}: the ranks would wait for each other indefinitely.",
            "system_profiler SPThunderboltDataType",
            write,
            source="exo #2160" if at_other_place else "",
        )
        return  # one device out of order displaces others, too


def _idle(ranks: Sequence[Host]) -> Iterator[Finding]:
    """Report unused devices: between every pair, MLX uses as many as the pair with the fewest devices has (0.32.4)."""
    counts = {(rank, peer): len(_entry(ranks[rank], peer)) for rank, peer in combinations(range(len(ranks)), 2)}
    joined = {pair: count for pair, count in counts.items() if count}
    fewest = min(joined.values(), default=0)
    more = [pair for pair, count in joined.items() if count > fewest]
    if more:
        shown = " and ".join(rank_list(pair).replace(", ", "-") for pair in more[:3])
        yield Finding(
            "note",
            ", ".join(dict.fromkeys(ranks[rank].name for pair in more for rank in pair)),
            f"The hostfile lists more devices between ranks {shown} than elsewhere: {fewest} of them"
            f" {'is' if fewest == 1 else 'are'} used, as between the ranks that have the fewest.",
            "",
            f"join all by as many cables, or list {fewest} in each place (jaccl-ring refuses different numbers)",
        )


def _ends(cables: Sequence[Cable]) -> Ends:
    found: dict[End, End] = {}
    for cable in cables:
        if cable.usable:
            one = cable.one, f"rdma_{cable.port.interface}"
            other = cable.other, f"rdma_{cable.other_port.interface}"
            found |= {one: other, other: one}
    return found


def _entry(host: Host, peer: int) -> tuple[str, ...]:
    return named(host.rdma[peer]) if peer < len(host.rdma) else ()
