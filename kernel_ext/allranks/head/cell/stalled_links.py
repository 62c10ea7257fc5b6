"""Reports that all ranks are in one collective and nothing moves: no rank is missing, so the links are named."""

from __future__ import annotations

from collections.abc import Sequence

from allranks.units import seconds_text, size_text
from allranks_backends.views import Collective, LinkView, Snapshot

STILL_AFTER = 10.0
"""Seconds without a byte on any link after which a collective that all ranks are in is reported."""
UNKNOWN_AFTER = 30.0
"""Seconds after which a collective that all ranks are in is reported if bytes are not counted: the ranks may still be
computing its inputs."""
MOST_LINKS = 6
"""Maximum number of links described."""


def together(snapshot: Snapshot, ranks: Sequence[int]) -> Collective | None:
    """Return the collective in which all ranks of the world wait; None if a rank is missing or waits in another."""
    views = snapshot.ranks
    first = views[0].collective if views else None
    if len(ranks) < len(views) or first is None or not first.shared:
        return None
    for view in views:
        other = view.collective
        if view.state != "waiting" or other is None or _kind(other) != _kind(first):
            return None
    return first


def still_for(snapshot: Snapshot) -> float | None:
    """Seconds for which every rank had a transfer pending and no byte moved; None unless known for all ranks."""
    known = [view.stalled for view in snapshot.ranks if view.stalled is not None]
    return min(known) if known and len(known) == len(snapshot.ranks) else None


def report(snapshot: Snapshot, collective: Collective) -> str | None:
    """Return the report on ranks that are `together` in a collective; None while there is nothing to report."""
    since, still = min(view.since or 0.0 for view in snapshot.ranks), still_for(snapshot)
    opening = f"all ranks are in {collective} since {since:.0f} s"
    if still is None:
        if since < UNKNOWN_AFTER:
            return None
        return (
            f"{opening}. Their traffic on {snapshot.backend} cannot be read here: whether they compute, transfer or "
            "are stuck is not known. To stop waiting, interrupt the cell"
        )
    if min(still, since) < STILL_AFTER:
        return None
    return (
        f"{opening}, and no byte moved on any link for {still:.0f} s. {_links(snapshot.links)}. To abort the "
        "collective and keep all variables, interrupt the cell. To check cables and firewalls: %distributed doctor"
    )


def _links(views: Sequence[LinkView]) -> str:
    """What the sockets report: ``Not acknowledged: 0 → 1 4 KiB (3 segments resent, round trip 14 µs)``."""
    queued = [view for view in views if view.queued]
    if not queued:
        return "Nothing is left to send: what was sent has arrived"
    texts = [
        f"{view.link.source} → {view.link.target} {size_text(view.queued or 0)}{_details(view)}"
        for view in queued[:MOST_LINKS]
    ]
    more = f" and {len(queued) - MOST_LINKS} more" if len(queued) > MOST_LINKS else ""
    return f"Not acknowledged: {', '.join(texts)}{more}"


def _details(view: LinkView) -> str:
    details = [view.link.interface] if view.link.interface else []
    if view.retransmits is not None:
        details.append(f"{view.retransmits} {'segment' if view.retransmits == 1 else 'segments'} resent")
    if view.rtt:
        details.append(f"round trip {seconds_text(view.rtt)}")
    return f" ({', '.join(details)})" if details else ""


def _kind(each: Collective) -> tuple[object, ...]:
    return each.number, each.op, each.shape, each.dtype
