"""A change of the world that fails on the way, and is made again: no rank stays without its variables unsaid."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from allranks import Cluster
from allranks.errors import CannotStart, NoAnswer, NotLoaded, UsageError, WorldBroken
from allranks.head.world import forming, healing
from allranks.head.world.process_events import ProcessEvents
from allranks.head.world.processes import Processes
from allranks.head.world.ranks import Ranks
from allranks.hosts.host_end import HostReport
from allranks.messages.host_messages import Launched, Started
from allranks.messages.requests import Load
from tests.waiting import comes_true

WITHIN = 60.0
FAILURE = "host2 could not be reached"


def fails_once(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, *, after: bool = False) -> None:
    """The next call of this function raises, instead of what it does or `after` it."""
    function, failed = getattr(owner, name), list[bool]()

    def failing(*args: Any, **kwargs: Any) -> Any:
        if failed:
            return function(*args, **kwargs)
        if after:
            function(*args, **kwargs)
        failed.append(True)
        raise CannotStart(FAILURE)

    monkeypatch.setattr(owner, name, failing)


def kill(cluster: Cluster, rank: int) -> None:
    os.kill(cluster.snapshot.ranks[rank].pid or 0, signal.SIGKILL)
    assert comes_true(cluster, lambda now: now.ranks[rank].state == "dead", WITHIN)


def healed(cluster: Cluster, copied: int) -> None:
    """Heal again: that rank has the variables of rank 0, the others have their own, and the world works."""
    assert f"rank {copied} got the variables of rank 0" in str(cluster.heal(source=0))
    held = [number * 10 for number in range(cluster.size)]
    held[copied] = 0
    assert cluster.pull("held") == held
    assert cluster.run("mx.distributed.all_sum(mx.array(1)).item()")[0].value == cluster.size
    assert not cluster.heal(source=0).changed


STEPS: dict[str, Callable[[pytest.MonkeyPatch], None]] = {
    "the new rank is started": lambda patch: fails_once(patch, Ranks, "launch", after=True),
    "the new rank connects": lambda patch: fails_once(patch, Ranks, "connect"),
    "its host is asked": lambda patch: fails_once(patch, Ranks, "sites"),
    "the ranks are asked to join": lambda patch: fails_once(patch, forming, "form"),
    "all have joined": lambda patch: fails_once(patch, forming, "form", after=True),
    "all are ready": lambda patch: fails_once(patch, Ranks, "wait_for", after=True),
    "the world is described": lambda patch: fails_once(patch, Ranks, "save"),
}


@pytest.mark.parametrize("step", STEPS)
def test_a_heal_that_failed_is_completed_by_the_next(
    step: str, ring4: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    ring4.run("held = rank * 10").check()
    kill(ring4, 2)
    assert ring4._live.ranks is not None
    ring4._live.ranks.can_run = None  # as in a cluster that another notebook started
    STEPS[step](monkeypatch)
    with pytest.raises(CannotStart, match=FAILURE):
        ring4.heal(source=0)
    with pytest.raises(WorldBroken, match=r"did not finish: rank 2 has no variables yet\. .* With --from R, rank 2"):
        ring4.run("held")
    with pytest.raises(UsageError, match="cannot copy from rank 2: it has no variables yet"):
        ring4.heal(source=2)
    healed(ring4, 2)


def test_a_rank_that_dies_while_another_is_replaced_is_named_and_replaced(
    ring4: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    ring4.run("held = rank * 10").check()
    kill(ring4, 2)
    launch = Ranks.launch

    def launch_and_kill(ranks: Ranks, numbers: Any) -> None:
        launch(ranks, numbers)
        monkeypatch.undo()
        os.kill(ring4.snapshot.ranks[3].pid or 0, signal.SIGKILL)

    monkeypatch.setattr(Ranks, "launch", launch_and_kill)
    with pytest.raises(CannotStart, match="rank 3"):
        ring4.heal(source=0)
    lacks = "The last change of the world did not finish: rank 2 has no variables yet."
    assert ring4.state == "broken" and ring4.snapshot.notes[0].endswith(lacks)
    with pytest.raises(WorldBroken, match=f"rank 3 died .* {lacks}"):
        ring4.run("held")
    assert "ranks 2-3 got the variables of rank 0" in str(ring4.heal(source=0))
    assert ring4.pull("held") == [0, 10, 0, 0]


def test_without_a_source_the_next_heal_says_that_the_rank_is_empty(
    ring4: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    kill(ring4, 2)
    fails_once(monkeypatch, forming, "form")
    with pytest.raises(CannotStart, match=FAILURE):
        ring4.heal(source=0)
    assert str(ring4.heal()) == "Healed the world: ranks 0-1, 3 kept all variables; rank 2 started empty."
    assert not ring4.heal().changed


@pytest.mark.parametrize("again", ["resize", "heal"])
def test_a_resize_that_failed_is_completed_by_the_next(
    again: str, ring2: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    ring2.run("held = rank * 10").check()
    fails_once(monkeypatch, Ranks, "connect")
    with pytest.raises(CannotStart, match=FAILURE):
        ring2.resize(3, source=0)
    assert ring2.state == "incomplete", "rank 2 has not joined"
    with pytest.raises(WorldBroken, match="did not finish: rank 2 has no variables yet"):
        ring2.run("held")
    if again == "resize":
        told = str(ring2.resize(3, source=0))
        assert told == "The world now has 3 ranks: ranks 0-1 kept all variables; rank 2 got the variables of rank 0."
        assert ring2.pull("held") == [0, 10, 0]
    else:
        healed(ring2, 2)


def test_a_world_that_could_not_grow_goes_on_without_the_new_rank(
    ring2: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    ring2.run("held = rank * 10").check()
    fails_once(monkeypatch, Ranks, "connect")
    with pytest.raises(CannotStart, match=FAILURE):
        ring2.resize(3, source=0)
    assert str(ring2.resize(2)) == "The world now has 2 ranks: ranks 0-1 kept all variables."
    assert ring2.pull("held") == [0, 10] and not ring2.heal().changed


def test_a_world_whose_ranks_were_still_ending_when_it_was_interrupted_is_healed(
    ring4: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    ring4.run("held = rank * 10").check()
    stop = Processes.stop

    def interrupted(*args: Any, **kwargs: Any) -> None:
        stop(*args, **kwargs)
        monkeypatch.undo()
        raise KeyboardInterrupt

    monkeypatch.setattr(Processes, "stop", interrupted)
    with pytest.raises(KeyboardInterrupt):
        ring4.resize(2)
    assert str(ring4.heal()) == "Healed the world: ranks 0-1 kept all variables."
    assert ring4.pull("held") == [0, 10]
    assert ring4.run("mx.distributed.all_sum(mx.array(1)).item()")[0].value == 2


def test_a_change_names_a_rank_that_is_stopped_and_changes_nothing(ring2: Cluster) -> None:
    ring2.run("held = rank * 10").check()
    pid = ring2.snapshot.ranks[1].pid or 0
    os.kill(pid, signal.SIGSTOP)
    try:
        assert comes_true(ring2, lambda now: now.ranks[1].state == "suspended", WITHIN)
        changes: list[Callable[[], object]] = [
            ring2.heal,
            lambda: ring2.resize(3, source=0),
            lambda: ring2.rewire("ring"),
        ]
        for change in changes:
            with pytest.raises(NoAnswer, match=r"rank 1 is not responding .*Nothing was changed\..* heal --kill 1"):
                change()
    finally:
        os.kill(pid, signal.SIGCONT)
    assert comes_true(ring2, lambda now: now.ranks[1].state == "idle", WITHIN)
    assert ring2.pull("held") == [0, 10] and not ring2.heal().changed


def test_a_source_that_dies_before_it_is_copied_is_no_source(ring4: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    ring4.run("held = rank * 10").check()
    kill(ring4, 2)
    quiet = healing._quiet

    def quiet_and_dead(ranks: Ranks) -> bool:
        kill(ring4, 0)
        return quiet(ranks)

    monkeypatch.setattr(healing, "_quiet", quiet_and_dead)
    with pytest.raises(NotLoaded, match="ranks 0, 2 started empty because rank 0 died meanwhile"):
        ring4.heal(source=0)
    monkeypatch.undo()
    with pytest.raises(WorldBroken, match="did not finish: ranks 0, 2 have no variables yet"):
        ring4.run("held")
    assert "ranks 0, 2 got the variables of rank 1" in str(ring4.heal(source=1))
    assert ring4.pull("held") == [10, 10, 10, 30]


LOSES_ITS_CONNECTION = """
import os, psutil, socket
if not os.path.exists({done!r}):
    for each in psutil.Process().net_connections():
        if each.raddr and each.raddr.port == {port}:
            open({done!r}, "w").close()
            socket.socket(fileno=os.dup(each.fd)).shutdown(socket.SHUT_RDWR)
