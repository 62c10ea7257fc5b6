"""The views that a Snapshot is made of, from what is known of the ranks. Asks nobody."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from allranks_backends._plan import Collective, HostView, Link, LinkView, OpView, RankView, WorldState, rank_label

from ._known_rank import Header, Rank
from ._profile import Profile


def rank_view(rank: Rank, profile: Profile) -> RankView:
    """One rank; `profile` knows how long its collectives took, where cells were profiled."""
    report = rank.report
    said = report.get("collective")
    place = rank.debugger if rank.debugger is not None and rank.in_debugger else report
    return RankView(
        rank=rank.rank,
        host=rank.host,
        pid=rank.pid,
        state=rank.state,
        line=place.get("line") if rank.cell is not None else None,
        source=place.get("source") if rank.cell is not None else None,
        collective=collective(said) if said else None,
        since=time.monotonic() - rank.since if rank.since else None,
        cpu=report.get("cpu"),
        rss=report.get("rss"),
        mlx_active=report.get("mlx_active"),
        mlx_peak=report.get("mlx_peak"),
        cause=rank.dead or rank.failed,
        effective=report.get("effective") if rank.dead is None else None,
        ops=tuple(
            OpView(op, calls, nbytes, smallest, largest, *profile.times(rank.rank, op))
            for op, calls, nbytes, smallest, largest in report.get("ops", ())
        ),
    )


def host_views(ranks: Sequence[Rank]) -> tuple[HostView, ...]:
    """Each host, as its living ranks last described the machine."""
    told: dict[str, Header] = {}
    for rank in ranks:
        told.setdefault(rank.host, {}).update(rank.report.get("machine", {}) if rank.dead is None else {})
    return tuple(HostView(name, **machine) for name, machine in told.items())


def link_view(link: Link, ranks: Sequence[Rank]) -> LinkView:
    """What the sending rank last read of its sockets; a link of which nobody can read anything stays unknown."""
    rank = ranks[link.source] if link.source < len(ranks) else None
    told = rank.report.get("links", ()) if rank is not None and rank.dead is None else ()
    found = next((each for each in told if each[0] == link.target), None)
    if found is None:
        return LinkView(link)
    _peer, connections, sent, rate, rtt, retransmits, interface, nominal = found
    return LinkView(replace(link, interface=interface), connections, nominal, sent, rate, rtt, retransmits)


def notes(state: WorldState, ranks: Sequence[Rank]) -> tuple[str, ...]:
    """What a user should know of the world, in sentences."""
    said = []
    if state == "broken":
        said.append("The world is broken. %distributed heal replaces dead ranks and forms it anew.")
    if unordered := {rank.rank: rank.report["unordered"] for rank in ranks if rank.report.get("unordered")}:
        said.append(
            f"In the last cell --ordered could not chain {max(unordered.values())} collectives inside mx.compile, "
            f"mx.grad or mx.vmap ({rank_label(list(unordered))}): they are evaluated in MLX's own order."
        )
    return tuple(said)


def collective(said: list[Any]) -> Collective:
    """The collective that an agent describes."""
    seq, op, shape, dtype, nbytes, line, shared = said
    return Collective(seq, op, tuple(shape), dtype, nbytes, line, shared)
