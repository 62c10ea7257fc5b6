"""A rank is killed: named at once, replaced by `heal`, and the others hold what they held."""

from __future__ import annotations

import os
import signal
import threading
import time

import pytest

from allranks import Cluster
from allranks.errors import CannotStart, CellTimeout, NoAnswer, UsageError, WorldBroken
from allranks.head.state import known_rank
from allranks.head.world import forming
from tests.faults.absent import blocked
from tests.faults.ends import EXITS, EXITS_AT_ONCE, NCCL_ERROR
from tests.faults.kept import WITHIN, Detached, keep, look, sums_are_right
from tests.faults.stop import running, waiting
from tests.waiting import comes_true, eventually, idle

PATIENCE = 60.0
"""What a machine that is busy with other things gets on top of what is promised."""
VICTIM = 2


def kill(cluster: Cluster, rank: int = VICTIM) -> None:
    """Kill it, and wait until that is known."""
    pid = cluster.snapshot.ranks[rank].pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    killed = time.monotonic()
    assert comes_true(cluster, lambda now: now.ranks[rank].state == "dead", WITHIN)
    assert time.monotonic() - killed < 1 + PATIENCE
    if cluster.backend == "ring":
        assert "killed by SIGKILL" in (cluster.snapshot.ranks[rank].cause or "")
    assert cluster.state == "broken"


def kill_when_others_wait_for_it(cluster: Cluster, rank: int = VICTIM) -> None:
    """It is stopped first, so that the others are blocked in a collective when it dies."""
    pid = cluster.snapshot.ranks[rank].pid
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    assert comes_true(cluster, waiting(*(each for each in range(cluster.size) if each != rank)), WITHIN)
    kill(cluster, rank)


def without(kept: dict[int, Detached], rank: int = VICTIM) -> dict[int, Detached]:
    return {number: each for number, each in kept.items() if number != rank}


def healed(cluster: Cluster, kept: dict[int, Detached]) -> None:
    """Heal, and hold the survivors against what they held."""
    before = time.monotonic()
    told = str(cluster.heal())
    assert time.monotonic() - before < 3 + PATIENCE
    assert "ranks 0-1, 3 kept all variables" in told and "rank 2 started empty" in told
    assert cluster.state == "whole" and sums_are_right(cluster)
    assert look(cluster, sorted(without(kept))) == without(kept)
    assert cluster.run("'kept' in globals(), rank, world.rank()", ranks=VICTIM)[VICTIM].value == (False, 2, 2)


def test_idle(ring4: Cluster) -> None:
    kept = keep(ring4)
    kill(ring4)
    with pytest.raises(WorldBroken, match=r"rank 2 died \(killed by SIGKILL\)"):
        ring4.run("1")
    healed(ring4, kept)


def test_in_a_collective(ring4: Cluster) -> None:
    kept = keep(ring4)
    cell = ring4.begin("while True:\n    mx.eval(mx.distributed.all_sum(mx.ones(1000)))")
    assert comes_true(ring4, running(0, 1, 2, 3), WITHIN)
    kill_when_others_wait_for_it(ring4)
    result = cell.finish(WITHIN)
    assert result[2].dead and all(result[rank].unblocked for rank in (0, 1, 3)), result
    assert result.errors == {}, "no rank but the dead one is to blame"
    assert "rank 2 died: killed by SIGKILL" in result.failure()
    assert result.failure().endswith("To replace it: %distributed heal")
    healed(ring4, kept)


@pytest.mark.slow
def test_in_python_while_others_wait_for_it(ring4: Cluster) -> None:
    kept = keep(ring4)
    cell = ring4.begin(
        f"import time\nif rank == {VICTIM}:\n    time.sleep(600)\nmx.eval(mx.distributed.all_sum(mx.ones(10)))"
    )
    assert comes_true(ring4, lambda now: now.ranks[VICTIM].line == 3 and waiting(0, 1, 3)(now), WITHIN)
    kill(ring4)
    result = cell.finish(WITHIN)
    assert "last seen at line 3" in (result[VICTIM].dead or "")
    assert all(result[rank].unblocked for rank in (0, 1, 3))
    healed(ring4, kept)