"""
HELD = {
    "source": "exec(code); return int, ()",
    "target": "return eval, ('exec(' + repr(code) + ') or 0',)",
}
"""What `__reduce__` does, by the rank that loses its connection: the one that saves, or the one that loads."""


@pytest.mark.parametrize("end", HELD)
def test_a_rank_that_loses_its_connection_in_a_copy_is_asked_again(end: str, ring4: Cluster, tmp_path: Path) -> None:
    assert ring4._live.ranks is not None
    done, port = tmp_path / "done", int(ring4._live.ranks.lifeline.url.rpartition(":")[2])
    code = LOSES_ITS_CONNECTION.format(done=str(done), port=port)
    make = f"code = {code!r}\nclass Held:\n    def __reduce__(self):\n        {HELD[end]}\nheld = Held()"
    ring4.run(make, ranks=[0]).check()
    kill(ring4, 2)
    assert "rank 2 got the variables of rank 0" in str(ring4.heal(source=0))
    assert done.exists() and ring4.run("held", ranks=[2]).check()[2].value == 0


FORMS_WITHOUT_CONNECTION = """
import gc
from allranks.rank.world.membership import World
member = next(each for each in gc.get_objects() if isinstance(each, World))
init = member._init
def init_and_lose(*args, **kwargs):
    member._init = init
    exec(code)
    return init(*args, **kwargs)
