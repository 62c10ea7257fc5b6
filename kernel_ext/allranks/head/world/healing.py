"""Changes the world without losing the ranks' variables: heal, resize, rewire.

Where the backend allows it, the world is re-formed in place, and processes that stay keep every variable untouched.
Otherwise the namespaces are saved to private files next to the cluster's folder, all processes are started again, and
the namespaces are loaded.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

from allranks.errors import Busy, CannotStart
from allranks.head.state.shared_advice import kill_text
from allranks_backends.plan import Host, rank_label
from allranks_backends.registry import get_backend

from . import checkpoints
from .change import RankVariables, SavedFiles, WorldChange
from .checkpoints import Say
from .ranks import START_TRIES, Ranks

SEEN_WITHIN = 2.0
"""Seconds within which every busy rank must be seen to wait in a collective, if a rank is dead."""
QUIET_WITHIN = 3.0
"""Seconds that interrupted cells get to end (see `_quiet`), and killed ranks to die."""
Became = dict[int, RankVariables]
Files = tuple[SavedFiles, ...]


def heal(ranks: Ranks, source: int | None, kill: Sequence[int], say: Say) -> WorldChange:
    """Replace dead ranks and the ranks to `kill`; with `source`, new ranks get copies of `source`'s variables.

    Ranks that an earlier change has started, and that never got their variables, get their variables now. Raises
    CannotStart, Busy if a rank cannot be interrupted, and NotLoaded if a rank lacks variables that it was meant to get.
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
    """Form the next world, a rank on each of `hosts`, from the remaining processes and new ones for the ranks in `new`.

    Returns False if all ranks must be restarted. If ranks of MPI die meanwhile, the remaining ones try once more.
    Raises CannotStart if the next world cannot be formed and the backend never needs a restart.
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
    """Form the next world in place; return the error if it could not be formed."""
    assert ranks.plan is not None
    before = len(ranks.monitor.ranks)
    ranks.plan_next(hosts, ranks.plan.backend)
    ranks.monitor.state = "broken"  # until the new world is formed
    if len(hosts) < before:
        _end(ranks, len(hosts))
    for number in new:
        ranks.owed.setdefault(number)
    ranks.launch(new)
    try:
        ranks.form()
    except BaseException as error:
        if ranks.backend.launcher == "mpirun":  # new ranks may be stuck in MPI_Init, and hold no variables
            _kill(ranks, [number for number in new if ranks.monitor.ranks[number].connected])
        if not isinstance(error, CannotStart):
            raise
        return error
    return None


def _lost_meanwhile(ranks: Ranks, new: Sequence[int]) -> list[int]:
    """Return the ranks to start in a second attempt to form a world of MPI: the ranks in `new`, and dead ones.

    Empty if no rank died, if some ranks are in the next world already and others are not, if the world can no longer be
    formed in place, or if no rank would remain.
    """
    monitor = ranks.monitor
    dead = {rank.rank for rank in monitor.ranks if rank.dead}
    if not dead or monitor.divided or ranks.backend.launcher != "mpirun" or not ranks.in_place(new):
        return []
    lost = sorted({*dead, *new})
    return lost if len(lost) < len(monitor.ranks) else []


def _change(verb: Literal["heal", "resize", "rewire"], ranks: Ranks, became: Became, files: Files) -> WorldChange:
    """Describe the world after a change, and what `became` of the ranks' variables."""
    monitor = ranks.monitor
    return WorldChange(verb, len(monitor.ranks), monitor.backend, monitor.generation, ranks=became, files=files)


def resize(ranks: Ranks, size: int, source: int | None, say: Say) -> WorldChange:
    """Grow or shrink the world; ranks that stay keep their variables.

    With `source`, new ranks get copies of `source`'s variables. Raises what `heal` raises.
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
    """Whether the same processes can run the next world over `backend`."""
    following = get_backend(backend)
    by_mpirun = "mpirun" in (ranks.backend.launcher, following.launcher)
    return ranks.in_place([]) and following.reform != "restart" and not by_mpirun


def _loaded(ranks: Ranks) -> tuple[Became, Files]:
    """Before a change, have running ranks load variables that an earlier change saved for them, if not loaded yet."""
    return checkpoints.load(ranks, [rank.rank for rank in ranks.monitor.ranks if rank.ready and not rank.dead])


def _delivered(ranks: Ranks, source: int | None, loaded: tuple[Became, Files]) -> tuple[Became, Files]:
    """Give each rank of the new world the variables that it lacks: saved ones, copies of `source`'s, or none.

    `loaded` is the result of `_loaded`: ranks in it are reported as restored, although they kept their processes.
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
    """Return which of the first `size` ranks need a new process: dead, lost by an unfinished change, or added."""
    there = ranks.monitor.ranks[:size]
    ranks.let_come([rank.rank for rank in there if rank.rank in ranks.owed])
    lost = [rank.rank for rank in there if rank.dead or (rank.rank in ranks.owed and not rank.received_at)]
    return [*lost, *range(len(there), size)]


