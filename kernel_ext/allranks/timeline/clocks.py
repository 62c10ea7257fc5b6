"""Puts the clocks of several hosts on one time axis, with a guaranteed error bound.

Two kinds of facts bound how far two clocks are apart, and neither needs a guess about how long a message took:

- A question over the lifeline: the rank read its clock after the notebook sent the question and before the notebook had
  the answer (Cristian 1989; the interval of NTP, RFC 5905).
- A collective that all ranks enter: no rank leaves it before the last rank has entered it, since each result depends on
  all inputs. So the start on one host is before the end on every other host (Duda et al. 1987 for messages).

Each fact has the form "clock i minus clock j is at most d". Their closure (shortest paths) gives the tightest interval
for each difference; its middle is the offset, and half its width is the error. Ranks on one host share a clock, so they
need no alignment.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

NOTEBOOK = ""
"""Stands for the notebook's own machine among the hosts."""


class Ping(NamedTuple):
    """A question about the clock of `host`: the notebook's clock before and after, the host's between (seconds)."""

    host: str
    sent: float
    said: float
    received: float


Meeting = Mapping[str, tuple[float, float]]
"""A collective of all ranks: for each host, when the last of its ranks began, and when the first one ended."""


@dataclass(frozen=True)
class Alignment:
    """How to convert the clock of each host to the first host's clock."""

    offset: Mapping[str, float]
    """Seconds by which a host's clock is ahead of the first host's."""
    error: Mapping[str, float]
    """Largest error of each offset, in seconds; infinite if nothing is known."""
    rate: Mapping[str, float] = field(default_factory=dict)
    """Seconds per second that a host's clock gains on the notebook's, if the clocks drifted apart during the cell."""
    origin: Mapping[str, float] = field(default_factory=dict)
    """The time on the host's clock from which its drift counts."""
    collectives: bool = False
    """Whether collectives bound the offsets as well: they did not contradict the hosts' answers to questions."""

    def common(self, host: str, moment: float) -> float:
        """Convert a time on the host's clock to the first host's clock."""
        return _steady(self.rate, self.origin, host, moment) - self.offset[host]

    @property
    def bound(self) -> float:
        """The largest error, in seconds."""
        return max(self.error.values(), default=0.0)

    def __str__(self) -> str:
        if len(self.offset) < 2:
            return ""
        if not math.isfinite(self.bound):
            lost = ", ".join(host for host, error in self.error.items() if not math.isfinite(error))
            return f"The clock of {lost} is unknown: no answer. Its rows may be shifted against the others."
        by = "round trips and collectives" if self.collectives else "round trips"
        return f"Clocks of {len(self.offset)} hosts aligned to within {self.bound * 1e3:.2g} ms, by {by}."


def align(hosts: Sequence[str], pings: Sequence[Ping], meetings: Sequence[Meeting], here: str | None) -> Alignment:
    """Align the clocks of `hosts`; `here` is the host that is the notebook's machine, if any."""
    if len(hosts) < 2:
        return Alignment(dict.fromkeys(hosts, 0.0), dict.fromkeys(hosts, 0.0))
    steady: tuple[dict[str, float], dict[str, float]] = ({}, {})
    tries = [(steady, meetings), (_drift(pings), meetings), (_drift(pings), ()), (steady, ())]
    for (rate, origin), met in tries:
        bounds = _bounds(hosts, here)
        for ping in pings:
            said = _steady(rate, origin, ping.host, ping.said)
            _bound(bounds, ping.host, NOTEBOOK, said - ping.sent)
            _bound(bounds, NOTEBOOK, ping.host, ping.received - said)
        for each in met:
            times = {host: [_steady(rate, origin, host, at) for at in span] for host, span in each.items()}
            for one in times:
                for other in times:
                    if one != other:
                        _bound(bounds, one, other, times[one][1] - times[other][0])
        if _closed(bounds):
            offset, error = zip(*(_middle(bounds, host, hosts[0]) for host in hosts), strict=True)
            return Alignment(
                dict(zip(hosts, offset, strict=True)), dict(zip(hosts, error, strict=True)), rate, origin, bool(met)
            )
    return Alignment(dict.fromkeys(hosts, 0.0), {host: 0.0 if host == hosts[0] else math.inf for host in hosts})


Bounds = dict[tuple[str, str], float]
"""For two hosts, the maximum seconds by which the first host's clock can be ahead of the second host's."""


def _bounds(hosts: Sequence[str], here: str | None) -> Bounds:
    names = [NOTEBOOK, *hosts]
    bounds = {(one, other): 0.0 if one == other else math.inf for one in names for other in names}
    if here is not None:
        bounds[here, NOTEBOOK] = bounds[NOTEBOOK, here] = 0.0
    return bounds


def _bound(bounds: Bounds, one: str, other: str, seconds: float) -> None:
    bounds[one, other] = min(bounds[one, other], seconds)


def _closed(bounds: Bounds) -> bool:
    """Tighten the bounds by one another (Floyd and Warshall); False if they contradict one another."""
    names = list(dict.fromkeys(one for one, _ in bounds))
    for by in names:
        for one in names:
            for other in names:
                _bound(bounds, one, other, bounds[one, by] + bounds[by, other])
    return all(bounds[name, name] >= 0 for name in names)


def _middle(bounds: Bounds, host: str, first: str) -> tuple[float, float]:
    most, least = bounds[host, first], -bounds[first, host]
    if not math.isfinite(most - least):
        return (most if math.isfinite(most) else least if math.isfinite(least) else 0.0), math.inf
    return (most + least) / 2, (most - least) / 2


def _drift(pings: Sequence[Ping]) -> tuple[dict[str, float], dict[str, float]]:
    """By host, how much its clock gained on the notebook's, in seconds per second, and the time from which that counts.

    The drift is measured between the quickest answers of the first and the second half of the pings.
    """
    rate, origin = {}, {}
    for host in {ping.host for ping in pings}:
        mine = sorted((ping for ping in pings if ping.host == host), key=lambda ping: ping.sent)
        half = mine[0].sent + (mine[-1].sent - mine[0].sent) / 2
        groups = [each for each in ([p for p in mine if p.sent <= half], [p for p in mine if p.sent > half]) if each]
        first, last = (min(each, key=lambda ping: ping.received - ping.sent) for each in (groups[0], groups[-1]))
        passed = last.said - first.said
        if passed > 0:
            gained = (last.said - (last.sent + last.received) / 2) - (first.said - (first.sent + first.received) / 2)
            rate[host], origin[host] = gained / passed, first.said
    return rate, origin


def _steady(rate: Mapping[str, float], origin: Mapping[str, float], host: str, moment: float) -> float:
    """The time that the host's clock would show if it had not drifted from the notebook's."""
    return moment - rate[host] * (moment - origin[host]) if host in rate else moment