member._init = init_and_lose
"""


def test_a_rank_that_loses_its_connection_while_it_joins_is_asked_again(ring4: Cluster, tmp_path: Path) -> None:
    assert ring4._live.ranks is not None
    done, port = tmp_path / "done", int(ring4._live.ranks.lifeline.url.rpartition(":")[2])
    code = LOSES_ITS_CONNECTION.format(done=str(done), port=port)
    ring4.run("held = rank * 10").check()
    ring4.run(f"code = {code!r}\n{FORMS_WITHOUT_CONNECTION}", ranks=[0]).check()
    before = ring4.snapshot.generation
    kill(ring4, 2)
    ring4.heal()
    assert done.exists() and ring4.snapshot.generation == before + 2
    assert ring4.pull("held", ranks=[0, 1, 3]) == [0, 10, 30]
    assert ring4.run("mx.distributed.all_sum(mx.array(1)).item()").check()[2].value == 4


@pytest.mark.mpi
@pytest.mark.slow
@pytest.mark.parametrize("step", ["stop_ranks", "plan_next", "launch", "form"])
def test_a_restart_that_failed_at_any_step_loses_nothing(
    step: str, restarted_mpi2: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = restarted_mpi2
    cluster.run("held = rank * 10").check()
    fails_once(monkeypatch, Ranks, step)
    with pytest.raises(CannotStart, match=f"{FAILURE}\nThe ranks' variables are saved"):
        cluster.rewire("ring")
    with pytest.raises(WorldBroken, match="did not finish: the variables of ranks 0-1 are saved and not loaded yet"):
        cluster.run("held")
    told = str(cluster.rewire("ring"))
    assert told == "The world now runs on ring: ranks 0-1 restarted with all variables."
    assert cluster.pull("held") == [0, 10]
    cluster.rewire("mpi")
    assert cluster.pull("held") == [0, 10]


@pytest.mark.mpi
@pytest.mark.slow
@pytest.mark.parametrize("backend", ["ring", "mpi"])
def test_a_change_that_is_repeated_at_once_ends_what_it_had_ordered(
    backend: str, need_mpi: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Cluster(2, backend="mpi" if backend == "ring" else "ring", name="repeated") as cluster:
        cluster.run("held = rank * 10").check()
        receive = ProcessEvents.receive

        def late(self: ProcessEvents, event: HostReport, name: str) -> None:
            """The host's reports of what it has started come half a second late."""
            if isinstance(event, Started | Launched):
                time.sleep(0.5)
            receive(self, event, name)

        monkeypatch.setattr(ProcessEvents, "receive", late)
        fails_once(monkeypatch, Ranks, "form")
        with pytest.raises(CannotStart, match=FAILURE):
            cluster.rewire(backend)
        cluster.rewire(backend)
        assert cluster.pull("held") == [0, 10] and cluster._live.ranks is not None
        started = psutil.Process(cluster._live.ranks.host.process[0]).children()
        assert len(started) == (1 if backend == "mpi" else 2) + 1, "with the controller"


