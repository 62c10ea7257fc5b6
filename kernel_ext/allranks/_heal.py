"""Change who is in the world without losing what the ranks hold: heal, resize, rewire.

In place where the backend allows it: the processes that stay keep every variable untouched. Elsewhere the namespaces
are saved to the cluster's private folder, the processes started again, and the namespaces loaded.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from allranks_backends._plan import Host, rank_label

from ._ranks import Answer, Ranks
from .errors import Busy, CannotStart

SEEN_WITHIN = 2.0
"""Seconds in which ranks that wait for a dead one are seen waiting."""
QUIET_WITHIN = 3.0
"""Seconds running cells get to end before nothing is changed."""
SAVE_WITHIN = 600.0
"""Seconds a rank gets to write its namespace."""


def heal(ranks: Ranks, source: int | None, kill: Sequence[int]) -> str:
    """Replace dead ranks, and those to `kill`; with `source`, by copies of that rank. Returns what was kept."""
    monitor = ranks.monitor
    _kill(ranks, kill)
    all_free = _quiet(ranks)
    dead = [rank.rank for rank in monitor.ranks if rank.dead]
    kept = [rank.rank for rank in monitor.ranks if not rank.dead]
    assert ranks.plan is not None
    if ranks.backend.reform == "in place" and all_free:
        ranks.plan_next(ranks.hosts, ranks.plan.backend)
        ranks.launch(dead)
        ranks.form()
        told = [f"{rank_label(kept)} kept every variable"] if kept else []
    else:
        told = _restart(ranks, len(ranks.hosts), ranks.plan.backend, kept)
    if dead:
        told.append(f"{rank_label(dead)} started empty" if source is None else _copy(ranks, source, dead))
    return f"The world is whole again (epoch {monitor.epoch}): {'; '.join(told)}."


def resize(ranks: Ranks, size: int, source: int | None) -> str:
    """Grow or shrink the world; the ranks that stay keep their variables, new ones are copies of `source`."""
    assert ranks.plan is not None
    before = len(ranks.hosts)
    _quiet(ranks)
    hosts = resized(ranks.hosts, size)
    if ranks.backend.reform == "in place":
        ranks.plan_next(hosts, ranks.plan.backend)
        if size < before:
            ranks.stop_ranks(range(size, before))
            ranks.monitor.truncate(size)
        else:
            ranks.launch(range(before, size))
        ranks.form()
        told = [f"{rank_label(list(range(min(size, before))))} kept every variable"]
    else:
        ranks.hosts = hosts
        told = _restart(ranks, size, ranks.plan.backend, list(range(min(size, before))))
    if size < before and source is not None:
        told.append(f"no rank is new, so nothing was copied from rank {source}")
    if size > before:
        added = list(range(before, size))
        told.append(f"{rank_label(added)} started empty" if source is None else _copy(ranks, source, added))
    return f"The world has {size} ranks now (epoch {ranks.monitor.epoch}): {'; '.join(told)}."


def resized(hosts: Sequence[Host], size: int) -> list[Host]:
    """The hosts of a world of `size` ranks: new ones join the last rank's."""
    return [*hosts, *[hosts[-1]] * (size - len(hosts))][:size]


def rewire(ranks: Ranks, backend: str, connections: int) -> str:
    """The same ranks over another backend, or with another number of connections."""
    assert ranks.plan is not None
    ranks.draft(ranks.hosts, backend, connections)  # before anything is changed
    _quiet(ranks)
    ranks.settings.connections = connections
    if ranks.plan.backend == backend and ranks.backend.reform == "in place":
        ranks.form_anew()
        told = ["every rank kept its variables"]
    else:
        told = _restart(ranks, len(ranks.hosts), backend, list(range(len(ranks.hosts))))
    return f"The world runs on {backend} now (epoch {ranks.monitor.epoch}): {'; '.join(told)}."


def _quiet(ranks: Ranks) -> bool:
    """Stop what runs; raises Busy where that cannot be done.

    Ranks that wait in a collective for a dead one, where only a restart helps, are left there (see `_restart`), and
    False is returned.
    """
    monitor = ranks.monitor
    everybody = range(len(monitor.ranks))
    ranks.interrupt()
    if not monitor.wait(lambda: not monitor.busy(everybody), QUIET_WITHIN):
        seen: set[int] = set()

        def all_wait() -> bool:
            """Each was seen waiting: a signal that is sent again wakes one for a moment."""
            seen.update(view.rank for view in monitor.snapshot().ranks if view.state == "waiting")
            return seen >= {rank.rank for rank in monitor.busy(everybody)}

        if any(rank.dead for rank in monitor.ranks) and monitor.wait(all_wait, SEEN_WITHIN):
            return False
        busy = rank_label([rank.rank for rank in monitor.busy(everybody)])
        raise Busy(
            f"{busy} cannot be interrupted (%distributed status says where). %distributed heal --kill "
            f"{busy.partition(' ')[2].replace(' ', '')} ends and replaces it, and what it holds is lost."
        )
    return True


