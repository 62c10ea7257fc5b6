"""Stop, pressed late in a change of the world: the words are true, a cell is refused, `heal` finishes the change."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import suppress
from glob import glob
from pathlib import Path
from typing import Any

import psutil
import pytest

from allranks import Cluster
from allranks.errors import AllranksError, CannotStart, CellInterrupted, NoAnswer, WorldBroken
from allranks.head.world import checkpoints, forming, healing, ranks
from allranks.head.world.ranks import Ranks
from allranks.notebook import stop_button
from tests.waiting import comes_true, eventually

pytestmark = pytest.mark.slow

Step = tuple[Any, str, bool]
"""Where the step is, its function's name, and whether stop is pressed after it."""
STARTED: Step = (Ranks, "launch", True)
FORMING: Step = (forming, "form", False)
FORMED: Step = (forming, "form", True)
COPYING: Step = (checkpoints, "copy", False)
STOPPED = r"was stopped before its end. The world is incomplete: the last change of the world did not finish: "
NO_VARIABLES = STOPPED + r"rank 3 has no variables yet. .* With --from R"


def moment(step: Step) -> str:
    return f"{'after' if step[2] else 'before'} {step[1]}"


def stop_in(step: Step, monkeypatch: pytest.MonkeyPatch) -> None:
    """Press stop once, before or after this step of a change."""
    owner, name, after = step
    function = getattr(owner, name)

    def pressed(*args: Any, **kwargs: Any) -> None:
        monkeypatch.setattr(owner, name, function)
        if after:
            function(*args, **kwargs)
        os.kill(os.getpid(), signal.SIGINT)
        threading.Event().wait(60)

    monkeypatch.setattr(stop_button, "PATIENCE", 0.0)
    monkeypatch.setattr(owner, name, pressed)


def hold(cluster: Cluster) -> None:
    cluster.run("held = rank * 10").check()


def saved_files(cluster: Cluster) -> list[str]:
    assert cluster._live.ranks is not None
    # Unlike Path.glob, glob passes over a folder that is removed meanwhile.
    return glob(f"{cluster._live.ranks.host.directory}-variables-*/*")


def finish(cluster: Cluster, held: list[int], source: int | None = None) -> None:
    """The world is incomplete, and says so everywhere; then it is whole."""
    assert (cluster.state, cluster.snapshot.state) == ("incomplete", "incomplete")
    assert any("The world is incomplete: the last change" in note for note in cluster.snapshot.notes)
    with pytest.raises(WorldBroken, match="did not finish"):
        cluster.run("held")
    for rank in range(cluster.size):
        with suppress(AllranksError):
            cluster.pull("held", ranks=[rank])
    cluster.heal(source=source)
    assert cluster.snapshot.state == "whole" and cluster.pull("held") == held
    assert cluster.run("mx.distributed.all_sum(mx.array(1)).item()")[0].value == len(held)
    assert not cluster.heal().changed
    assert not saved_files(cluster)