def _end(ranks: Ranks, size: int) -> None:
    """End the processes of all ranks but the first `size`, and forget the ended ranks, even if interrupted."""
    try:
        ranks.stop_ranks(range(size, len(ranks.monitor.ranks)))
    finally:
        ranks.monitor.truncate(size)


def _end_all(ranks: Ranks) -> None:
    """End the processes of all ranks, and mark the ranks as dead until they are started again."""
    monitor = ranks.monitor
    try:
        ranks.stop_ranks(range(len(monitor.ranks)))
    finally:
        for rank in monitor.ranks:
            monitor.died(rank.rank, "ended, to be started again")


def _kept(ranks: Ranks) -> Became:
    """Report that ranks which stayed in the world kept their variables, and which of these are invalid."""
    pending = ranks.monitor.left_pending
    numbers = [rank.rank for rank in ranks.monitor.ranks if rank.rank not in ranks.owed]
    return {number: RankVariables("kept", invalid=pending.get(number, ())) for number in numbers}


def resized(ranks: Ranks, size: int) -> list[Host]:
    """Return the host of each rank in a world of `size`; new ranks first get RDMA hosts of the largest world so far."""
    hosts = [*ranks.hosts, *(host for host in ranks.most_hosts[len(ranks.hosts) :] if host.rdma)]
    return grown(hosts, size, together=ranks.backend.launcher == "mpirun")


def grown(hosts: Sequence[Host], size: int, *, together: bool) -> list[Host]:
    """Cut or extend `hosts` to `size`: each new rank joins the host with the fewest ranks, the last such host first.

    So neighbours in a ring share a host where they can. With `together`, all join the last host, since MPI numbers
    ranks host by host.
    """
    hosts = list(hosts[:size])
    while len(hosts) < size:
        counts = Counter(host.name for host in hosts)
        hosts.append(hosts[-1] if together else min(reversed(hosts), key=lambda host: counts[host.name]))
    return hosts


def rewire(ranks: Ranks, backend: str, connections: int, say: Say) -> WorldChange:
    """Move the same ranks to another backend or another number of connections. Raises what `heal` raises."""
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
        ranks.settings.change(connections=ranks.plan.connections)  # as in the current world
        raise
    return _change("rewire", ranks, became, files).check()


def _quiet(ranks: Ranks) -> bool:
    """Interrupt running cells; return True once all have ended. Raises Busy if some cannot be interrupted.

    Returns False if all busy ranks wait in a collective for a dead rank: only a restart ends the wait (see `_restart`).
    """
    monitor = ranks.monitor
    everybody = range(len(monitor.ranks))
    ranks.interrupt()
    if not monitor.wait(lambda: not monitor.busy(everybody), QUIET_WITHIN):
        seen: set[int] = set()

        def all_wait() -> bool:
            """Whether each busy rank was seen waiting at some time: a repeated signal wakes a rank for a moment."""
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
    """End these ranks' processes, busy or not, and wait up to `QUIET_WITHIN` seconds until the ranks are dead."""
    monitor = ranks.monitor
    numbers = [number for number in numbers if number < len(monitor.ranks)]
    ranks.kill(numbers)
    monitor.wait(lambda: all(monitor.ranks[number].dead for number in numbers), QUIET_WITHIN)


def _restart(ranks: Ranks, hosts: Sequence[Host], backend: str, say: Say) -> None:
    """Save living ranks' variables on their hosts, and start all processes again, one for each of `hosts`.

    Raises CannotStart.
    """
    monitor = ranks.monitor
    ranks.draft(hosts, backend, ranks.settings.options.connections)  # before anything is ended
    kept = [rank.rank for rank in monitor.ranks[: len(hosts)] if not rank.dead and rank.rank not in ranks.owed]
    saved = checkpoints.save(ranks, kept, say)
    monitor.state = "broken"  # until the new world is formed
    try:
        ranks.owed |= {**dict.fromkeys(range(len(hosts))), **ranks.owed, **saved}
        ranks.save()
        _start_again(ranks, hosts, backend)
    except CannotStart as error:
        raise CannotStart(f"{error}\n{checkpoints.where(checkpoints.saved_files(ranks.owed))}".strip()) from None


def _start_again(ranks: Ranks, hosts: Sequence[Host], backend: str) -> None:
    """End all processes, and start one for each of `hosts`. Like `Cluster.up`, try again if that may help.

    Raises CannotStart.
    """
    for tries_left in reversed(range(START_TRIES)):
        _end_all(ranks)  # also processes of a failed attempt
        ranks.plan_next(hosts, backend)
        ranks.monitor.truncate(len(hosts))
        ranks.launch(range(len(hosts)))
        try:
            return ranks.form()
        except CannotStart as error:
            if not (error.transient and tries_left):
                raise
