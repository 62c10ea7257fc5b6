"""Forms the MLX world of running ranks: assigns ports, sends each rank its wiring, and lets all enter together."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from itertools import islice
from typing import TypeAlias

from allranks.errors import CannotStart, HostCause
from allranks.head.state.monitor import Monitor
from allranks.lifeline.head_end import Lifeline
from allranks.lifeline.open_questions import LOST, Reply, RequestFailed
from allranks.machine.tcp_ports import says_transient
from allranks.messages.requests import Form, GiveUpAborting, Joined, MayConnect, Meet, Refusals, Spawn, StopForming
from allranks_backends.plan import Host, Placement, WorldPlan, alike
from allranks_backends.protocol import WORLD_VARIABLES, Backend
from allranks_backends.unsupported_operations import Limits, limits

Answers: TypeAlias = "dict[int, Future[Reply[Joined]]]"

FORM_WITHIN = 30.0
"""Seconds a rank waits for its neighbours."""
MPI_WITHIN = 60.0
"""Extra seconds for MPI: `mpirun` starts, the C source is compiled, and ranks spawn processes."""
LISTEN_WITHIN = 2.0
"""Seconds the last rank of a ring waits for the others to listen before it enters anyway."""
LOST_WITHIN = 3.0
"""Seconds the other ranks of an MPI world, or of a first world, get to join or fail once a rank has failed or died."""
STOPS_WITHIN = 1.0
"""Seconds that ranks get to return after `StopForming`."""
WAITED = "no answer in time"
"""The failure of a rank that neither joined nor reported an error."""
LOOK_EVERY = 0.1
"""Seconds between two checks whether a rank has died."""
STAGGER = 0.03
"""Seconds by which ranks that connect to a listening rank enter later: a refused connection costs a second.

