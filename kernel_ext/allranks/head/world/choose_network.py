"""Chooses the fastest network between the hosts of a plan, and checks that the hosts reach each other over it.

One rank of each host tries the connections before any rank enters the world, where an unreachable host would only show
as a hang.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, wait
from typing import TypeVar

from allranks.errors import Apart, CannotStart
from allranks.head.state.monitor import Monitor
from allranks.lifeline.head_end import Lifeline
from allranks.lifeline.open_questions import Reply
from allranks.messages.requests import Answer, HostAt, HostTried, ListenForHosts, StopListening, TryHosts
from allranks.units import three_digits
from allranks_backends.plan import WorldPlan
from allranks_backends.registry import get_backend

A = TypeVar("A", bound=Answer)
Network = Mapping[str, str]
"""The address of each host in one network, by the host's name."""
Tried = dict[tuple[str, str], HostTried]
CONNECT_WITHIN = 3.0
"""Seconds a host gets to connect to another."""
MEASURE = 0.2
"""Seconds for which each pair of hosts is measured in a network."""
MOST_NAMED = 3
FASTER = 1.5
"""Another network replaces the one that ssh uses if it is faster by at least this factor."""
MEASUREMENTS = 4
"""Number of measurements before another network is chosen."""


def pairs(backend: str, names: Sequence[str]) -> list[tuple[str, str]]:
    """Return which host connects to which host when a world is formed; `names` is the host of each rank."""
    if get_backend(backend).joins_in_turn:  # each rank to the next
        found = list(zip(names, [*names[1:], names[0]], strict=True))
    else:
        found = [(name, names[0]) for name in names]
    return [(one, other) for one, other in dict.fromkeys(found) if one != other]


def _pairs(plan: WorldPlan, backend: str = "") -> list[tuple[str, str]]:
    return pairs(backend or plan.backend, [placement.host.name for placement in plan.placements])


def refuse_if_apart(plan: WorldPlan, monitor: Monitor, lifeline: Lifeline, backend: str = "") -> None:
    """Raise CannotStart if hosts cannot reach each other, naming them. `backend`, if given, replaces the plan's."""
    network = {host.name: host.addresses[0] for host in plan.hosts if host.addresses}
    todo = [(one, other) for one, other in _pairs(plan, backend) if {one, other} <= network.keys()]
    tried = _tried(todo, [network], monitor, lifeline)[0]
    failed = [Apart(one, other, network[other], it.why_not) for (one, other), it in tried.items() if it.why_not]
    if failed:
        said = [f"{each.one} cannot reach {each.other} at {each.address} ({each.why})" for each in failed[:MOST_NAMED]]
        more = f" and {len(failed) - MOST_NAMED} more" if len(failed) > MOST_NAMED else ""
        raise CannotStart(
            f"{'; '.join(said)}{more}. Ranks send to each other directly: give addresses of a network that the hosts "
            'share with "ips" in a hostfile, or let TCP through between them.',
            apart=failed,
        )


def fastest(
    plan: WorldPlan, networks: Sequence[Network], monitor: Monitor, lifeline: Lifeline
) -> tuple[Network, str] | None:
    """Return the fastest network and a clause that compares it with the plan's network, the first in `networks`.

    None if no other network is faster by the factor `FASTER`. A network's rate is the highest of `MEASUREMENTS`
    measurements: a busy machine may lower the measured rate by any factor, but never raises it.
    """
    todo = _pairs(plan)
    rates = _rates(_tried(todo, networks, monitor, lifeline, measure=MEASURE), len(todo))
    best = max(range(len(networks)), key=lambda number: rates[number], default=0)
    if not best:
        return None
    two, here, there = [networks[0], networks[best]], rates[0], rates[best]
    for _ in range(1, MEASUREMENTS):
        if there < FASTER * here:
            return None
        again = _rates(_tried(todo, two, monitor, lifeline, measure=MEASURE), len(todo))
        here, there = max(here, again[0]), max(there, again[1])
    if there < FASTER * here:
        return None
    first, other = (next(iter(network.values())) for network in two)
    return networks[best], (
        f"that of {other} ({_rate(there)}), since that of {first}, by which ssh comes, is slower ({_rate(here)})."
    )


def _rates(tried: Sequence[Tried], pairs: int) -> list[float]:
    """Return the rate of each network's slowest pair, in bytes a second; 0 unless all `pairs` connected."""
    rates = []
    for found in tried:
        reached = [each.rate for each in found.values() if not each.why_not]
        rates.append(min(reached, default=0.0) if len(reached) == pairs else 0.0)
    return rates


def _rate(per_second: float) -> str:
    return f"{three_digits(per_second * 8 / 1e9)} Gbit/s"


def _tried(
    todo: Sequence[tuple[str, str]],
    networks: Sequence[Network],
    monitor: Monitor,
    lifeline: Lifeline,
    measure: float = 0.0,
) -> list[Tried]:
    """Return, for each network, the result of each pair's attempt; a pair is left out if a rank does not answer."""
    ranks: dict[str, str] = {}
    for rank in monitor.ranks:
        if rank.dead is None and rank.connected:
            ranks.setdefault(rank.host, rank.uuid)
    key, within = secrets.token_bytes(32), (CONNECT_WITHIN + measure * len(todo) * 2) * len(networks) + 5.0
    listening = [host for host in dict.fromkeys(other for _, other in todo) if host in ranks]
    try:
        asked = {
            host: lifeline.ask(ranks[host], ListenForHosts([network[host] for network in networks], key, within))
            for host in listening
        }
        ports = {host: answer.ports for host, answer in _answers(asked, within).items()}
        found: list[Tried] = []
        for number, network in enumerate(networks):
            targets: dict[str, list[str]] = {}
            for one, other in todo:
                if other in ports and ports[other][number] and one in ranks:
                    targets.setdefault(one, []).append(other)
            trying = {}
            for one, others in targets.items():
                hosts = [HostAt(network[other], ports[other][number]) for other in others]
                trying[one] = lifeline.ask(ranks[one], TryHosts(hosts, key, CONNECT_WITHIN, measure))
            answers = _answers(trying, within)
            found.append(
                {
                    (one, other): tried
                    for one, answer in answers.items()
                    for other, tried in zip(targets[one], answer.tried, strict=True)
                }
            )
        return found
    finally:  # also after Ctrl-C
        for host in listening:
            lifeline.tell(ranks[host], StopListening())


def _answers(asked: Mapping[str, Future[Reply[A]]], within: float) -> dict[str, A]:
    """Return the answers that came in time. A missing one is not an error: forming the world shows if a host works."""
    wait(asked.values(), within)
    return {host: each.result().answer for host, each in asked.items() if each.done() and not each.exception()}
