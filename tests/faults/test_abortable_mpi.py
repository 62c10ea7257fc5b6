"""MPI with fault tolerance: blocked collectives are aborted, dead ranks replaced, in the processes that are left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING

import psutil
import pytest

from allranks.errors import CellInterrupted, CellTimeout
from allranks.head.world.ranks import Ranks
from allranks_backends.plan import Host, Placement
from allranks_backends.runtimes.mpi import MPI, find_mpirun, mpi_library
from tests.faults.absent import blocked
from tests.faults.kept import TRAINING, keep, look, sums_are_right
from tests.faults.stop import stop_pressed, waiting
from tests.waiting import comes_true, eventually, idle

if TYPE_CHECKING:
    from allranks import Cluster

pytestmark = [
    pytest.mark.slow,
    pytest.mark.mpi,
    pytest.mark.skipif(sys.platform != "linux", reason="MLX's memory is read through /proc"),
]

WITHIN = 120.0
UNPICKLABLE = "import threading\nkept_lock = threading.Lock()\nkept_steps = (n for n in range(9)); next(kept_steps)"


def pids(cluster: Cluster) -> list[int | None]:
    return [rank.pid for rank in cluster.snapshot.ranks]


def test_the_world_says_that_it_can_be_aborted(mpi2: Cluster) -> None:
    assert not [note for note in mpi2.snapshot.notes if "abort" in note]


@pytest.mark.parametrize("count", [4, 100_000])
def test_a_rank_raises_and_the_others_go_on_in_their_processes(count: int, mpi4: Cluster) -> None:
    mpi4.run(UNPICKLABLE).check()
    kept, before, generation = keep(mpi4), pids(mpi4), mpi4.snapshot.generation
    result = blocked(mpi4, f"y = mx.distributed.all_sum(mx.ones({count}))\nz = y * 2; mx.eval(z)", rank=2)
    assert list(result.errors) == [2]
    assert all(result[rank].unblocked and not result[rank].ok for rank in (0, 1, 3))
    assert idle(mpi4) and (mpi4.state, mpi4.snapshot.generation) == ("whole", generation + 1)
    assert pids(mpi4) == before and look(mpi4) == kept and sums_are_right(mpi4)
    assert [each.value for each in mpi4.run("next(kept_steps)").check().values()] == [1] * 4
    values = mpi4.run("bool(mx.isnan(z).all()) if rank != 2 else None").check()
    assert [values[rank].value for rank in (0, 1, 3)] == [True] * 3


def test_stop_and_timeout_abort_a_collective_that_a_rank_skips(mpi4: Cluster) -> None:
    kept, before = keep(mpi4), pids(mpi4)
    skips = "if rank: mx.eval(mx.distributed.all_sum(mx.ones(9)))"
    with stop_pressed(mpi4, waiting(1, 2, 3)), pytest.raises(CellInterrupted):
        mpi4.run(skips)
    assert idle(mpi4) and sums_are_right(mpi4)
    with pytest.raises(CellTimeout):
        mpi4.run(skips, timeout=3)
    assert idle(mpi4) and sums_are_right(mpi4)
    assert look(mpi4) == kept and pids(mpi4) == before


def test_ranks_of_one_machine_need_none_of_its_networks(mpi4: Cluster) -> None:
    """A network that goes, as Wi-Fi does, would take along what joins a healed rank with the others."""
    victim = pids(mpi4)[1]
    assert victim is not None
    os.kill(victim, signal.SIGKILL)
    assert comes_true(mpi4, lambda now: now.ranks[1].state == "dead", WITHIN)
    mpi4.heal(source=0)
    assert sums_are_right(mpi4)
    processes = [psutil.Process(pid) for pid in pids(mpi4)]
    open_ = [each for process in processes for each in process.net_connections() if each.raddr]
    assert open_ and {each.laddr.ip for each in open_} == {"127.0.0.1"}


@pytest.mark.parametrize(
    "call",
    [
        "mx.distributed.recv((7,), mx.float32, 1)",
        "mx.distributed.send(mx.ones(1_000_000), 1)",
        "mx.distributed.all_sum(mx.ones(3), group=half)",
        "sum(mx.distributed.all_sum(mx.ones(3)) for _ in range(20))",
    ],
    ids=["recv", "send", "group", "many"],
)
def test_whatever_blocks_is_aborted(call: str, mpi4: Cluster) -> None:
    before = pids(mpi4)
    mpi4.run("half = world.split(0)").check()
    result = blocked(mpi4, f"if rank == 0: mx.eval({call})", only=[0])
    assert list(result.errors) == [1] and result[0].unblocked
    assert idle(mpi4) and sums_are_right(mpi4) and pids(mpi4) == before
    mpi4.run("del half").check()


@pytest.mark.parametrize(
    "code",
    [
        "try: mx.eval(total)\nexcept BaseException: pass\ntotal = None",
        "total[0].item()",
        "import signal\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\ntotal[0].item()",
    ],
    ids=["swallowed", "item", "ignored"],
)
def test_a_rank_whose_collective_was_aborted_is_never_ok(code: str, mpi2: Cluster) -> None:
    result = blocked(mpi2, code, first="total = mx.distributed.all_sum(mx.ones(9))")
    assert list(result.errors) == [1] and not result[0].ok
    assert idle(mpi2) and sums_are_right(mpi2)


def test_a_value_that_is_computed_when_the_cell_is_over_is_none_if_that_was_aborted(mpi2: Cluster) -> None:
    """Packing evaluates it, without ``mx.eval``."""
    result = blocked(mpi2, "{'deep': [mx.distributed.all_sum(mx.ones(3, mx.int32))]}")
    assert list(result.errors) == [1] and not result[0].ok and result[0].value is None
    assert idle(mpi2) and sums_are_right(mpi2)


@pytest.mark.parametrize("victim", [0, 2])
def test_a_death_in_a_training_step_costs_the_others_nothing(victim: int, mpi4: Cluster) -> None:
    mpi4.run(UNPICKLABLE + TRAINING).check()
    before = pids(mpi4)
    cell = mpi4.begin(
        f"import os\nfor n in range(1000):\n    if rank == {victim} and n == 5: os.kill(os.getpid(), 9)\n    step(n)"
    )
    result = cell.finish(WITHIN)
    assert result[victim].dead and all(not each.ok for each in result.values())
    said: list[str] = []
    change = mpi4.heal(progress=said.append)
    others = [rank for rank in range(4) if rank != victim]
    assert [change.ranks[rank].how for rank in others] == ["kept"] * 3, said
    assert [pids(mpi4)[rank] for rank in others] == [before[rank] for rank in others]
    assert sums_are_right(mpi4)
    left = mpi4.run("next(kept_steps), kept_lock.locked(), opt.state['step'].item()", ranks=others).check()
    assert {each.value[:2] for each in left.values()} == {(1, False)}
    assert all(each.value[2] >= 1 for each in left.values()), "a step that was under way is invalid, and marked"


def test_two_deaths_at_once(mpi4: Cluster) -> None:
    before = pids(mpi4)
    mpi4.run("kept = rank").check()
    kill(mpi4, 1, 2)
    mpi4.heal(source=3)
    assert [each.value for each in mpi4.run("kept").check().values()] == [0, 3, 3, 3]
    assert sums_are_right(mpi4) and [pids(mpi4)[rank] for rank in (0, 3)] == [before[0], before[3]]


def test_ranks_that_were_started_together_do_not_die_together(mpi4: Cluster) -> None:
    kill(mpi4, 1, 2)
    mpi4.heal()
    before = pids(mpi4)
    mpi4.run("kept = rank").check()
    kill(mpi4, 1)
    assert mpi4.heal().ranks[2].how == "kept"
    kept = mpi4.run("globals().get('kept')").check()
    assert [each.value for each in kept.values()] == [0, None, 2, 3] and pids(mpi4)[2] == before[2]
    assert sums_are_right(mpi4)


@pytest.mark.parametrize("step", ["offered", "starting"])
def test_a_rank_that_dies_while_another_is_replaced_costs_the_others_nothing(
    step: str, mpi4: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = pids(mpi4)
    mpi4.run("kept = rank").check()
    kill(mpi4, 1)
    launch = Ranks.launch

    def launched(ranks: Ranks, numbers: Sequence[int]) -> None:
        monkeypatch.setattr(Ranks, "launch", launch)
        launch(ranks, numbers)
        replaced = ranks.monitor.ranks[1]
        if step == "offered":
            os.kill(before[2] or 0, signal.SIGKILL)
        else:  # MPI has started the process, and the others wait for it
            Thread(target=kill_when, args=[lambda: replaced.connected, lambda: before[2]]).start()

    monkeypatch.setattr(Ranks, "launch", launched)
    said: list[str] = []
    mpi4.heal(progress=said.append)
    if mpi4.state != "whole":
        mpi4.heal(progress=said.append)  # the second death came after the new world was formed
    kept = mpi4.run("globals().get('kept')").check()
    assert [each.value for each in kept.values()] == [0, None, None, 3], said
    assert [pids(mpi4)[rank] for rank in (0, 3)] == [before[0], before[3]], said
    assert sums_are_right(mpi4)


BUSY = """import threading, time
from contextlib import suppress
from pathlib import Path
def running():
    found = set()
    for each in Path("/proc/self/task").iterdir():
        with suppress(OSError):  # it has ended
            if (each / "stat").read_text().rpartition(")")[2].split()[0] == "R": found.add(int(each.name))
    return found