@pytest.mark.mpi
@pytest.mark.slow
@pytest.mark.parametrize("verb", ["heal", "rewire"])
def test_what_was_saved_for_a_restart_that_failed_is_loaded_by_the_next_heal(
    verb: str, restarted_mpi2: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = restarted_mpi2
    cluster.run("held = rank * 10").check()
    if verb == "heal":
        kill(cluster, 1)
    fails_once(monkeypatch, forming, "form")
    with pytest.raises(CannotStart, match=f"{FAILURE}\nThe ranks' variables are saved"):
        cluster.heal(source=0) if verb == "heal" else cluster.rewire("ring")
    with pytest.raises(
        WorldBroken, match=r"did not finish: the variables of ranks? 0(-1)? are saved and not loaded yet"
    ):
        cluster.run("held")
    told = str(cluster.heal(source=0))
    if verb == "heal":
        assert told == ("Healed the world: rank 0 restarted with all variables; rank 1 got the variables of rank 0.")
        assert cluster.pull("held") == [0, 0]
    else:
        assert told == "Healed the world: ranks 0-1 restarted with all variables."
        assert cluster.pull("held") == [0, 10]
    assert cluster.run("mx.distributed.all_sum(mx.array(1)).item()")[0].value == 2


@pytest.mark.mpi
@pytest.mark.slow
def test_what_was_loaded_when_the_notebook_was_interrupted_is_not_lost(
    restarted_mpi2: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster, ask = restarted_mpi2, Ranks.ask
    cluster.run("held = rank * 10").check()
    kill(cluster, 1)

    def interrupted(ranks: Ranks, numbers: Any, question: Any, buffers: Any = ()) -> Any:
        answers = ask(ranks, numbers, question, buffers)
        if isinstance(question, Load):
            monkeypatch.undo()
            assert answers[0].result(WITHIN).answer.failed == {}
            raise KeyboardInterrupt
        return answers

    monkeypatch.setattr(Ranks, "ask", interrupted)
    with pytest.raises(KeyboardInterrupt):
        cluster.heal(source=0)
    told = str(cluster.heal(source=0))
    assert told == "Healed the world: rank 0 restarted with all variables; rank 1 got the variables of rank 0."
    assert cluster.pull("held") == [0, 0]
