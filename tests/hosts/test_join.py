"""Ranks that others start: plain processes, mpirun, and the engines of a running ipyparallel cluster."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import signal
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
import zmq

from allranks import Cluster
from allranks.errors import CannotStart, UsageError
from allranks.hosts import accept_scheduler_ranks
from allranks.rank.process.join_from_scheduler import find_notebook
from allranks_backends.runtimes.mpi import find_mpirun
from tests.jupyter import Notebook
from tests.needs import need
from tests.waiting import comes_true

WITHIN = 90.0
SUM = "mx.distributed.all_sum(mx.ones(10))[0].item()"
Start = Callable[..., None]


class Scheduler:
    """Starts processes once there is a join file, as a user or a queue would."""

    def __init__(self, file: Path) -> None:
        self.file, self.said = file, list[str]()
        self.processes: list[subprocess.Popen[bytes]] = []

    @property
    def line(self) -> list[str]:
        return [sys.executable, "-m", "allranks.rank", "--join", str(self.file)]

    def start(self, count: int = 1, *before: str, **env: str) -> None:
        for _ in range(count):
            line = [*before, *self.line]
            self.processes.append(subprocess.Popen(line, stdin=subprocess.DEVNULL, env={**os.environ, **env}))

    def on_first_word(self, start: Callable[[], None]) -> Callable[[str], None]:
        def progress(said: str) -> None:
            self.said.append(said)
            if len(self.said) == 1:
                start()

        return progress

    def ended(self) -> list[int]:
        """Exit codes, once all have ended."""
        return [process.wait(WITHIN) for process in self.processes]


@pytest.fixture
def scheduler(tmp_path: Path) -> Iterator[Scheduler]:
    scheduler = Scheduler(tmp_path / "ranks.json")
    yield scheduler
    for process in scheduler.processes:
        process.kill()
        process.wait()


@contextlib.contextmanager
def joined(scheduler: Scheduler, count: int = 2) -> Iterator[Cluster]:
    cluster = Cluster(count, join=scheduler.file, backend="ring", timeout=WITHIN)
    try:
        yield cluster.up(scheduler.on_first_word(lambda: scheduler.start(count)))
    finally:
        cluster.down()


def sums(cluster: Cluster) -> list[float]:
    return [rank.value for rank in cluster.run(SUM, timeout=60).check().values()]


def test_processes_from_a_shell_become_the_world_and_end_with_it(scheduler: Scheduler) -> None:
    with joined(scheduler) as cluster:
        assert scheduler.said[0] == f"0 of 2 ranks have joined. Started by: {shlex.join(scheduler.line)}"
        assert stat.S_IMODE(scheduler.file.stat().st_mode) == 0o600
        assert sums(cluster) == [2.0, 2.0]
        secrets = json.loads(scheduler.file.read_text())
        pids = [process.pid for process in scheduler.processes] + [rank.pid or 0 for rank in cluster.snapshot.ranks]
        for process in [psutil.Process(pid) for pid in pids]:
            told = " ".join([*process.cmdline(), *process.environ().values()])
            assert secrets["token"] not in told and secrets["key"] not in told
    assert scheduler.ended() == [0, 0]
    assert not scheduler.file.exists()


LOGIN_NODE = """
import sys
from allranks import Cluster
with Cluster(2, join=sys.argv[1], backend="ring", timeout=90) as cluster:
    print(cluster.run("mx.distributed.all_sum(mx.ones(10))[0].item()").check()[1].value)
try:
    Cluster(2).up()
except Exception as error:
    print(type(error).__name__, error)
"""


def test_a_notebook_that_cannot_import_mlx_has_ranks_elsewhere_and_is_told_why_none_run_here(
    scheduler: Scheduler, tmp_path: Path
) -> None:
    """MLX for CUDA on a login node without NVIDIA's driver; the error is the one it gave (mlx-cuda-13 0.32.4)."""
    said = "libcuda.so.1: cannot open shared object file: No such file or directory"
    (tmp_path / "mlx").mkdir()
    (tmp_path / "mlx" / "core.py").write_text(f"raise ImportError({said!r})\n")
    notebook = subprocess.Popen(
        [sys.executable, "-c", LOGIN_NODE, str(scheduler.file)],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        stdout=subprocess.PIPE,
        text=True,
    )
    with notebook:
        scheduler.start(2)
        out, _ = notebook.communicate(timeout=2 * WITHIN)
    assert out.splitlines()[0] == "2.0"
    assert f"CannotStart MLX cannot be imported: {said}. This MLX is built for CUDA" in out


