"""Makes the views of a Snapshot from the last reports of the ranks, without asking them."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from msgspec import structs

from allranks.messages.events import LedgerEntry, Machine
from allranks_backends.plan import Link, rank_label
from allranks_backends.views import Collective, GpuView, HostView, LinkView, OpView, RankView, Snapshot, WorldState

from .collective_times import CollectiveTimes
from .known_rank import Away, Rank
from .known_world import KnownWorld
from .shared_advice import HEALS, kill_text

REPORTS_WITHIN = 3.0
"""Seconds without a report after which a rank is called silent: a rank reports at least every 2 s."""


def snapshot_of(world: KnownWorld) -> Snapshot:
    """Return the Snapshot of the world as it is now; the caller holds the lock."""
    ranks, shown_as = world.ranks, world.shown_as
    return Snapshot(
        world.name,
        world.backend,
        state := state_of(world),
        world.generation,
        tuple(rank_view(rank, shown_as(rank.host), world.times, world.away.get(rank.host)) for rank in ranks),
        time.time(),
        notes(world, state),
        hosts=host_views(ranks, shown_as),
        links=tuple(link_view(link, ranks) for link in world.links),
        peak=world.peak,
        straggler=world.times.straggler,
        straggler_rank=world.times.straggler_rank,
    )


def state_of(world: KnownWorld) -> WorldState:
    """Return the state of the world: ``incomplete`` if its only problem is a change that did not finish."""
    dead = {rank.rank for rank in world.ranks if rank.dead}
    owes = world.owed and world.owed.keys() >= dead and not world.changing
    return "incomplete" if owes and world.state in ("whole", "broken") else world.state


def rank_view(rank: Rank, host: str, times: CollectiveTimes, away: Away | None = None) -> RankView:
    """Return the view of one rank. `host` is its host's name as shown; `away` is set if the host is out of reach.

    `times` has the durations of its collectives in timed cells.
    """
    report = rank.report
    memory = report.memory
    compiler = report.compiler if rank.cell is not None else None
    interrupted = rank.interrupted and rank.state == "idle"
    reports = rank.dead is None and rank.ready and away is None
    place = rank.debugger if rank.debugger is not None and rank.in_debugger else report
    return RankView(
        rank=rank.rank,
        host=host,
        pid=rank.pid,
        state=rank.state,
        line=place.line if rank.cell is not None else None,
        source=place.source if rank.cell is not None else None,
        begun=rank.cell is None or report.cell == rank.cell,
        collective=collective(report.collective) if report.collective else None,
        entered=rank.entered,
        since=time.monotonic() - rank.since if rank.since else None,
        cpu=report.cpu,
        rss=memory.rss,
        mlx_active=memory.mlx_active,
        mlx_peak=memory.mlx_peak,
        mlx_cache=memory.mlx_cache,
        gpu=GpuView(**structs.asdict(report.gpu)) if report.gpu is not None and rank.dead is None else None,
        cause=rank.dead or rank.failed or ("last cell interrupted" if interrupted else None),
        effective=report.effective if rank.dead is None else None,
        ops=tuple(
            OpView(each.op, each.calls, each.nbytes, each.smallest, each.largest, *times.times(rank.rank, each.op))
            for each in report.ops
        ),
        stalled=report.stalled,
        compiler=compiler.program if compiler else None,
        silent=int(rank.silent_for) if reports and rank.silent_for >= REPORTS_WITHIN else None,
        suspended=reports and rank.process_is_stopped(),
        away=None if away is None or rank.dead is not None else int(time.monotonic() - away.since),
        compiling=compiler.seconds // 5 * 5 if compiler else None,  # so that ranks can share a line of text
        tasks=report.tasks and rank.dead is None,
        in_task=report.in_task and rank.state == "waiting",
    )


def host_views(ranks: Sequence[Rank], shown_as: Callable[[str], str]) -> tuple[HostView, ...]:
    """Return the view of each host, as its living ranks last described it; `shown_as` returns its name in tables."""
    machines: dict[str, Machine] = {}
    for rank in ranks:
        machines.setdefault(rank.host, Machine())
        if rank.dead is None and rank.report.machine is not None:
            machines[rank.host] = rank.report.machine
    return tuple(HostView(shown_as(name), **structs.asdict(machine)) for name, machine in machines.items())


def link_view(link: Link, ranks: Sequence[Rank]) -> LinkView:
    """Return the view of a link, as its sending rank last read it from its sockets; empty without readings."""
    rank = ranks[link.source] if link.source < len(ranks) else None
    readings = rank.report.links if rank is not None and rank.dead is None else ()
    read = next((each for each in readings if each.peer == link.target), None)
    if read is None:
        return LinkView(link)
    link = replace(link, interface=read.interface)
    return LinkView(link, read.connections, read.nominal, read.sent, read.rate, read.rtt, read.retransmits, read.queued)


def notes(world: KnownWorld, state: WorldState) -> tuple[str, ...]:
    """Return what a user should know about the world in this state, in sentences."""
    ranks, not_breakable = world.ranks, world.not_breakable
    wrong = "The world is being changed." if world.changing else trouble(world, state)
    said = [wrong] if wrong else []
    for name, host in sorted(world.away.items()):
        if all(rank.dead is not None for rank in ranks if rank.host == name):
            continue
        numbers = [rank.rank for rank in ranks if rank.host == name]
        said.append(
            f"{world.shown_as(name)} is out of reach, and is tried again every few seconds; its ranks go on. "
            + (f"The last try failed: {host.why}. " if host.why else "")
            + f"To replace {rank_label(numbers)}: {kill_text(numbers)}."
        )
    if unordered := {rank.rank: rank.report.unordered for rank in ranks if rank.report.unordered}:
        most = max(unordered.values())
        said.append(
            f"In the last cell, --ordered could not chain {most} collective{'s' * (most > 1)} inside mx.compile or "
            f"mx.vmap ({rank_label(list(unordered))}): what one call of such a function asks for is evaluated at its "
            "end, in MLX's own order."
        )
    if untracked := [rank.rank for rank in ranks if rank.report.untracked]:
        said.append(
            f"Evaluation order is not checked ({rank_label(untracked)}): in this version of MLX, allranks cannot read "
            "which arrays are computed. --ordered keeps the order."
        )
    if not_breakable:
        said.append(
            f"Collectives of this world cannot be aborted in place: {not_breakable}. A blocked one is completed by the "
            "missing ranks, and heal restarts all ranks (docs/recovery.md)."
        )
    return tuple(said)


def trouble(world: KnownWorld, state: WorldState) -> str:
    """Say what is wrong with the world in this state and what fixes it; empty if nothing is wrong."""
    match state:
        case "incomplete":
            return f"The world is incomplete: {unfinished(dict(world.owed))}"
        case "broken" if any(rank.dead for rank in world.ranks):
            return f"The world is broken. {HEALS} and re-forms it.{also_lacking(world)}"
        case "broken":
            return "The world is broken: the next cell re-forms it. All variables are kept."
        case _:
            return ""


def unfinished(owed: Mapping[int, object]) -> str:
    """Say what a change of the world did not finish, and how to complete it."""
    empty = sorted(number for number, each in owed.items() if each is None)
    copies = f" With --from R, {rank_label(empty)} also {'gets' if len(empty) == 1 else 'get'} the variables of rank R."
    return (
        f"the last change of the world did not finish: {_lacking(owed)}. "
        f"%distributed heal completes it.{copies if empty else ''}"
    )


def also_lacking(world: KnownWorld) -> str:
    """Return the sentence, after a space, about living ranks of a broken world that lack variables."""
    living = {rank.rank for rank in world.alive()}
    owed = {number: each for number, each in dict(world.owed).items() if number in living}
    return f" The last change of the world did not finish: {_lacking(owed)}." if owed else ""


def _lacking(owed: Mapping[int, object]) -> str:
    """Say for which ranks saved variables are not loaded yet, and which ranks have no variables."""
    saved = sorted(number for number, each in owed.items() if each is not None)
    empty = sorted(number for number, each in owed.items() if each is None)
    parts = [
        f"the variables of {rank_label(saved)} are saved and not loaded yet" if saved else "",
        f"{rank_label(empty)} {'has' if len(empty) == 1 else 'have'} no variables yet" if empty else "",
    ]
    return " and ".join(filter(None, parts))


def collective(entry: LedgerEntry) -> Collective:
    """Return the collective that a ledger entry describes."""
    of = entry.op, entry.shape, entry.dtype, entry.nbytes
    return Collective(entry.number, *of, entry.line, entry.shared, entry.peer)
