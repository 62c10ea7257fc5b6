"""``python -m benchmarks._changing PLAN``: one notebook of `benchmarks.changes`; reports in JSON lines."""

from __future__ import annotations

import faulthandler
import json
import os
import signal
import sys
from dataclasses import asdict, dataclass
from typing import Any

from allranks import Cluster
from allranks.errors import AllranksError
from allranks.notebook import stop_button

SUM = "mx.distributed.all_sum(mx.array(1)).item()"
CELL_WITHIN = 100.0
TRIES = 3
STUCK_AFTER = 300.0
"""Seconds after which all stacks are printed."""


@dataclass
class Plan:
    """What a notebook does."""

    name: str
    """Of the cluster."""
    size: int
    backend: str
    round: int
    """In the first one the world is started, in the others it is attached to."""
    verb: str
    """``heal``, ``resize``, ``rewire``; ``end`` for the last notebook, which ends the world."""
    dice: int
    source: bool
    """Whether new ranks are to get the variables of another one."""
    hosts: list[str]
    """Of the ranks; none for this machine."""


def tell(**what: Any) -> None:
    print(json.dumps(what), flush=True)


def seen(cluster: Cluster) -> dict[str, Any]:
    """How the world is, and what its ranks hold."""
    snapshot, held = cluster.snapshot, dict[int, Any]()
    try:
        cell: Any = [each.value for each in cluster.run(SUM, timeout=CELL_WITHIN).check().values()]
    except AllranksError as error:
        cell = f"{type(error).__name__}: {error}"
    for rank in range(cluster.size):
        try:
            held[rank] = cluster.pull("held", ranks=[rank])[0]
        except AllranksError as error:
            held[rank] = f"{type(error).__name__}: {error}"
    dead = [rank.rank for rank in snapshot.ranks if rank.state == "dead"]
    words = [cluster.state, *snapshot.notes, *([cell] if isinstance(cell, str) else [])]
    return {"size": cluster.size, "words": words, "dead": dead, "cell": cell, "held": held}


def heal(cluster: Cluster) -> list[str]:
    """Call plain `heal` until the world is whole; returns each result as text."""
    said = []
    for _ in range(TRIES):
        try:
            said.append(str(cluster.heal()))
        except AllranksError as error:
            said.append(f"{type(error).__name__}: {error}")
        if cluster.state == "whole":
            break
    return said


def change(cluster: Cluster, plan: Plan) -> str:
    """Report the planned change, make it, and return its result as text."""
    size, source, kill, argument = cluster.size, None, None, None
    if plan.verb == "heal":
        kill = plan.dice % size
        os.kill(cluster.snapshot.ranks[kill].pid or 0, signal.SIGKILL)
        assert cluster._live.ranks is not None
        cluster._live.ranks.monitor.wait(lambda: cluster.state == "broken", 60)
    if plan.verb == "resize":
        argument = size + (1 if size <= 2 or (size < 4 and plan.dice % 2) else -1)
    if plan.source and plan.verb != "rewire":
        source = next(rank for rank in range(size) if rank != kill)
    pids = [rank.pid for rank in cluster.snapshot.ranks]
    tell(begins=plan.verb, size=size, argument=argument, source=source, killed=kill, pids=pids)
    try:
        if plan.verb == "heal":
            return str(cluster.heal(source=source))
        if argument is not None:
            return str(cluster.resize(argument, source=source))
        return str(cluster.rewire("mpi" if cluster.backend == "ring" else "ring"))
    except (AllranksError, KeyboardInterrupt) as error:
        return f"{type(error).__name__}: {error}"


def main() -> None:
    plan = Plan(**json.loads(sys.argv[1]))
    faulthandler.dump_traceback_later(STUCK_AFTER)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    stop_button.PATIENCE = 0.0  # a stop is acted on in the next wait of a change, not after five seconds
    if plan.round == 1:
        hosts = plan.hosts or None
        cluster = Cluster(
            None if hosts else plan.size, hosts=hosts, backend=plan.backend, keep=True, name=plan.name
        ).up()
    else:
        cluster = Cluster.attach(plan.name)
        tell(after=seen(cluster))
        tell(said=heal(cluster), healed=seen(cluster))
    if plan.verb == "end":
        cluster.down()
        return
    cluster.run(f"held = [{plan.round}, rank]").check()
    tell(change=change(cluster, plan))
    tell(left=seen(cluster))


def arguments(plan: Plan) -> list[str]:
    """The command of such a notebook."""
    return [sys.executable, "-m", "benchmarks._changing", json.dumps(asdict(plan))]


if __name__ == "__main__":
    main()