@pytest.mark.slow
def test_a_joined_rank_that_dies_is_replaced_and_a_lost_process_by_one_that_joins_later(scheduler: Scheduler) -> None:
    with joined(scheduler) as cluster:
        cluster.run("kept = rank + 5").check()
        pid = cluster.snapshot.ranks[1].pid
        os.kill(pid or 0, signal.SIGKILL)
        assert comes_true(cluster, lambda now: now.ranks[1].state == "dead", WITHIN)
        assert "killed by SIGKILL" in (cluster.snapshot.ranks[1].cause or "")
        assert "rank 1 got the variables of rank 0" in str(cluster.heal(source=0))
        assert cluster.pull("kept") == [5, 5]

        for process in scheduler.processes:  # as scancel would
            process.terminate()
        assert scheduler.ended() == [1, 1]
        assert comes_true(cluster, lambda now: all(rank.state == "dead" for rank in now.ranks), WITHIN)
        with pytest.raises(CannotStart, match=r"only its scheduler can restart it: run `.*--join .*ranks.json` there"):
            cluster.heal()
        scheduler.start(2)
        assert _heals(cluster) == [2.0, 2.0]


def _heals(cluster: Cluster) -> list[float]:
    """Heal as soon as the processes have come that it takes."""
    deadline = time.monotonic() + WITHIN
    while True:
        try:
            cluster.heal()
            return sums(cluster)
        except CannotStart:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.2)


@pytest.mark.slow
@pytest.mark.mpi
def test_mpirun_numbers_the_ranks_and_says_how_many(scheduler: Scheduler, need_mpi: None) -> None:
    mpirun = [find_mpirun() or "", "-n", "2", "--bind-to", "none", "--map-by", ":OVERSUBSCRIBE"]
    root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    cluster = Cluster(join=scheduler.file, backend="ring", timeout=WITHIN)
    try:
        cluster.up(scheduler.on_first_word(lambda: scheduler.start(1, *mpirun, **root)))
        told = cluster.run("import os; int(os.environ['OMPI_COMM_WORLD_RANK']) == rank").check()
        assert [rank.value for rank in told.values()] == [True, True]
        assert sums(cluster) == [2.0, 2.0]
        with pytest.raises(CannotStart, match="must be started by mpirun"):
            cluster.rewire("mpi")
    finally:
        cluster.down()
    assert scheduler.ended() == [0]


@pytest.mark.slow
def test_too_few_are_counted_and_sent_home(scheduler: Scheduler, monkeypatch: pytest.MonkeyPatch) -> None:
    # The time is over when one has come, however long its start takes here.
    def now() -> float:
        return 10.0 if any(said.startswith("1 of 2") for said in scheduler.said) else 0.0

    monkeypatch.setattr(accept_scheduler_ranks, "time", SimpleNamespace(monotonic=now))
    cluster = Cluster(2, join=scheduler.file, backend="ring", timeout=4)
    with pytest.raises(CannotStart, match=r"1 of 2 ranks have joined \(on .*\) within 4 s\. Started by: .* --join "):
        cluster.up(scheduler.on_first_word(scheduler.start))
    assert scheduler.ended() == [0]
    assert not scheduler.file.exists()


def test_ctrl_c_ends_the_waiting(scheduler: Scheduler) -> None:
    def interrupt() -> None:
        threading.Timer(0.5, signal.raise_signal, [signal.SIGINT]).start()

    with pytest.raises(KeyboardInterrupt):
        Cluster(2, join=scheduler.file, timeout=60).up(scheduler.on_first_word(interrupt))
    assert not scheduler.file.exists()


