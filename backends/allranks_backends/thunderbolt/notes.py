"""Notes on Macs and the cables between them: what is wrong or worth knowing, and what to do about it. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from allranks_backends.runtimes.jaccl import FIRST_MACOS, is_new_enough

from .addressing import Addressing
from .cables import Cable, no_rdma_by_build
from .thunderbolt_ports import Mac

RECOVERY = (
    "start the Mac in Recovery (hold the power button), open Utilities > Terminal, run rdma_ctl enable, and restart;"
    " newer macOS has a switch for it in System Settings"
)


@dataclass(frozen=True)
class Note:
    """One thing that is wrong or worth knowing."""

    hosts: tuple[str, ...]
    what: str
    """A sentence, or its beginning up to a colon, which `todo` then completes."""
    todo: str = ""
    """What to do: another sentence, or the end of the first one; empty if there is nothing to do."""
    command: str = ""
    """The command that fixes the problem, to be run on each of `hosts`; empty if no command does."""
    source: str = ""
    """The issues in which the problem was reported: of mlx, unless another project is named."""
    stops_rdma: bool = False

    def __str__(self) -> str:
        return f"{self.what} {self.todo}".rstrip()


def notes(macs: Sequence[Mac], cables: Sequence[Cable], addresses: Addressing) -> list[Note]:
    """Return all notes, the most serious first."""
    return [
        *_without_ports(macs),
        *_bridges(macs),
        *_rdma(macs),
        *_ports_without_rdma(macs, cables),
        *_hidden(macs, cables),
        *_slow(macs, cables),
        *_several(macs, cables, addresses),
        *_strangers(macs, cables),
        *([Note((), addresses.moved)] if addresses.moved else []),
    ]


def _without_ports(macs: Sequence[Mac]) -> Iterator[Note]:
    for mac in macs:
        if not mac.ports:
            yield Note((mac.name,), f"system_profiler SPThunderboltDataType lists no Thunderbolt port on {mac.name}.")


def _bridges(macs: Sequence[Mac]) -> Iterator[Note]:
    if up := tuple(mac.name for mac in macs if mac.bridge == "up"):
        yield Note(
            up,
            f"The Thunderbolt bridge (bridge0) is up on {_listed(up)}: it holds the ports, RDMA over them fails with"
            " errno 22 (mlx #3467), and a ring of bridged cables can flood the network.",
            "--setup takes it down until the next restart; to be rid of it, delete Thunderbolt Bridge in"
            " System Settings > Network.",
            "sudo ifconfig bridge0 down",
            "#3467, #1903",
            stops_rdma=True,
        )


def _rdma(macs: Sequence[Mac]) -> Iterator[Note]:
    without = [mac for mac in macs if not mac.has_rdma and mac.ports]
    if old := tuple(mac.name for mac in without if mac.generation == 4):
        yield Note(
            old,
            f"{_listed(old)} {_has(old)} Thunderbolt 4, which never has RDMA, whatever rdma_ctl says (mlx #3777).",
            "A ring over TCP is what it can do.",
            source="#3777, exo #1636",
            stops_rdma=True,
        )
    newer = [mac for mac in without if mac.generation != 4]
    first = ".".join(map(str, FIRST_MACOS))
    for mac in (each for each in newer if not _recent(each)):
        what = f"{mac.name} runs macOS {mac.macos}; RDMA over Thunderbolt came with {first}:"
        yield Note((mac.name,), what, "update it.", stops_rdma=True)
    on = tuple(mac.name for mac in newer if _recent(mac) and "enabled" in mac.rdma_status)
    off = tuple(mac.name for mac in newer if _recent(mac) and "enabled" not in mac.rdma_status)
    if on:
        what = f"RDMA is enabled on {_listed(on)}, and ibv_devices lists no device there:"
        yield Note(on, what, "restart.", stops_rdma=True)
    if off:
        yield Note(off, f"RDMA is off on {_listed(off)}:", f"{RECOVERY}.", stops_rdma=True)


def _recent(mac: Mac) -> bool:
    return not mac.macos or is_new_enough(mac.macos)


def _ports_without_rdma(macs: Sequence[Mac], cables: Sequence[Cable]) -> Iterator[Note]:
    if not all(mac.has_rdma for mac in macs):
        return
    for cable in cables:
        for mac, port in ((macs[cable.one], cable.port), (macs[cable.other], cable.other_port)):
            if no_rdma_by_build(mac, port):
                what = (
                    f"{mac.name} {port.label} ({port.interface}) is the one beside Ethernet, which has no RDMA on a"
                    " Mac Studio (exo #1543):"
                )
            elif not port.rdma:
                what = f"{mac.name} {port.label} ({port.interface}) has no RDMA device:"
            else:
                continue
            yield Note((mac.name,), what, "move its cable to another port.", source="exo #1543", stops_rdma=True)


def _hidden(macs: Sequence[Mac], cables: Sequence[Cable]) -> Iterator[Note]:
    for cable in cables:
        one, other = macs[cable.one].name, macs[cable.other].name
        ends = f"{one} {cable.port.label} and {other} {cable.other_port.label}"
        if cable.behind:
            yield Note(
                (one, other),
                f"{ends} are joined through {' and '.join(cable.behind)}, not by a cable alone: neither a ring nor"
                " RDMA can use that (mlx #2682).",
                source="#2682",
                stops_rdma=True,
            )
        elif cable.seen_by is not None:
            seen = f"The cable between {ends} is seen from {macs[cable.seen_by].name} only."
            yield Note((one, other), seen, stops_rdma=True)


def _slow(macs: Sequence[Mac], cables: Sequence[Cable]) -> Iterator[Note]:
    for cable in cables:
        one, other = macs[cable.one], macs[cable.other]
        if cable.generation == 4 and one.generation == other.generation == 5:
            yield Note(
                (one.name, other.name),
                f"The cable between {one.name} {cable.port.label} and {other.name} {cable.other_port.label} runs at"
                f" {cable.speed:g} Gb/s, and both Macs have Thunderbolt 5:",
                "a Thunderbolt 5 cable brings 80.",
            )


def _several(macs: Sequence[Mac], cables: Sequence[Cable], addresses: Addressing) -> Iterator[Note]:
    counted = Counter(cable.pair for cable in cables if cable.usable)
    for (one, other), count in counted.items():
        if count > 1:
            # Port orders may differ between the ends, but both lists must have the same order of cables (exo #2160).
            ends = zip(addresses.ends[one, other], addresses.ends[other, one], strict=True)
            shown = ", ".join(f"{here} to {there}" for (here, _), (there, _) in ends)
            yield Note(
                (),
                f"{macs[one].name} and {macs[other].name} are joined by {count} cables ({shown}), which the hostfile"
                " lists in the same order at both ends.",
            )
    if counted and min(counted.values()) != max(counted.values()):
        yield Note((), f"Every two neighbours use {min(counted.values())}: the cables beyond that lie idle.")


def _strangers(macs: Sequence[Mac], cables: Sequence[Cable]) -> Iterator[Note]:
    known = {port.domain for mac in macs for port in mac.ports}
    for mac in macs:
        for port in mac.ports:
            for seen in port.macs:
                if seen.domain not in known:
                    yield Note((), f"{mac.name} {port.label} is joined to a {seen.name} that is not among these hosts.")


def _listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def _has(names: Sequence[str]) -> str:
    return "has" if len(names) == 1 else "have"