seen = [running() for _ in range(20) if not time.sleep(0.05)]
busy = [each for each in set.union(*seen) - {threading.get_native_id()} if sum(each in now for now in seen) > 15]
[Path(f"/proc/self/task/{each}/comm").read_text().strip() for each in busy]"""
"""The threads that run, or wait for a core, nearly all of a second."""
DIES = """import os
from threading import Timer
from allranks.rank.world.mpi.abortable_mpi import AbortableMpi
die = lambda: os.kill(os.getpid(), 9)
shrunk, spawned = AbortableMpi._shrunk, AbortableMpi._spawned
"""
DIES_AT = {
    "before": "AbortableMpi._spawned = lambda *_: die()",
    "shrinking": "AbortableMpi._shrunk = lambda self: (Timer(0.002, die).start(), shrunk(self))[1]",
    "spawning": "AbortableMpi._spawned = lambda *args: (Timer(0.2, die).start(), spawned(*args))[1]",
    "merged": "AbortableMpi._meet = lambda *_: die()",
}


@pytest.mark.parametrize("victim", [0, 2])
@pytest.mark.parametrize("step", DIES_AT)
def test_an_attempt_that_was_given_up_leaves_no_thread_busy(step: str, victim: int, mpi4: Cluster) -> None:
    mpi4.run(DIES + DIES_AT[step], ranks=victim).check()
    kill(mpi4, 1)
    said: list[str] = []
    mpi4.heal(progress=said.append)
    assert said, "the attempt was given up"
    assert sums_are_right(mpi4)
    assert [each.value for each in mpi4.run(BUSY).check().values()] == [[]] * 4, said


@pytest.mark.parametrize("victim", [0, 2])
def test_a_death_while_ranks_merge_with_new_ones_costs_the_others_no_variable(victim: int, mpi4: Cluster) -> None:
    """It may block MPI in the others for good: then they are restarted."""
    mpi4.run("kept = rank").check()
    mpi4.run(f"{DIES}AbortableMpi._merged = lambda *_, **__: die()", ranks=victim).check()
    kill(mpi4, 1)
    said: list[str] = []
    mpi4.heal(progress=said.append)
    assert "Trying once more" in said[0]
    kept = [None if rank in (1, victim) else rank for rank in range(4)]
    assert [each.value for each in mpi4.run("globals().get('kept')").check().values()] == kept, said
    assert sums_are_right(mpi4)


def test_a_new_rank_that_dies_before_it_has_joined_is_started_again(mpi4: Cluster) -> None:
    before = pids(mpi4)
    kill(mpi4, 1)
    new: list[int | None] = []

    def started() -> bool:
        new[:] = [pids(mpi4)[1]]
        return new[0] not in (None, before[1])

    killing = Thread(target=lambda: kill_when(started, lambda: new[0]))
    killing.start()
    said: list[str] = []
    mpi4.heal(progress=said.append)
    killing.join()
    assert any("Trying once more" in each for each in said)
    assert [pids(mpi4)[rank] for rank in (0, 2, 3)] == [before[rank] for rank in (0, 2, 3)], said
    assert pids(mpi4)[1] != new[0] and sums_are_right(mpi4)


def kill_when(condition: Callable[[], bool], victim: Callable[[], int | None]) -> None:
    assert eventually(condition)
    pid = victim()
    assert pid is not None
    os.kill(pid, signal.SIGKILL)


def kill(cluster: Cluster, *victims: int) -> None:
    for victim in victims:
        os.kill(pids(cluster)[victim] or 0, signal.SIGKILL)
    assert comes_true(cluster, lambda now: all(now.ranks[victim].state == "dead" for victim in victims), WITHIN)


def test_grows_and_shrinks_in_place(mpi2: Cluster) -> None:
    before = pids(mpi2)
    mpi2.run(UNPICKLABLE).check()
    mpi2.resize(4, source=None)
    assert sums_are_right(mpi2) and pids(mpi2)[:2] == before
    mpi2.resize(2)
    assert sums_are_right(mpi2) and pids(mpi2) == before
    assert [each.value for each in mpi2.run("next(kept_steps)").check().values()] == [1, 1]


def test_mpi4py_and_the_communicator_of_the_world(mpi2: Cluster) -> None:
    total = "import allranks\nallranks.communicator().allreduce(rank + 1)"
    assert [each.value for each in mpi2.run(total).check().values()] == [3, 3]
    mpi2.run("if rank: 1 / 0\nmx.eval(mx.distributed.all_sum(mx.ones(9)))", timeout=WITHIN)
    assert idle(mpi2)
    assert [each.value for each in mpi2.run(total).check().values()] == [3, 3]


def test_outside_of_mpi_there_is_no_communicator(ring2: Cluster) -> None:
    result = ring2.run("import allranks\nallranks.communicator()")
    assert "runs on ring" in str(result.errors[0])


def test_aborts_leave_no_descriptor_thread_or_memory_behind(mpi2: Cluster) -> None:
    count = "import os, threading, psutil\nme = psutil.Process()\nme.num_fds(), me.num_threads(), me.memory_info().rss"
    code = "for _ in range(3): mx.eval(mx.distributed.all_sum(mx.ones(2_000)))"

    def rounds(several: int) -> list[tuple[int, int, int]]:
        for number in range(several):
            assert blocked(mpi2, code, rank=number % 2)[1 - number % 2].unblocked
            assert idle(mpi2)
        assert sums_are_right(mpi2)
        return [each.value for each in mpi2.run(count).check().values()]

    before, after = rounds(3), rounds(6)
    for (files, threads, memory), (files_after, threads_after, memory_after) in zip(before, after, strict=True):
        assert files_after <= files + 2 and threads_after <= threads + 3, "six rounds more leave less than one a round"
        assert memory_after <= memory + (16 << 20)


@pytest.mark.parametrize("prevent", ["compiler", "tolerance"])
def test_where_it_is_not_possible_that_is_said_and_ranks_release_each_other(
    prevent: str, need_mpi: None, tmp_path: Path
) -> None:
    import allranks

    env = {"PATH": str(tmp_path), "XDG_STATE_HOME": str(tmp_path)} if prevent == "compiler" else {}
    mpi_args = ["--mca mpi_ft_enable 0"] if prevent == "tolerance" else []
    with allranks.Cluster(2, backend="mpi", name=f"mpi-{prevent}", env=env, mpi_args=mpi_args) as cluster:
        (note,) = cluster.snapshot.notes
        why = {"compiler": "no C compiler", "tolerance": "without fault tolerance"}[prevent]
        assert "cannot be aborted in place" in note and why in note
        result = blocked(cluster, "mx.eval(mx.distributed.all_sum(mx.ones(9)))")
        assert list(result.errors) == [1] and result[0].unblocked
        assert idle(cluster) and sums_are_right(cluster)
        dies, first = "os.kill(os.getpid(), 9)", "from mpi4py import MPI"
        result = blocked(cluster, "mx.distributed.all_sum(mx.ones(9)).tolist()", dies, first=first)
        assert result[1].dead and not result[0].ok, "a collective with a dead rank gives no result"
        cluster.heal()
        assert sums_are_right(cluster)


PLACES = """
import tempfile
from pathlib import Path
import mlx.core as mx
from allranks.rank.world import shared_libraries
from allranks.rank.world.mpi.mpi_functions import MpiFunctions
assert mx.distributed.is_available("mpi")
memory = shared_libraries.writable
shared_libraries.writable = lambda library: {}
try:
    MpiFunctions({!r}, Path(tempfile.mkdtemp()))
