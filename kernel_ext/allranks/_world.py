"""Form the MLX world over ranks that are up: plan it, wire every rank, let all enter together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from dataclasses import asdict
from itertools import islice
from typing import Any

from allranks_backends._limits import limits
from allranks_backends._plan import Host, Placement, WorldPlan, rank_label
from allranks_backends._protocol import WORLD_VARIABLES, Backend

from ._known_rank import Rank
from ._lifeline import Lifeline
from ._monitor import Monitor
from .errors import CannotStart

FORM_WITHIN = 30.0
"""Seconds a rank waits for its neighbours."""
STAGGER = 0.03
"""Seconds by which the last rank enters later: it connects first, and a refused connect costs the ring a second.

Only where it cannot see that the others listen: four ranks importing mlx on two cores are further apart."""
INIT_NAME = {"jaccl-ring": "jaccl"}
"""What ``mx.distributed.init`` calls a backend, where that differs."""


def place(
    hosts: Sequence[Host], backend: Backend, connections: int, free_ports: Callable[[Host, int], list[int]]
) -> tuple[Placement, ...]:
    """One rank on each of `hosts` (named once for every rank), with free ports of that host for one epoch."""
    placements = []
    seen: dict[str, int] = {}
    counts = [backend.ports(connections, len(host.addresses)) for host in hosts]
    wanted: dict[Host, int] = {}
    for host, count in zip(hosts, counts, strict=True):
        wanted[host] = wanted.get(host, 0) + count
    # Drawn together, so that no two ranks of a host get the same.
    ports = {host: iter(free_ports(host, count) if count else []) for host, count in wanted.items()}
    for rank, host in enumerate(hosts):
        local_rank = seen.get(host.name, 0)  # two entries of one host may differ in their RDMA rows
        seen[host.name] = local_rank + 1
        placements.append(Placement(rank, host, local_rank, tuple(islice(ports[host], counts[rank]))))
    return tuple(placements)


def form(
    plan: WorldPlan, backend: Backend, monitor: Monitor, lifeline: Lifeline, can_run: Sequence[str] | None = None
) -> None:
    """Have every rank join `plan`; returns when all have. `can_run` names the backends its hosts could run instead.

    Raises CannotStart, naming who failed and how.
    """
    seq = max(rank.seq for rank in monitor.ranks)
    refused = asdict(limits(backend, can_run))
    answers = [
        lifeline.ask(
            monitor.ranks[placement.rank].uuid, _order(plan, backend, placement.rank, seq) | {"limits": refused}
        )
        for placement in plan.placements
    ]
    failures = {
        rank: failure
        for rank, answer in enumerate(answers)
        if (failure := _failure(answer, monitor.ranks[rank], monitor))
    }
    if failures:
        said: dict[str, list[int]] = {}
        for rank, failure in failures.items():
            said.setdefault(failure, []).append(rank)
        listing = "; ".join(f"{rank_label(ranks)}: {failure}" for failure, ranks in said.items())
        raise CannotStart(f"the {plan.backend} world of {plan.size} could not be formed. {listing}.")
    monitor.epoch, monitor.backend, monitor.state = plan.epoch, plan.backend, "whole"
    monitor.breakable = plan.backend == "ring"


def _order(plan: WorldPlan, backend: Backend, rank: int, seq: int) -> dict[str, Any]:
    wiring = backend.wiring(plan, rank)
    enters_last = rank == plan.size - 1 and plan.size > 1
    ring_on_one_host = plan.backend == "ring" and plan.size > 1 and len({each.host for each in plan.placements}) == 1
    return {
        "do": "form",
        "backend": INIT_NAME.get(plan.backend, plan.backend),
        "forget": sorted(WORLD_VARIABLES),
        "env": dict(wiring.env),
        "files": dict(wiring.files),
        "ports": [list(placement.ports) for placement in plan.placements]
        if plan.backend == "ring" and plan.size > 1
        else [],
        "seq": seq,
        "epoch": plan.epoch,
        "rank": rank,
        "size": plan.size,
        # A rank listens on its first port as soon as it enters.
        "after": [each.ports[0] for each in plan.placements[:-1]] if ring_on_one_host and enters_last else [],
        "in_turn": ring_on_one_host,
        "address": next(iter(plan.placements[rank].host.addresses), None) if len(plan.hosts) > 1 else None,
        "tells_of_host": plan.placements[rank].local_rank == 0,
        "delay": STAGGER if enters_last else 0.0,
        "timeout": FORM_WITHIN,
    }


def _failure(answer: Future[tuple[dict[str, Any], list[Any]]], rank: Rank, monitor: Monitor) -> str | None:
    try:
        header, _ = answer.result(FORM_WITHIN + 10)
    except ConnectionError:
        monitor.wait(lambda: rank.dead is not None, 1.0)
        return rank.dead or "its connection closed"
    except FutureTimeout:
        return f"it did not answer in {FORM_WITHIN + 10:g} s"
    return str(header["error"]).rstrip(".") if "error" in header else None