@pytest.mark.slow
def test_a_launcher_that_does_not_tell_how_many_needs_n(scheduler: Scheduler) -> None:
    with pytest.raises(CannotStart, match="does not report how many ranks there will be: set -n"):
        Cluster(join=scheduler.file, timeout=WITHIN).up(scheduler.on_first_word(scheduler.start))
    assert scheduler.ended() == [0]


def test_no_other_file_is_written_over(tmp_path: Path) -> None:
    thesis = tmp_path / "thesis.json"
    thesis.write_text('{"chapters": 7}')
    with pytest.raises(UsageError, match="this file exists and is not a join file"):
        Cluster(2, join=thesis).up()
    assert thesis.read_text() == '{"chapters": 7}'


def left_behind(scheduler: Scheduler, within: float) -> subprocess.Popen[str]:
    """A rank that is started with the join file of a notebook that is gone."""
    key = "rq:rM>}U?@Lns47E1%kR.o@n%FcmmsL/@{H8]yf7"
    scheduler.file.write_text(json.dumps({"urls": ["tcp://127.0.0.1:9"], "key": key, "token": "t"}))
    code = (
        f"import allranks.rank.process.join_from_scheduler as j; j.ANSWER_WITHIN, j.FILE_WITHIN = 0.1, {within}\n"
        "import allranks.rank.__main__ as m; m.main()"
    )
    line = [sys.executable, "-c", code, "--join", str(scheduler.file)]
    return subprocess.Popen(line, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)


def test_a_file_that_a_dead_notebook_left_is_called_so(scheduler: Scheduler) -> None:
    process = left_behind(scheduler, 1)
    stderr = process.communicate(timeout=WITHIN)[1]
    assert process.returncode == 1
    assert re.search(r"Waiting up to [01] s more for it, or for a new file", stderr)
    assert re.search(r"got no answer from the notebook at 127\.0\.0\.1 within \d+ s\. Is it still running", stderr)


def test_a_second_file_that_a_dead_notebook_left_is_called_so_too(scheduler: Scheduler) -> None:
    process = left_behind(scheduler, 2.5)
    assert process.stderr is not None
    assert "has no answer yet from the notebook at 127.0.0.1," in process.stderr.readline()
    began = time.monotonic()
    scheduler.file.write_text(scheduler.file.read_text().replace("127.0.0.1", "127.0.0.2"))
    stderr = process.communicate(timeout=WITHIN)[1]
    assert "has no answer yet from the notebook at 127.0.0.2," in stderr
    said = re.search(r"got no answer from the notebook at 127\.0\.0\.2 within (\d+) s\.", stderr)
    assert said is not None and int(said[1]) <= time.monotonic() - began + 0.5


def test_a_rank_that_has_a_dead_notebooks_file_follows_the_next_notebooks(scheduler: Scheduler) -> None:
    process = left_behind(scheduler, WITHIN)
    try:
        assert process.stderr is not None
        assert "has no answer yet from the notebook at 127.0.0.1" in process.stderr.readline()
        with Cluster(1, join=scheduler.file, backend="ring", timeout=WITHIN) as cluster:
            assert cluster.run("rank, size")[0].value == (0, 1)
        assert process.wait(WITHIN) == 0
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("content", ['{"hosts": []}', "[1]", "node1 slots=4"])
def test_a_rank_that_is_given_another_file_says_so(scheduler: Scheduler, content: str) -> None:
    scheduler.file.write_text(content)
    done = subprocess.run(scheduler.line, capture_output=True, text=True, timeout=WITHIN)
    assert done.returncode == 1
    assert done.stderr == f"allranks: {scheduler.file} is not a join file. %distributed up --join writes one.\n"


@contextlib.contextmanager
def ipcluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], None]]:
    """Starts a cluster of two engines with the profile ``lab``, by ipyparallel's own command."""
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    command = Path(sys.executable).parent / "ipcluster"
    need(command.exists(), "there is no ipcluster beside this Python")
    processes = []

    def start() -> None:
        line = [str(command), "start", "-n", "2", "--profile", "lab"]
        processes.append(subprocess.Popen(line, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))

    try:
        yield start
    finally:
        for process in processes:
            process.send_signal(signal.SIGINT)
            process.wait(WITHIN)