except shared_libraries.NotInPlace as error:
    print(error)
"""


@pytest.mark.parametrize(
    ("found", "places"), [("[]", 0), ("[*memory(library), *memory(library)]", 2)], ids=["nowhere", "twice"]
)
def test_nothing_is_written_where_a_pointer_is_not_there_exactly_once(found: str, places: int, need_mpi: None) -> None:
    library = mpi_library(find_mpirun() or "")
    code = PLACES.replace("{}", found).replace("{!r}", repr(library))
    env = {**os.environ, "MLX_MPI_LIBNAME": library}
    said = subprocess.run([sys.executable, "-c", code], env=env, check=True, capture_output=True, text=True).stdout
    assert said.strip() == f"this version of MLX keeps MPI_Init in {places} places"


REVOCATIONS = """
import ctypes, os, random, sys, threading, time
from pathlib import Path
import mlx.core as mx
from allranks.rank.world.mpi.abortable_mpi import AbortableMpi
place = AbortableMpi(mx, Path(sys.argv[1], os.environ['OMPI_COMM_WORLD_RANK']))
from mpi4py import MPI
functions = place._functions
sent, got = (ctypes.c_float * 2)(1, 1), (ctypes.c_float * 2)()
float32, add = (ctypes.c_void_p(MPI._handleof(each)) for each in (MPI.FLOAT, MPI.SUM))
def calls(world):
    while not functions.take_failed():
        functions._ours.allranks_allreduce(sent, got, 2, float32, add, ctypes.c_void_p(MPI._handleof(world)))