@pytest.mark.parametrize("step", [STARTED, FORMING, FORMED, COPYING], ids=moment)
def test_in_heal(step: Step, ring4: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    hold(ring4)
    os.kill(ring4.snapshot.ranks[3].pid or 0, signal.SIGKILL)
    assert comes_true(ring4, lambda now: now.state == "broken", 60)
    stop_in(step, monkeypatch)
    with pytest.raises(CellInterrupted, match=f"heal {NO_VARIABLES}"):
        ring4.heal(source=0)
    finish(ring4, [0, 10, 20, 0], 0)


@pytest.mark.parametrize("step", [STARTED, FORMING, FORMED, COPYING], ids=moment)
def test_in_resize(step: Step, ring4: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    ring4.resize(3)
    hold(ring4)
    stop_in(step, monkeypatch)
    with pytest.raises(CellInterrupted, match=f"resize {NO_VARIABLES}"):
        ring4.resize(4, source=1)
    finish(ring4, [0, 10, 20, 10], 1)


def test_in_a_resize_that_ends_ranks(ring4: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    hold(ring4)
    stop_in(FORMING, monkeypatch)
    try:
        with pytest.raises(CellInterrupted, match=r"the next cell re-forms it\. All variables are kept"):
            ring4.resize(2)
        assert [each.value for each in ring4.run("held").check().values()] == [0, 10]
    finally:
        ring4.resize(4)


@pytest.mark.parametrize(
    "step",
    [(healing, "_end_all", True), STARTED, FORMING, FORMED],
    ids=moment,
)
def test_in_rewire(step: Step, ring4: Cluster, need_mpi: None, monkeypatch: pytest.MonkeyPatch) -> None:
    hold(ring4)
    stop_in(step, monkeypatch)
    try:
        with pytest.raises(
            CellInterrupted, match=f"rewire {STOPPED}the variables of ranks 0-3 are saved and not loaded"
        ):
            ring4.rewire("mpi")
        finish(ring4, [0, 10, 20, 30], None)
    finally:
        ring4.rewire("ring")


LATE = """import os, time
while os.environ.get("OMPI_COMM_WORLD_RANK") == "3" and not os.path.exists({go!r}):
    time.sleep(0.05)
"""


@pytest.fixture
def stopped_rewire(need_mpi: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Cluster, Path]]:
    """Ranks whose rewire to MPI was stopped; rank 3 connects once the file is there, the others have done so."""
    go = tmp_path / "go"
    (tmp_path / "sitecustomize.py").write_text(LATE.format(go=str(go)))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with Cluster(4) as cluster:
        hold(cluster)
        stop_in(STARTED, monkeypatch)
        with pytest.raises(CellInterrupted, match="rewire"):
            cluster.rewire("mpi")
        assert comes_true(cluster, lambda now: all(rank.pid for rank in now.ranks[:3]), 60)
        yield cluster, go


def test_heal_waits_for_a_rank_that_comes_late(stopped_rewire: tuple[Cluster, Path]) -> None:
    cluster, go = stopped_rewire
    threading.Timer(1.0, go.touch).start()
    finish(cluster, [0, 10, 20, 30])


def test_heal_starts_all_again_where_one_was_lost_before_the_first_world(
    stopped_rewire: tuple[Cluster, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster, go = stopped_rewire
    mpirun = psutil.Process(cluster.snapshot.ranks[0].pid or 0).parent()
    assert mpirun is not None
    late = [each for each in mpirun.children() if each.environ().get("OMPI_COMM_WORLD_RANK") == "3"]
    late[0].kill()
    monkeypatch.setattr(ranks, "COMES_WITHIN", 0.5)
    go.touch()
    finish(cluster, [0, 10, 20, 30])


def test_while_variables_are_saved(ring4: Cluster, need_mpi: None, monkeypatch: pytest.MonkeyPatch) -> None:
    hold(ring4)
    stop_in((checkpoints, "_answered", False), monkeypatch)
    with pytest.raises(CellInterrupted, match=r"rewire was stopped before its end. Nothing was changed."):
        ring4.rewire("mpi")
    assert ring4.pull("held") == [0, 10, 20, 30]
    assert (ring4.state, ring4.backend) == ("whole", "ring")
    assert eventually(lambda: not saved_files(ring4))


def test_a_new_rank_that_mpi_has_not_let_in_blocks_no_verb(need_mpi: None) -> None:
    with Cluster(2, backend="mpi") as cluster:
        hold(cluster)
        pid = cluster.snapshot.ranks[1].pid or 0
        os.kill(pid, signal.SIGSTOP)
        try:
            with pytest.raises(CannotStart, match=r"could not save variables; nothing was changed\. rank 1"):
                cluster.resize(3)
        finally:
            os.kill(pid, signal.SIGCONT)
        assert comes_true(cluster, lambda now: now.ranks[1].state == "idle", 60)
        with pytest.raises(NoAnswer, match="rank 2"):
            cluster.pull("held")
        finish(cluster, [0, 10, 0], 0)


def test_after_the_last_wait_the_change_has_come_to_its_end(ring4: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    load = checkpoints.load

    def pressed(*args: Any) -> Any:
        os.kill(os.getpid(), signal.SIGINT)
        return load(*args)

    monkeypatch.setattr(checkpoints, "load", pressed)
    with pytest.raises(CellInterrupted, match=r"resize had to finish first. The world now has 3 ranks: ranks 0-2 kept"):
        ring4.resize(3)
    monkeypatch.undo()
    ring4.resize(4)
