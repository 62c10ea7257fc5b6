"""Change who is in the world without losing what the ranks hold: heal, resize, rewire.

In place where the backend allows it: the processes that stay keep every variable untouched. Elsewhere the namespaces
are saved to private files beside the cluster's folder, the processes started again, and the namespaces loaded.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

from allranks.errors import Busy, CannotStart
from allranks.head.state.advice import kill_text
from allranks_backends.plan import Host, rank_label
from allranks_backends.registry import get_backend

from . import checkpoints
from .change import RankVariables, SavedFiles, WorldChange
from .checkpoints import Say
from .ranks import START_TRIES, Ranks

SEEN_WITHIN = 2.0
"""Seconds in which ranks that wait for a dead one are seen waiting."""
QUIET_WITHIN = 3.0
"""Seconds running cells get to end before nothing is changed."""
Became = dict[int, RankVariables]
Files = tuple[SavedFiles, ...]


def heal(ranks: Ranks, source: int | None, kill: Sequence[int], say: Say) -> WorldChange:
    """Replace dead ranks, and those to `kill`; with `source`, by copies of that rank.

    Ranks that an earlier change has started and that never got their variables get them now.
    Raises NotLoaded where less was kept than should be, CannotStart and Busy.
    """
    monitor = ranks.monitor
    _kill(ranks, kill)
    all_free = _quiet(ranks)
    new = _to_start(ranks, len(ranks.hosts))
    assert ranks.plan is not None
    loaded = _loaded(ranks)
    if (new or monitor.state != "whole") and not (all_free and _in_place(ranks, ranks.hosts, new, say)):
        _restart(ranks, ranks.hosts, ranks.plan.backend, say)
    became, files = _delivered(ranks, source, loaded)
    return _change("heal", ranks, became, files).check()


def _in_place(ranks: Ranks, hosts: Sequence[Host], new: Sequence[int], say: Say) -> bool:
    """Form the next world, a rank on each of `hosts`, in the processes that are left and those of the `new` ranks.

    False where all must be restarted. Where ranks of MPI die meanwhile, those that are left try once more.
    """
    if not ranks.in_place(new):
        return False
    error = _failure_in_place(ranks, hosts, new)
    if error is not None and (lost := _lost_meanwhile(ranks, new)):
        say(f"Trying once more: {error}")
        error = _failure_in_place(ranks, hosts, lost)
    if error is None:
        return True
    if ranks.backend.reform == "in place":
        raise error
    ranks.monitor.state, ranks.monitor.breakable = "broken", False
    say(f"The ranks are restarted: {error}")
    return False


def _failure_in_place(ranks: Ranks, hosts: Sequence[Host], new: Sequence[int]) -> CannotStart | None:
    """Form the next world in place; returns why it could not be formed, if so."""
    assert ranks.plan is not None
    before = len(ranks.monitor.ranks)
    ranks.plan_next(hosts, ranks.plan.backend)
    ranks.monitor.state = "broken"  # until the new world is there
    if len(hosts) < before:
        _end(ranks, len(hosts))
    for number in new:
        ranks.owed.setdefault(number)
    ranks.launch(new)
    try:
        ranks.form()
    except BaseException as error:
        if ranks.backend.launcher == "mpirun":  # they may be in MPI_Init for good, and hold nothing
            _kill(ranks, [number for number in new if ranks.monitor.ranks[number].connected])
        if not isinstance(error, CannotStart):
            raise
        return error
    return None


def _lost_meanwhile(ranks: Ranks, new: Sequence[int]) -> list[int]:
    """The ranks to start in another try to form a world of MPI: the `new` ones, and those that died in the first try.

    None where no rank died, or where some ranks are in the next world already and others are not.
    """
    monitor = ranks.monitor
    dead = {rank.rank for rank in monitor.ranks if rank.dead}
    if not dead or monitor.divided or ranks.backend.launcher != "mpirun" or not ranks.in_place(new):
        return []
    lost = sorted({*dead, *new})
    return lost if len(lost) < len(monitor.ranks) else []


def _change(verb: Literal["heal", "resize", "rewire"], ranks: Ranks, became: Became, files: Files) -> WorldChange:
    """How the world is after that, and what `became` of the ranks' variables."""
    monitor = ranks.monitor
    return WorldChange(verb, len(monitor.ranks), monitor.backend, monitor.generation, ranks=became, files=files)