def _kill(ranks: Ranks, numbers: Sequence[int]) -> None:
    """End these ranks' processes, whatever they do."""
    monitor = ranks.monitor
    ranks.kill(numbers)
    monitor.wait(lambda: all(monitor.ranks[number].dead for number in numbers), QUIET_WITHIN)


def _restart(ranks: Ranks, size: int, backend: str, kept: Sequence[int]) -> list[str]:
    """Start all processes again, with the namespaces of `kept` carried over on local disk."""
    monitor = ranks.monitor
    everybody = list(range(len(monitor.ranks)))
    ranks.draft(ranks.hosts[:size], backend, ranks.settings.connections)  # before anything is ended
    # On each rank's own host, where it is started again.
    paths = {number: str(ranks.processes.end_of_rank(number).directory / "carried" / str(number)) for number in kept}
    saves = {
        # The main thread of a rank that is blocked for good saves nothing; another thread can.
        number: ranks.ask([number], {"do": "rescue" if monitor.busy([number]) else "save", "path": path}).get(number)
        for number, path in paths.items()
    }
    left = {number: _left_behind(answer, number) for number, answer in saves.items()}
    monitor.state = "broken"  # until the new world is there
    ranks.stop_ranks(everybody)
    monitor.truncate(0)
    ranks.plan_next(ranks.hosts[:size], backend)
    ranks.launch(range(size))
    ranks.form()
    loads = {
        number: ranks.ask([number], {"do": "load", "path": path, "void": _void(saves[number])})
        for number, path in paths.items()
    }
    for answers in loads.values():
        for number, answer in answers.items():
            _names_left(answer, number)
    lost: dict[str, list[int]] = {}
    for number in kept:
        lost.setdefault(left[number], []).append(number)
    return [
        f"{rank_label(numbers)} kept every variable over a restart of the process{except_these}"
        for except_these, numbers in lost.items()
    ]


def _left_behind(answer: Answer | None, number: int) -> str:
    """What a rank could not save, in words; empty if it saved everything."""
    travel = _names_left(answer, number)
    unsure = answer.result()[0].get("unsure", []) if answer is not None else []
    parts = [f"{', '.join(travel)}, which cannot travel"] if travel else []
    if unsure:
        parts.append(f"{', '.join(unsure)}, which the blocked cell had set (half computed, perhaps)")
    return (f", except {' and '.join(parts)}" if parts else "") + _garbage(answer)


def _names_left(answer: Answer | None, number: int) -> list[str]:
    """Names a rank could not save or load; raises CannotStart if it could do neither at all."""
    if answer is None:
        return []
    try:
        header, _ = answer.result(SAVE_WITHIN)
    except (TimeoutError, ConnectionError):
        raise CannotStart(f"rank {number} did not hand over its variables; nothing was changed.") from None
    if "error" in header:
        raise CannotStart(f"rank {number} could not hand over its variables: {header['error']}")
    return list(header.get("left", []))


def _copy(ranks: Ranks, source: int, targets: Sequence[int]) -> str:
    """Give `targets` the variables of `source`."""
    # Through a file on their host, or, where they do not share one, through the notebook.
    file: dict[str, Any] = {}
    if all(ranks.hosts[target] == ranks.hosts[source] for target in targets):
        file = {"path": str(ranks.processes.end_of_rank(source).directory / "copy")}
    saved = ranks.ask([source], {"do": "save", **file})[source]
    left = _names_left(saved, source)
    order = {"do": "load", **file, "keep": bool(file), "void": _void(saved)}
    loads = ranks.ask(targets, order, saved.result()[1])
    for number, answer in loads.items():
        _names_left(answer, number)
    if file:
        ranks.ask([source], {"do": "drop", **file})
    except_for = f" except {', '.join(left)}, which cannot travel" if left else ""
    return f"{rank_label(list(targets))} got the variables of rank {source}{except_for}{_garbage(saved)}"


def _void(saved: Answer | None) -> list[str]:
    """Names that may hold garbage where they were saved."""
    return list(saved.result()[0].get("void", [])) if saved is not None else []


def _garbage(saved: Answer | None) -> str:
    """The same in words."""
    void = _void(saved)
    return f" (maybe garbage, since a collective was broken off: {', '.join(void)})" if void else ""