@pytest.mark.parametrize("exits", [EXITS, EXITS_AT_ONCE], ids=["", "at once"])
def test_a_rank_that_a_library_ends_is_named_with_what_the_library_said(exits: str, ring4: Cluster) -> None:
    kept = keep(ring4)
    result = blocked(ring4, "mx.eval(mx.distributed.all_sum(mx.ones(10)))", exits, rank=VICTIM)
    assert (result[VICTIM].dead or "").startswith(f"exited with code 1 ({NCCL_ERROR})")
    assert all(result[rank].unblocked for rank in (0, 1, 3)) and result.errors == {}
    healed(ring4, kept)


@pytest.mark.slow
def test_in_python_while_others_run_python(ring4: Cluster) -> None:
    kept = keep(ring4)
    cell = ring4.begin("import time\ntime.sleep(600)")
    assert comes_true(ring4, running(0, 1, 2, 3), WITHIN)
    kill(ring4)
    with pytest.raises(CellTimeout):
        cell.finish(0.1)
    healed(ring4, kept)


@pytest.mark.slow
def test_heal_stops_a_cell_that_still_runs_on_the_others(ring4: Cluster) -> None:
    kept = keep(ring4)
    ring4.begin("import time\ntime.sleep(600)")
    assert comes_true(ring4, running(0, 1, 2, 3), WITHIN)
    kill(ring4)
    healed(ring4, kept)


@pytest.mark.parametrize("state", ["idle", "collective"])
def test_heal_from_another_rank_restores_the_replica_bit_for_bit(state: str, ring4: Cluster) -> None:
    kept = keep(ring4)
    if state == "collective":
        cell = ring4.begin("while True:\n    mx.eval(mx.distributed.all_sum(mx.ones(1000)))")
        assert comes_true(ring4, running(0, 1, 2, 3), WITHIN)
        kill(ring4)
        cell.finish(WITHIN)
    else:
        kill(ring4)
    assert "rank 2 got the variables of rank 0" in str(ring4.heal(source=0))
    now = look(ring4)
    assert without(now) == without(kept)
    assert now[VICTIM].digest == kept[0].digest
    assert sums_are_right(ring4)


@pytest.mark.slow
def test_what_a_copy_is_given_is_its_own(ring4: Cluster) -> None:
    """Its rank, its world, and functions that look up names in its own namespace."""
    ring4.run(
        "import mlx.nn as nn\nrate = 0.5\n_secret = 3\nmine = world\n"
        "def scaled():\n    return rate * 2, rank, world.rank(), mine is world, _secret\n"
        "class Doubler:\n    def __call__(self):\n        return rate * 4\n"
        "doubler = Doubler()\n"
        "stuck = (i for i in range(3))\n"
        "def uses_stuck():\n    return next(stuck)"
    ).check()
    kill(ring4)
    assert "except stuck, which cannot be saved" in str(ring4.heal(source=0))
    ring4.run("rate = 10").check()
    assert ring4.run("scaled(), doubler(), rank, size")[VICTIM].value == ((20, 2, 2, True, 3), 40, 2, 4)
    assert ring4.run("scaled(), doubler(), rank, size")[0].value == ((20, 0, 0, True, 3), 40, 0, 4)
    ring4.run("stuck = iter([7])").check()
    assert ring4.run("uses_stuck()")[VICTIM].value == 7


@pytest.mark.slow
def test_two_at_once_and_again_and_again(ring4: Cluster) -> None:
    kept = keep(ring4)
    for _ in range(2):
        kill(ring4, 1)
        kill(ring4, 3)
        assert "ranks 1, 3 started empty" in str(ring4.heal())
        assert sums_are_right(ring4)
        assert look(ring4, [0, 2]) == {rank: kept[rank] for rank in (0, 2)}


@pytest.mark.slow
def test_every_rank(ring4: Cluster) -> None:
    for rank in range(4):
        kill(ring4, rank)
    assert "ranks 0-3 started empty" in str(ring4.heal())
    assert sums_are_right(ring4)