def resize(ranks: Ranks, size: int, source: int | None, say: Say) -> WorldChange:
    """Grow or shrink the world; the ranks that stay keep their variables, new ones are copies of `source`.

    Raises what `heal` raises.
    """
    assert ranks.plan is not None
    before = len(ranks.hosts)
    _quiet(ranks)
    hosts = resized(ranks, size)
    loaded = _loaded(ranks)
    if not _in_place(ranks, hosts, _to_start(ranks, size), say):
        _restart(ranks, hosts, ranks.plan.backend, say)
    became, files = _delivered(ranks, source, loaded)
    change = _change("resize", ranks, became, files)
    return replace(change, unused_source=source if size < before else None).check()


def _rewires_in_place(ranks: Ranks, backend: str) -> bool:
    """Whether the next world can run over that backend in the same processes."""
    following = get_backend(backend)
    by_mpirun = "mpirun" in (ranks.backend.launcher, following.launcher)
    return ranks.in_place([]) and following.reform != "restart" and not by_mpirun


def _loaded(ranks: Ranks) -> tuple[Became, Files]:
    """Before anything is changed, ranks that run load what an earlier change saved for them, if they have not yet."""
    return checkpoints.load(ranks, [rank.rank for rank in ranks.monitor.ranks if rank.ready and not rank.dead])


def _delivered(ranks: Ranks, source: int | None, loaded: tuple[Became, Files]) -> tuple[Became, Files]:
    """Give each rank of the new world the variables that it lacks: those saved for it, those of `source`, or none.

    `loaded`: what was loaded before the change, which says more of these ranks than that they kept it.
    """
    size = len(ranks.monitor.ranks)
    for number in [number for number in ranks.owed if number >= size]:
        del ranks.owed[number]  # the world has shrunk
    became, files = _kept(ranks), loaded[1]
    became |= {number: each for number, each in loaded[0].items() if number in became}
    restored, more = checkpoints.load(ranks, range(size))
    new = sorted(ranks.owed)
    if source in new:
        begun = dict.fromkeys(new, RankVariables("empty", source, f"rank {source} died meanwhile"))
    elif source is not None:
        begun = checkpoints.copy(ranks, source, new) if new else {}
    else:
        begun = {number: RankVariables("empty") for number in new}
        ranks.owed.clear()
    ranks.save()
    return became | restored | begun, (*files, *more)


def _to_start(ranks: Ranks, size: int) -> list[int]:
    """Those of the first `size` ranks that need a new process: dead, or lost by a change that did not finish."""
    there = ranks.monitor.ranks[:size]
    ranks.let_come([rank.rank for rank in there if rank.rank in ranks.owed])
    lost = [rank.rank for rank in there if rank.dead or (rank.rank in ranks.owed and not rank.received_at)]
    return [*lost, *range(len(there), size)]


def _end(ranks: Ranks, size: int) -> None:
    """End the processes of all ranks but the first `size`; also where the wait for their end is interrupted."""
    try:
        ranks.stop_ranks(range(size, len(ranks.monitor.ranks)))
    finally:
        ranks.monitor.truncate(size)


def _end_all(ranks: Ranks) -> None:
    """End the processes of all ranks, which are dead until they are started again."""
    monitor = ranks.monitor
    try:
        ranks.stop_ranks(range(len(monitor.ranks)))
    finally:
        for rank in monitor.ranks:
            monitor.died(rank.rank, "ended, to be started again")