@pytest.fixture
def ipyparallel_profile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A cluster of two engines that is up."""
    import ipyparallel

    with ipcluster(tmp_path, monkeypatch) as start:
        start()
        deadline = time.monotonic() + 2 * WITHIN
        while True:
            with (
                contextlib.suppress(OSError, ipyparallel.TimeoutError),
                ipyparallel.Client(profile="lab", timeout=30) as client,
            ):
                if len(client.ids) == 2:
                    break
            assert time.monotonic() < deadline
            time.sleep(0.2)
        yield "lab"


@pytest.mark.slow
def test_ranks_beside_the_engines_of_a_profile_leave_these_alone(ipyparallel_profile: str) -> None:
    import ipyparallel

    with ipyparallel.Client(profile=ipyparallel_profile) as client:
        client[:].push({"mine": 7}, block=True)
        engines = client[:].apply_sync(os.getpid)
        with Cluster(ipp_profile=ipyparallel_profile, backend="ring") as cluster:
            assert sums(cluster) == [2.0, 2.0]
            assert not set(engines) & {rank.pid for rank in cluster.snapshot.ranks}
        assert client[:].apply_sync(os.getpid) == engines
        assert client[:].pull("mine", block=True) == [7, 7]
        with pytest.raises(CannotStart, match="has 2 engines, not 3"):
            Cluster(3, ipp_profile=ipyparallel_profile).up()


@pytest.mark.slow
@pytest.mark.parametrize("count", [2, None])
def test_engines_that_are_still_starting_are_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int | None
) -> None:
    said: list[str] = []
    with ipcluster(tmp_path, monkeypatch) as start:

        def progress(line: str) -> None:
            said.append(line)
            if len(said) == 1:
                start()

        cluster = Cluster(count, ipp_profile="lab", backend="ring", timeout=WITHIN)
        try:
            assert sums(cluster.up(progress)) == [2.0, 2.0]
        finally:
            cluster.down()
    assert said[0].startswith("no running ipyparallel cluster with profile 'lab' yet. Start one: ")


def test_a_profile_that_does_not_come_is_waited_for_as_long_as_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path))
    with pytest.raises(CannotStart, match=r"^no running ipyparallel cluster with profile 'nobody' after 1 s\."):
        Cluster(ipp_profile="nobody", timeout=1).up()


def test_a_profile_without_a_cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path))
    with pytest.raises(CannotStart, match="Start one: ipcluster start -n 4 --profile nobody"):
        Cluster(ipp_profile="nobody").up()


@pytest.mark.slow
def test_from_a_notebook_with_processes_that_wait_for_the_file(
    scheduler: Scheduler, new_notebook: Callable[..., Notebook]
) -> None:
    notebook = new_notebook()
    notebook.ok("%load_ext allranks")
    scheduler.start(2)
    up = notebook.ok(f"%distributed up --join {scheduler.file} -n 2 --backend ring --timeout 90")
    assert "2 ranks · ring · ready" in up.all
    summed = notebook.ok("%%distributed\nprint(mx.distributed.all_sum(mx.ones(2)).tolist())")
    assert summed.by_rank == {0: "[2.0, 2.0]\n", 1: "[2.0, 2.0]\n"}
    notebook.ok("%distributed down")
    assert scheduler.ended() == [0, 0]


def test_the_notebook_is_found_at_whichever_of_its_addresses_answers() -> None:
    """The other addresses, before and after it in the file, are of networks that this host is not on."""
    context = zmq.Context()
    public, secret = zmq.curve_keypair()
    with context.socket(zmq.ROUTER) as notebook, context.socket(zmq.ROUTER) as stranger:
        for each, key in ((notebook, secret), (stranger, zmq.curve_keypair()[1])):
            each.curve_server, each.curve_secretkey = True, key
        port = notebook.bind_to_random_port("tcp://127.0.0.1")
        other = stranger.bind_to_random_port("tcp://127.0.0.1")
        silent = "tcp://127.0.0.1:1"
        good = f"tcp://127.0.0.1:{port}"
        assert find_notebook([silent, f"tcp://127.0.0.1:{other}", good, silent, silent], public) == good
    context.term()