@pytest.mark.slow
def test_healing_what_is_whole_changes_nothing(ring4: Cluster) -> None:
    kept, generation = keep(ring4), ring4.snapshot.generation
    assert "Nothing to heal" in str(ring4.heal())
    kill(ring4)
    ring4.heal()
    assert "Nothing to heal" in str(ring4.heal())
    assert ring4.snapshot.generation == generation + 1
    assert look(ring4, [0, 1, 3]) == without(kept)


@pytest.mark.slow
def test_a_dead_rank_cannot_be_copied_from(ring4: Cluster) -> None:
    kill(ring4)
    with pytest.raises(UsageError, match="cannot copy from rank 2: it is dead"):
        ring4.heal(source=2)
    with pytest.raises(UsageError, match="no rank 9: this world has ranks 0-3"):
        ring4.heal(source=9)
    ring4.heal()


@pytest.mark.slow
def test_stop_while_healing_is_put_off_until_the_world_is_whole(
    ring4: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept, ranks = keep(ring4), ring4._live.ranks
    assert ranks is not None
    kill(ring4)
    form = ranks.form

    def stopped() -> None:
        signal.raise_signal(signal.SIGINT)
        form()

    monkeypatch.setattr(ranks, "form", stopped)
    with pytest.raises(KeyboardInterrupt):
        ring4.heal()
    monkeypatch.undo()
    assert ring4.state == "whole"
    assert idle(ring4) and sums_are_right(ring4)
    assert look(ring4, [0, 1, 3]) == without(kept)


def test_what_asks_all_ranks_names_a_dead_one(ring4: Cluster) -> None:
    ring4.run("part, alike = [rank], 7").check()
    kill(ring4)
    dead = r"rank 2 died \(killed by SIGKILL.*\)\."
    for verb in ("pull", "gather", "fetch"):
        with pytest.raises(NoAnswer, match=dead + rf" For the others: %distributed {verb} '?part'? -r 0-1,3\. "):
            getattr(ring4, verb)("part")
    with pytest.raises(NoAnswer, match=dead + r" For the others: %distributed diff alike -r 0-1,3\. %distributed heal"):
        ring4.diff("alike")
    assert ring4.diff("alike", ranks=[0, 1, 3]) == [] and ring4.diff("part", ranks=[0, 3])
    with pytest.raises(UsageError, match="at least 2 ranks"):
        ring4.diff("alike", ranks=0)
    with pytest.raises(UsageError, match=r"nothing to debug: .*; rank 2 died \(killed by SIGKILL.*heal"):
        ring4.to_debug()
    with pytest.raises(UsageError, match=r"nothing to debug: rank 2 died .*%distributed heal"):
        ring4.debug(2)
    with pytest.raises(UsageError, match=r"no rank has a variable nosuch\. Rank 2 is dead\. %distributed heal"):
        ring4.vars("nosuch")
    with pytest.raises(NoAnswer, match=dead + " %distributed heal"):
        ring4.push({"alike": 8})
    with pytest.raises(
        WorldBroken, match=r"cannot scatter: rank 2 died \(killed by SIGKILL\)\. %distributed heal replaces dead ranks"
    ):
        ring4.scatter({"part": [1, 2, 3, 4]})
    assert ring4.pull("part", ranks=[0, 1, 3]) == [[0], [1], [3]] and ring4.pull("alike", ranks=3) == [7]
    assert str(ring4.vars("part")).endswith("Not shown: rank 2 (dead; %distributed heal replaces dead ranks).")
    ring4.heal(source=0)
    assert ring4.gather("part") == [0, 1, 0, 3]


@pytest.mark.slow
def test_a_rank_that_dies_while_the_world_is_formed_is_healed_in_its_turn(
    ring4: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing that held the group is forgotten over the world that never came to be."""
    kept = keep(ring4)
    ring4.run("nest = [{'group': world}]\n_env = __import__('os')").check()
    ranks = ring4._live.ranks
    assert ranks is not None
    pid = ring4.snapshot.ranks[VICTIM].pid
    assert pid is not None
    monkeypatch.setattr(known_rank, "SILENT_AFTER", WITHIN)  # heal would refuse a rank that is known to be stopped
    monkeypatch.setattr(known_rank.Rank, "suspended", False)
    os.kill(pid, signal.SIGSTOP)  # so that it is there still, and never joins
    ranks.monitor.state = "broken"
    plan = ranks.plan

    def kill_when_planned() -> None:
        eventually(lambda: ranks.plan is not plan)
        os.kill(pid, signal.SIGKILL)

    killer = threading.Thread(target=kill_when_planned)
    killer.start()
    with monkeypatch.context() as context:
        context.setattr(forming, "FORM_WITHIN", 5.0)  # this one fails, however long it may take
        with pytest.raises(CannotStart, match="rank 2: killed by SIGKILL"):
            ring4.heal()
    killer.join()
    ring4.heal()
    assert sums_are_right(ring4)
    assert look(ring4, [0, 1, 3]) == without(kept)
    result = ring4.run("nest[0]['group'] is world, kept_plain['world'] is world", ranks=[0, 1, 3])
    assert [each.value for each in result.values()] == [(True, True)] * 3


@pytest.mark.slow
def test_heal_when_the_host_process_is_gone_says_so() -> None:
    cluster = Cluster(2, backend="ring", name="orphans").up()
    try:
        ranks = cluster._live.ranks
        assert ranks is not None and ranks.host._process is not None
        os.kill(ranks.host._process.pid, signal.SIGKILL)
        assert comes_true(cluster, lambda now: all(rank.state == "dead" for rank in now.ranks), WITHIN)
        with pytest.raises(CannotStart, match="host process"):
            cluster.heal()
        with pytest.raises((WorldBroken, CannotStart)):
            cluster.run("1")
    finally:
        cluster.down()
    with Cluster(2, backend="ring", name="orphans") as again:
        assert sums_are_right(again)


@pytest.mark.mpi
@pytest.mark.parametrize("source", [None, 0], ids=["empty", "copy"])
def test_on_mpi_the_others_are_carried_over_a_restart(source: int | None, restarted_mpi4: Cluster) -> None:
    kept = keep(restarted_mpi4)
    kill(restarted_mpi4)
    told = str(restarted_mpi4.heal(source=source))
    assert "ranks 0-1, 3 restarted with all variables" in told
    assert sums_are_right(restarted_mpi4)
    chosen = [0, 1, 3] if source is None else [0, 1, 2, 3]
    digests = {rank: each.digest for rank, each in look(restarted_mpi4, chosen).items()}
    meant = {rank: each.digest for rank, each in without(kept).items()}
    assert digests == (meant if source is None else {**meant, VICTIM: kept[0].digest})
    directory = restarted_mpi4.connection_file.parent
    assert not list(directory.parent.glob(f"{directory.name}-variables-*"))


@pytest.mark.slow
@pytest.mark.mpi
def test_on_mpi_variables_are_rescued_from_ranks_that_wait_for_the_dead_one_for_good(restarted_mpi4: Cluster) -> None:
    kept = keep(restarted_mpi4)
    restarted_mpi4.run("pending = mx.ones(3) * 2").check()
    cell = restarted_mpi4.begin(
        "void = mx.distributed.all_sum(mx.ones(10))\nif rank != 2:\n    mx.eval(void)\nimport time\ntime.sleep(600)"
    )
    assert comes_true(restarted_mpi4, lambda now: all(now.ranks[rank].state == "waiting" for rank in (0, 1, 3)), WITHIN)
    kill(restarted_mpi4)
    with pytest.raises(CellTimeout, match="ranks 0-1, 3 blocked in all_sum"):
        cell.finish(0.1)
    told = str(restarted_mpi4.heal())
    assert "ranks 0-1, 3 restarted with all variables, except " in told
    assert "void" in told and "pending" in told
    assert sums_are_right(restarted_mpi4)
    now = {rank: each.digest for rank, each in look(restarted_mpi4, [0, 1, 3]).items()}
    assert now == {rank: each.digest for rank, each in without(kept).items()}
