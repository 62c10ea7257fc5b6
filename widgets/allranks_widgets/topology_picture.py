"""Hosts, ranks and links of a world, drawn as an SVG without script: it stays in a saved notebook and needs no kernel.

Each rank is a line in the box of its host, with the shape of its state and the state in words. Links run beside the
boxes, so that no link crosses a rank or a text. If there are more than `MOST_LINES` ranks, each is a tile with its
number and its shape, and links are counted.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from allranks_backends.plan import alike, rank_label
from allranks_backends.views import HostView, RankView, Snapshot

from ._snapshot_tables import human_bits, human_rate
from .status import WAITS_AFTER, human_bytes, printable, state_text, state_word
from .svg_text import BAD, CHARACTER, GRID, LINE, TEXT, WIDTH, WORRY, Picture, cut, svg_text

MOST_LINES = 32
"""Most ranks that get a line each."""
MOST_ARCS = 120
"""Most pairs of ranks whose links are drawn as arcs: all pairs of 16 ranks."""
TOP, HEAD, LINE_HEIGHT, GAP = 30, 26, 30, 10
"""Heights in pixels of the title, of a host's head and of a rank's line, and the distance between two hosts."""
TILE, TILE_HEIGHT = 47, 28
"""Width and height in pixels of a tile."""
BOX = 520
"""Width in pixels of a host if links are drawn beside it."""
FAR = WIDTH - 14
"""Where the link from the last rank of a ring to the first runs."""
CIRCLE, DIAMOND = "M-5 0a5 5 0 1 0 10 0a5 5 0 1 0-10 0z", "M0-6L6 0L0 6L-6 0z"
SHAPES = {
    "planned": (CIRCLE, False),
    "starting": (CIRCLE, False),
    "idle": (CIRCLE, False),
    "running": ("M-4-5.5L6 0L-4 5.5z", True),
    "waiting": ("M-5-5h3.5v10h-3.5zM1.5-5h3.5v10h-3.5z", True),
    "exchanging": ("M-6-2H6L2-6M6 2H-6L-2 6", False),
    "debugging": (DIAMOND, True),
    "unblocked": (DIAMOND, False),
    "failed": ("M0-6L6.5 5.5H-6.5z", True),
    "suspended": ("M-5-5h10v10h-10z", True),
    "silent": ("M-5-5h10v10h-10z", False),
    "dead": ("M-5-5L5 5M5-5L-5 5", False),
}
"""Path, and whether it is filled, by state: states can be told apart without colour."""


@dataclass(frozen=True)
class _LinkedPair:
    """The links between two ranks. Rates are in bytes a second, and None if unknown."""

    low: int
    high: int
    up: float | None
    """From rank `low` to rank `high`."""
    down: float | None
    """From rank `high` to rank `low`."""
    nominal: float | None
    """Bits a second, of all its cables in one direction."""

    @property
    def rate(self) -> float:
        """The rate of the faster direction, 0 if unknown."""
        return max(self.up or 0.0, self.down or 0.0)

    @property
    def label(self) -> str:
        """For example ``↓ 1.9 GB/s ↑ 3.2 kB/s · 40 Gbit/s``: down is from the smaller rank to the larger one."""
        rates = f"↓ {human_rate(self.up)} ↑ {human_rate(self.down)}"
        if self.up is None and self.down is None:
            rates = "rate unknown"
        return rates if self.nominal is None else f"{rates} · {human_bits(self.nominal)}"


def topology_picture(snapshot: Snapshot) -> Picture:
    """Draw the hosts, the ranks with their states, and the links with their rates."""
    title, late = finding(snapshot), set(missing_ranks(snapshot))
    wrong = BAD if any(_is_lost(view) for view in snapshot.ranks) else WORRY if late else TEXT
    pairs = _pairs(snapshot)
    in_lines = len(snapshot.ranks) <= MOST_LINES
    beside = in_lines and bool(pairs) and len(pairs) <= MOST_ARCS
    world = cut(_world(snapshot), 250)
    parts = [svg_text(8, 17, cut(title, 540), colour=wrong, weight="bold"), svg_text(WIDTH - 8, 17, world, "end")]
    hosts = list(_on_hosts(snapshot))
    across = 2 if len(hosts) > 4 and not in_lines else 1
    width = BOX if beside else (WIDTH - 8) // across
    columns, tall = (1, LINE_HEIGHT) if in_lines else ((width - 20) // TILE, TILE_HEIGHT)
    top, middles = float(TOP), dict[int, float]()
    for first in range(0, len(hosts), across):
        row = hosts[first : first + across]
        height = HEAD + tall * math.ceil(max(len(views) for _, views in row) / columns) + (0 if in_lines else 6)
        for place, (host, views) in enumerate(row):
            left = place * width
            parts += _host(host, left, top, width, height)
            for number, view in enumerate(views):
                x, y = left + 26 + TILE * (number % columns), top + HEAD + tall * (number // columns + 0.5)
                middles[view.rank] = y
                parts += (
                    _line(view, view.rank in late, x, y, width) if in_lines else _tile(view, view.rank in late, x, y)
                )
        top += height + GAP
    if beside:
        parts += _links(pairs, middles)
    if pairs and not (beside and _is_ring(pairs, len(snapshot.ranks))):
        parts.append(svg_text(8, top + 10, _in_all(pairs)))
        top += 20
    return Picture(tuple(parts), top, f"{title}. {world}. {_in_all(pairs)}")


def finding(snapshot: Snapshot) -> str:
    """Return in a sentence what is most important about the world, such as ``Rank 2 is dead: killed by SIGKILL``."""
    ranks = sorted(snapshot.ranks, key=lambda view: view.rank)
    for state, verbs in (("dead", ("is dead", "are dead")), ("failed", ("failed", "failed"))):
        if found := [view for view in ranks if view.state == state]:
            causes = "; ".join(dict.fromkeys(printable(view.cause) for view in found if view.cause))
            return _capital(f"{_label(found)} {verbs[len(found) > 1]}{': ' if causes else ''}{causes}")
    if away := [view for view in ranks if view.away is not None]:
        return _capital(f"{_label(away)} {'is' if len(away) == 1 else 'are'} out of reach")
    if late := missing_ranks(snapshot):
        waiting = [view for view in ranks if view.rank not in late]
        return _capital(f"{_label(waiting)} {'waits' if len(waiting) == 1 else 'wait'} for {rank_label(late)}")
    if snapshot.state not in ("whole", "planned", "down") or not ranks:
        return f"The world is {snapshot.state}"
    if snapshot.straggler:
        return _capital(printable(snapshot.straggler).rstrip("."))
    tally = alike({view.rank: state_word(view) for view in ranks})
    counts = [f"{len(members)} {state}" for state, members in tally.items()]
    said = f"{len(ranks)} {'rank' if len(ranks) == 1 else 'ranks'} {counts[0].partition(' ')[2]}"
    if len(counts) > 1:
        said = f"{len(ranks)} ranks: {', '.join(counts)}"
    return f"{said} when the world ended" if snapshot.state == "down" else said


def missing_ranks(snapshot: Snapshot) -> list[int]:
    """Return the living ranks that others wait for in a collective, if they have waited for `WAITS_AFTER` seconds."""
    inside = [view for view in snapshot.ranks if view.state == "waiting" and view.collective and view.collective.shared]
    number = max((view.collective.number for view in inside if view.collective), default=None)
    waiting = [view for view in inside if view.collective and view.collective.number == number]
    if max((view.since or 0.0 for view in waiting), default=0.0) < WAITS_AFTER:
        return []
    there = {view.rank for view in waiting}
    return sorted(view.rank for view in snapshot.ranks if view.rank not in there and view.state != "dead")


def _label(views: Sequence[RankView]) -> str:
    return rank_label([view.rank for view in views])


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _world(snapshot: Snapshot) -> str:
    ranks = f"{len(snapshot.ranks)} {'rank' if len(snapshot.ranks) == 1 else 'ranks'}"
    return " · ".join(map(printable, (snapshot.name, ranks, snapshot.backend)))


def _on_hosts(snapshot: Snapshot) -> Iterator[tuple[HostView, list[RankView]]]:
    """Yield the hosts in the order of their first rank, each with its ranks; hosts without ranks come last."""
    known = {host.name: host for host in snapshot.hosts}
    views: dict[str, list[RankView]] = {}
    for view in sorted(snapshot.ranks, key=lambda each: each.rank):
        views.setdefault(view.host, []).append(view)
    for name in dict.fromkeys([*views, *known]):
        yield known.get(name, HostView(name)), views.get(name, [])


def _host(host: HostView, left: float, top: float, width: float, height: float) -> Iterator[str]:
    """Yield the box of a host and its head."""
    used = f"{human_bytes(host.memory_used)} of " if host.memory_used is not None else ""
    facts = [
        printable(host.chip or host.model),
        f"load {host.load:.0%}" if host.load is not None else "",
        f"memory {used}{human_bytes(host.memory)}" if host.memory else "",
        f"{host.cores} cores" if host.cores else "",
    ]
    name = cut(printable(host.name), 200)
    after = 30 + len(name) * (CHARACTER + 1.5)
    known = [fact for fact in facts if fact]
    while len(known) > 1 and len(" · ".join(known)) * CHARACTER > width - after - 8:
        known.pop()
    outline = f'rx="6" fill="none" stroke="{GRID}" stroke-opacity="0.5"'
    yield f'<rect x="{left + 8:.0f}" y="{top:.0f}" width="{width - 8:.0f}" height="{height:.0f}" {outline}/>'
    yield svg_text(left + 18, top + 18, name, weight="bold")
    yield svg_text(left + after, top + 18, cut(" · ".join(known), width - after - 8))


def _line(view: RankView, late: bool, x: float, y: float, width: float) -> Iterator[str]:
    colour = _colour(view, late)
    yield _shape(view, colour, x, y)
    yield svg_text(x + 14, y + 4, f"rank {view.rank}", weight="bold")
    words = state_text(view) + (": others wait for it" if late else "")
    yield svg_text(x + 80, y + 4, cut(words, width - x - 88), colour="" if colour == LINE else colour)


def _tile(view: RankView, late: bool, x: float, y: float) -> Iterator[str]:
    colour = _colour(view, late)
    yield _shape(view, colour, x, y)
    yield svg_text(x + 10, y + 4, str(view.rank), colour="" if colour == LINE else colour)


def _shape(view: RankView, colour: str, x: float, y: float) -> str:
    path, filled = SHAPES[state_word(view)]
    how = f'fill="{colour or TEXT}"' if filled else f'fill="none" stroke="{colour or TEXT}" stroke-width="1.8"'
    return f'<path transform="translate({x:.0f} {y:.0f})" d="{path}" {how}><title>{state_word(view)}</title></path>'


def _is_lost(view: RankView) -> bool:
    return view.state in ("dead", "failed")


def _colour(view: RankView, late: bool) -> str:
    if _is_lost(view):
        return BAD
    return WORRY if late else LINE if state_word(view) in ("running", "exchanging") else ""


def _pairs(snapshot: Snapshot) -> list[_LinkedPair]:
    """Return the linked pairs of ranks; the rates of several cables between the same ranks are added.

    While a world shrinks, its links still name ranks that it no longer has.
    """
    ranks = {view.rank for view in snapshot.ranks}
    by_ends: dict[tuple[int, int], list[tuple[float | None, float | None]]] = {}
    for view in snapshot.links:
        if not ranks.issuperset((view.link.source, view.link.target)):
            continue
        by_ends.setdefault((view.link.source, view.link.target), []).append((view.rate, view.nominal))
    found = []
    for low, high in sorted({(min(ends), max(ends)) for ends in by_ends}):
        up, down = by_ends.get((low, high), []), by_ends.get((high, low), [])
        nominal = _sum([nominal for _, nominal in up or down])
        found.append(_LinkedPair(low, high, _sum([rate for rate, _ in up]), _sum([rate for rate, _ in down]), nominal))
    return found


def _sum(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def _is_ring(pairs: Sequence[_LinkedPair], size: int) -> bool:
    return all(pair.high - pair.low in (1, size - 1) for pair in pairs)


def _in_all(pairs: Sequence[_LinkedPair]) -> str:
    """Return a sentence about the rates of all links."""
    known = [rate for pair in pairs for rate in (pair.up, pair.down) if rate is not None]
    if not known:
        return f"{len(pairs)} linked pairs of ranks, rates unknown." if pairs else "No links are known."
    top = max(pairs, key=lambda pair: pair.rate)
    fastest = f", {human_rate(top.rate)} at most (ranks {top.low} and {top.high})" if top.rate else ""
    return f"{len(pairs)} linked pairs of ranks: {human_rate(sum(known))} in all{fastest}."


def _links(pairs: Sequence[_LinkedPair], middles: dict[int, float]) -> Iterator[str]:
    """Yield the links as brackets with labels if they make a ring of the ranks, otherwise as arcs.

    A line is as wide as its cable is fast among those whose speed is known, or as its rate is high among the others:
    what a cable could carry and what another one carries now cannot be compared.
    """
    fastest = max((pair.nominal or 0.0 for pair in pairs), default=0.0)
    busiest = max(1.0, *(pair.rate for pair in pairs if not pair.nominal), 0.0)
    ring = _is_ring(pairs, len(middles))
    longest = max(pair.high - pair.low for pair in pairs)
    for pair in pairs:
        low, high = middles[pair.low], middles[pair.high]
        width = 1.25 + 2.25 * math.sqrt(pair.nominal / fastest if pair.nominal else pair.rate / busiest)
        how = f'fill="none" stroke="{LINE if pair.rate else GRID}" stroke-width="{width:.2f}"'
        if not ring:
            reach = 24 + (FAR - BOX - 30) * (pair.high - pair.low) / longest
            how += f' stroke-opacity="{0.9 if len(pairs) <= 15 else 0.5}"'
            arc = f"A{reach:.0f} {abs(high - low) / 2:.0f} 0 0 1"
            yield f'<path d="M{BOX + 2} {low:.0f}{arc} {BOX + 2} {high:.0f}" {how}/>'
        elif pair.high - pair.low == 1:
            yield _bracket(low + 6, high - 6, BOX + 16, how)
            yield svg_text(BOX + 26, (low + high) / 2 + 4, cut(pair.label, FAR - BOX - 40))
        else:
            yield _bracket(low - 6, high + 6, FAR, how)
            yield svg_text(BOX + 26, low - 11, cut(pair.label, FAR - BOX - 40))


def _bracket(low: float, high: float, x: float, how: str) -> str:
    return f'<path d="M{BOX + 2} {low:.0f}H{x - 6:.0f}q6 0 6 6V{high - 6:.0f}q0 6-6 6H{BOX + 2}" {how}/>'