Used only if these ranks cannot see whether the other one listens. The delay may be too short: four ranks that import
mlx on two cores enter further apart."""


def place(
    hosts: Sequence[Host], backend: Backend, connections: int, ask_ports: Callable[[Host, int], Callable[[], list[int]]]
) -> tuple[Placement, ...]:
    """Place one rank on each of `hosts` (one entry per rank), with free ports of that host for one generation.

    `ask_ports` asks a host for free ports; the function that it returns waits for them. All hosts are asked first.
    """
    placements = []
    seen: dict[str, int] = {}
    counts = [backend.ports(connections, len(host.addresses)) for host in hosts]
    wanted: dict[Host, int] = {}
    for host, count in zip(hosts, counts, strict=True):
        wanted[host] = wanted.get(host, 0) + count
    # All ports of a host are requested at once, so that no two of its ranks get the same.
    asked = {host: ask_ports(host, count) for host, count in wanted.items() if count}
    ports = {host: iter(asked[host]() if host in asked else []) for host in wanted}
    for rank, host in enumerate(hosts):
        local_rank = seen.get(host.name, 0)  # two entries of one host may differ in their RDMA rows
        seen[host.name] = local_rank + 1
        placements.append(Placement(rank, host, local_rank, tuple(islice(ports[host], counts[rank]))))
    return tuple(placements)


def form(
    plan: WorldPlan,
    backend: Backend,
    monitor: Monitor,
    lifeline: Lifeline,
    can_run: Sequence[str] | None = None,
    *,
    spawn: Sequence[Spawn] = (),
    until_connected: Callable[[Callable[[], bool]], None] = lambda _unless: None,
) -> None:
    """Have every rank join `plan`; return when all have joined. `can_run`: the backends that its hosts can run.

    The other ranks start the ranks in `spawn`, which are asked to join once `until_connected` has returned; its
    argument is a function that returns whether a rank has failed. Raises CannotStart, which names the failed ranks and
    their errors.
    """
    can_stop = backend.launcher == "mpirun"
    if not can_stop:  # a rank may still wait in an earlier attempt that the others have given up
        wait(monitor.joining, FORM_WITHIN + 10)
    entered = max(rank.entered for rank in monitor.ranks)
    refused = refusals(limits(backend, can_run))
    new = {each.rank for each in spawn}
    more = MPI_WITHIN if can_stop else 0.0
    answers: Answers = {}

    def ask(numbers: Iterable[int]) -> None:
        for number in numbers:
            request = _request(plan, backend, number, entered, refused)
            request.timeout += more
            if number not in new:
                request.spawn = list(spawn)
            answers[number] = lifeline.ask(monitor.ranks[number].uuid, request)

    try:
        ask(number for number in range(plan.size) if number not in new)
        if new:
            until_connected(lambda: any(each.done() and each.exception() for each in answers.values()))
            ask(number for number in sorted(new) if monitor.ranks[number].connected)
        _let_connect(plan, backend, monitor, lifeline, answers)
        # If a first world cannot be formed, its ranks are ended: they hold no variables, so there is no reason to wait.
        _wait(answers, monitor, FORM_WITHIN + 10 + more, can_stop=can_stop or plan.generation == 1)
        failures = _failures(answers, monitor)
        monitor.divided = bool(failures) and any(each.done() and not each.exception() for each in answers.values())
        if failures:
            listing = "; ".join(f"{monitor.label(ranks)}: {failure}" for failure, ranks in alike(failures).items())
            raise CannotStart(
                f"could not form the {plan.backend} world of {plan.size}. {listing}.",
                transient=says_transient(listing) or LOST in failures.values(),
                causes=[
                    HostCause(monitor.ranks[rank].host, f"rank {rank} could not join the world: {failure}.")
                    for rank, failure in failures.items()
                ],
            )
    except BaseException:
        _stop(answers, monitor, lifeline)
        raise
    monitor.generation, monitor.backend, monitor.state = plan.generation, plan.backend, "whole"
    _take_answers(backend, monitor, lifeline, [answers[rank.rank].result().answer for rank in monitor.ranks])


def _take_answers(backend: Backend, monitor: Monitor, lifeline: Lifeline, joined: Sequence[Joined]) -> None:
    """Note what ranks that have joined can do, and tell each of them how to abort this world's collectives."""
    monitor.revocable = backend.revocable
    monitor.breakable = backend.breakable or all(each.breakable for each in joined)
    monitor.not_breakable = next((each.why_not for each in joined if each.why_not), "")
    monitor.left_pending = {each.rank: tuple(each.pending) for each in joined if each.pending}
    hear = {each.rank: each.hears_at for each in joined if each.hears_at}
    for rank, each in zip(monitor.ranks, joined, strict=True):
        if monitor.breakable:
            lifeline.tell(rank.uuid, Meet([where for number, where in hear.items() if number != rank.rank]))
        elif each.breakable:
            lifeline.tell(rank.uuid, GiveUpAborting(monitor.not_breakable))


def refusals(limits: Limits) -> Refusals:
    """Return the limits of a backend in the form that ranks receive."""
    return Refusals(dict(limits.operations), limits.neighbours, dict(limits.dtypes), dict(limits.reduced))


def _request(plan: WorldPlan, backend: Backend, rank: int, entered: int, refused: Refusals) -> Form:
    wiring = backend.wiring(plan, rank)
    enters_last = rank == plan.size - 1 and plan.size > 1
    in_turn = backend.joins_in_turn and plan.size > 1 and len({each.host for each in plan.placements}) == 1
    breakable = backend.breakable and plan.size > 1
    connects_to_first = backend.joins_at_first and rank > 0
    seen = connects_to_first and _on_one_host(plan, 0, rank)
    first = [plan.placements[0].ports[0]] if seen else []
    listening, connecting = _unseen(plan, backend)
    return Form(
        backend.init_name,
        rank,
        plan.size,
        entered,
        refused,
        FORM_WITHIN,
        env=dict(wiring.env),
        files=dict(wiring.files),
        forget=sorted(WORLD_VARIABLES),
        defaults=dict(wiring.defaults),
        ports=[list(placement.ports) for placement in plan.placements] if breakable else [],
        # A rank listens on its first port as soon as it enters.
        after=[each.ports[0] for each in plan.placements[:-1]] if in_turn and enters_last else first,
        listen_within=FORM_WITHIN if connects_to_first else LISTEN_WITHIN,
        tells_of=plan.placements[rank].ports[0] if rank in listening else None,
        told_of=plan.placements[0].ports[0] if rank in connecting else None,
        delay=STAGGER if enters_last or connects_to_first else 0.0,
        revocable=backend.revocable,
        verbs=backend.verbs,
        in_turn=in_turn,
        address=next(iter(plan.placements[rank].host.addresses), None) if len(plan.hosts) > 1 else None,
        describes_host=plan.placements[rank].local_rank == 0,
    )