def _kept(ranks: Ranks) -> Became:
    """What these ranks hold that are in the world as before."""
    pending = ranks.monitor.left_pending
    numbers = [rank.rank for rank in ranks.monitor.ranks if rank.rank not in ranks.owed]
    return {number: RankVariables("kept", invalid=pending.get(number, ())) for number in numbers}


def resized(ranks: Ranks, size: int) -> list[Host]:
    """The host of each rank in a world of `size`: new ones have the cables of those before, or join others."""
    hosts = [*ranks.hosts, *(host for host in ranks.most_hosts[len(ranks.hosts) :] if host.rdma)]
    return grown(hosts, size, together=ranks.backend.launcher == "mpirun")


def grown(hosts: Sequence[Host], size: int, *, together: bool) -> list[Host]:
    """These hosts, or as many, with more for new ranks: each joins the host with the fewest, the last ones first.

    So neighbours in a ring share a host where they can. MPI numbers ranks host by host: `together`, all join the last.
    """
    hosts = list(hosts[:size])
    while len(hosts) < size:
        counts = Counter(host.name for host in hosts)
        hosts.append(hosts[-1] if together else min(reversed(hosts), key=lambda host: counts[host.name]))
    return hosts


def rewire(ranks: Ranks, backend: str, connections: int, say: Say) -> WorldChange:
    """The same ranks over another backend, or with another number of connections. Raises what `heal` raises."""
    assert ranks.plan is not None
    ranks.draft(ranks.hosts, backend, connections)  # before anything is changed
    _quiet(ranks)
    ranks.settings.change(connections=connections)
    loaded = _loaded(ranks)
    try:
        if _rewires_in_place(ranks, backend) and not _to_start(ranks, len(ranks.hosts)):
            ranks.form_again(backend)
        else:
            _restart(ranks, ranks.hosts, backend, say)
        became, files = _delivered(ranks, None, loaded)
    except BaseException:
        ranks.settings.change(connections=ranks.plan.connections)  # of the world as it is now
        raise
    return _change("rewire", ranks, became, files).check()


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
        busy = [rank.rank for rank in monitor.busy(everybody)]
        raise Busy(
            f"{rank_label(busy)} cannot be interrupted (%distributed status shows where). To replace: {kill_text(busy)}"
        )
    return True


def _kill(ranks: Ranks, numbers: Sequence[int]) -> None:
    """End these ranks' processes, whatever they do."""
    monitor = ranks.monitor
    numbers = [number for number in numbers if number < len(monitor.ranks)]
    ranks.kill(numbers)
    monitor.wait(lambda: all(monitor.ranks[number].dead for number in numbers), QUIET_WITHIN)


def _restart(ranks: Ranks, hosts: Sequence[Host], backend: str, say: Say) -> None:
    """Start all processes again, one for each of `hosts`; the variables of the living ranks are saved to local disk."""
    monitor = ranks.monitor
    ranks.draft(hosts, backend, ranks.settings.options.connections)  # before anything is ended
    kept = [rank.rank for rank in monitor.ranks[: len(hosts)] if not rank.dead and rank.rank not in ranks.owed]
    saved = checkpoints.save(ranks, kept, say)
    monitor.state = "broken"  # until the new world is there
    try:
        ranks.owed |= {**dict.fromkeys(range(len(hosts))), **ranks.owed, **saved}
        ranks.save()
        _start_again(ranks, hosts, backend)
    except CannotStart as error:
        raise CannotStart(f"{error}\n{checkpoints.where(checkpoints.saved_files(ranks.owed))}".strip()) from None


def _start_again(ranks: Ranks, hosts: Sequence[Host], backend: str) -> None:
    """End all processes, and start one for each of `hosts`; as `Cluster.up` does, try again if that may help."""
    for tries_left in reversed(range(START_TRIES)):
        _end_all(ranks)  # also those of a try that failed
        ranks.plan_next(hosts, backend)
        ranks.monitor.truncate(len(hosts))
        ranks.launch(range(len(hosts)))
        try:
            return ranks.form()
        except CannotStart as error:
            if not (error.transient and tries_left):
                raise