for world in [MPI.COMM_WORLD.Dup() for _ in range(1500)]:
    place._use(world)
    thread = threading.Thread(target=calls, args=[world], daemon=True)
    thread.start()
    time.sleep(random.random() * 0.004)
    place.break_up(None)
    ends = time.monotonic() + 30
    while thread.is_alive() and time.monotonic() < ends:
        place.help()
        time.sleep(0.0005)
    if thread.is_alive():
        break
    assert not functions.inside
else:
    print("all returned\\n", end="", flush=True)
    MPI.COMM_WORLD.Barrier()
MPI.COMM_WORLD.Abort()
"""


def test_a_call_that_was_about_to_wait_when_its_world_was_revoked_returns(tmp_path: Path, need_mpi: None) -> None:
    mpirun, as_root = find_mpirun() or "", os.geteuid() == 0
    for rank in range(2):
        (tmp_path / str(rank)).mkdir()
    plan = MPI().plan([Placement(rank, Host("localhost"), rank) for rank in range(2)])
    python_args = [sys.executable, "-c", REVOCATIONS, str(tmp_path)]
    command = MPI().command(plan, mpirun=mpirun, python_args=python_args, as_root=as_root, cores=2)
    env = {**os.environ, **MPI().launcher_env(as_root=as_root)}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=240, check=False)
    assert done.stdout.splitlines() == ["all returned"] * 2, done.stdout + done.stderr