def _unseen(plan: WorldPlan, backend: Backend) -> tuple[Sequence[int], Sequence[int]]:
    """Return the ranks that must listen first, and the ranks that connect to them.

    Both are empty if the backend needs no order, or on one host, where a connecting rank sees whether the rank that it
    connects to listens.
    """
    elsewhere = [rank for rank in range(1, plan.size) if not _on_one_host(plan, 0, rank)]
    if not elsewhere:
        return (), ()
    if backend.joins_at_first:
        return (0,), elsewhere
    if backend.joins_in_turn:
        return range(plan.size - 1), (plan.size - 1,)
    return (), ()


def _let_connect(
    plan: WorldPlan,
    backend: Backend,
    monitor: Monitor,
    lifeline: Lifeline,
    answers: Answers,
) -> None:
    """Wait until the listening ranks of `_unseen` listen, then let its connecting ranks connect.

    The wait also ends after `FORM_WITHIN` seconds, and once a rank has failed or died, since no world can form then.
    """
    listening, connecting = _unseen(plan, backend)

    def settled() -> bool:
        listen = all(monitor.ranks[number].listens == plan.placements[number].ports[0] for number in listening)
        return listen or any(each.done() or monitor.ranks[number].dead for number, each in answers.items())

    deadline = time.monotonic() + FORM_WITHIN
    while not monitor.wait(settled, LOOK_EVERY) and time.monotonic() < deadline:
        pass  # an answer does not wake the monitor
    for number in connecting:
        lifeline.tell(monitor.ranks[number].uuid, MayConnect(plan.placements[0].ports[0]))


def _on_one_host(plan: WorldPlan, one: int, other: int) -> bool:
    return plan.placements[one].host.name == plan.placements[other].host.name


def _wait(answers: Answers, monitor: Monitor, within: float, *, can_stop: bool) -> None:
    """Wait until all ranks have joined, for at most `within` seconds.

    Once a rank has died or failed, the other ranks may wait for it in vain: if they `can_stop`, they get only
    `LOST_WITHIN` seconds more.
    """
    deadline, left = time.monotonic() + within, set(answers.values())
    while left and time.monotonic() < deadline:
        done, left = wait(left, LOOK_EVERY, FIRST_COMPLETED)
        lost = any(each.exception() for each in done) or any(monitor.ranks[number].dead for number in answers)
        if lost and can_stop:
            deadline, can_stop = min(deadline, time.monotonic() + LOST_WITHIN), False


def _failures(answers: Answers, monitor: Monitor) -> dict[int, str]:
    """Return why ranks have not joined, by rank."""
    asked = sorted(answers.items())
    failures = {number: failure for number, each in asked if (failure := _failure(each, number, monitor))}
    causes = {number: failure for number, failure in failures.items() if failure != WAITED}
    return causes or failures  # ranks that only waited for the others do not name a cause


def _failure(answer: Future[Reply[Joined]], number: int, monitor: Monitor) -> str | None:
    rank = monitor.ranks[number]
    if not answer.done():
        return rank.dead or WAITED
    try:
        answer.result()
    except RequestFailed as error:
        return str(error).rstrip(".")
    except ConnectionError as error:
        monitor.wait(lambda: rank.dead is not None, 1.0)
        return rank.dead or str(error)
    return None


def _stop(answers: Answers, monitor: Monitor, lifeline: Lifeline) -> None:
    """Have the ranks that still wait for others return; if a rank cannot, its own time limit ends its wait."""
    for number, answer in answers.items():
        if not answer.done():
            lifeline.tell(monitor.ranks[number].uuid, StopForming())
    monitor.joining = wait(answers.values(), STOPS_WITHIN).not_done
