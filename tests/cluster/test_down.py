"""Nothing is left: after ``down``, after the kernel is shut down, and after it is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from allranks import Cluster
from allranks.errors import NoCluster
from allranks.host_process.child_processes import END_AFTER
from tests.faults.kept import sums_are_right
from tests.faults.test_silence import Shown
from tests.jupyter import Notebook
from tests.shared_memory import shared_memory
from tests.waiting import comes_true

WITHIN = 60.0
MARK = "ALLRANKS_TEST_DOWN"

BACKENDS = ["ring", pytest.param("mpi", marks=pytest.mark.mpi)]


class Traces:
    """What one kernel's clusters leave on the machine: processes, listening ports and files."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.mark = uuid.uuid4().hex
        self.env = {MARK: self.mark, "TMPDIR": str(folder), "IPYTHONDIR": str(folder.parent / "ipython")}
        self.kernel = 0
        self._listened: set[int] = set()
        self._before: set[int] = set()

    def started(self, kernel: int) -> None:
        """The kernel is up, and no cluster yet."""
        self.kernel = kernel
        self._before = self._listening()

    def processes(self) -> list[psutil.Process]:
        """Those that came from the kernel, however far down, without the kernel."""
        found = []
        for process in psutil.process_iter():
            try:
                if process.pid != self.kernel and process.environ().get(MARK) == self.mark:
                    found.append(process)
            except psutil.Error:
                continue
        return found

    def remember(self, ranks: int) -> None:
        """The cluster is up: learn its ports, and that these traces can see it at all."""
        assert len(self.processes()) >= ranks + 2, "the ranks, their host process and a controller should be seen"
        self._listened = self._listening() - self._before
        assert self._listened, "the cluster's listening ports should be seen"
        assert self.files(), "the cluster's folder should be seen"
        for path in self.folder.glob("allranks-*"):
            assert path.stat().st_mode & 0o077 == 0, f"{path} is open to others"
        for path in (path for path in self.folder.rglob("*.json") if '"key"' in path.read_text()):
            assert path.stat().st_mode & 0o077 == 0, f"{path} holds keys and is open to others"

    def files(self) -> list[str]:
        # Unlike rglob, os.walk passes over a folder that is removed meanwhile.
        walked = [(Path(folder), names) for folder, _, names in os.walk(self.folder)]
        return [str((folder / name).relative_to(self.folder)) for folder, names in walked for name in ("", *names)][1:]

    def left(self) -> list[str]:
        """What is still there, in words."""
        still = [f"process {process.pid}: {_words(process)}" for process in self.processes()]
        still += [f"port {port}" for port in sorted(self._listening_anywhere() & self._listened)]
        still += [f"file {name}" for name in self.files()]
        security = self.folder.parent / "ipython"
        still += [f"file {path}" for path in security.rglob("ipcontroller*")]
        return still

    def vanish(self) -> None:
        """Wait until nothing is left."""
        deadline = time.monotonic() + WITHIN
        while (left := self.left()) and time.monotonic() < deadline:
            # There is no event for "a port was closed": processes that end are waited for, then all is looked at anew.
            psutil.wait_procs(self.processes(), timeout=0.2)
            time.sleep(0.05)
        assert not left, f"left {WITHIN:g} s after the end:\n" + "\n".join(left)

    def _listening(self) -> set[int]:
        """Ports on which the kernel and what came from it listen."""
        ports = set()
        for process in [psutil.Process(self.kernel), *self.processes()]:
            try:
                ports |= {c.laddr.port for c in process.net_connections("tcp") if c.status == psutil.CONN_LISTEN}
            except psutil.Error:
                continue
        return ports

    def _listening_anywhere(self) -> set[int]:
        """Ports on which the kernel, what came from it, or nobody that can be named listens."""
        ours = {self.kernel, None, *(process.pid for process in self.processes())}
        listening = [c for c in psutil.net_connections("tcp") if c.laddr and c.status == psutil.CONN_LISTEN]
        return {c.laddr.port for c in listening if c.laddr and c.pid in ours}


def _words(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())[:200]
    except psutil.Error:
        return "?"


@pytest.fixture
def traces(tmp_path: Path) -> Traces:
    folder = tmp_path / "tmp"
    folder.mkdir()
    return Traces(folder)


@pytest.fixture
def marked(traces: Traces, new_notebook: Callable[..., Notebook]) -> Notebook:
    """A notebook whose every descendant can be found again."""
    notebook = new_notebook(**traces.env)
    notebook.ok("%load_ext allranks")
    traces.started(int(notebook.ok("import os; print(os.getpid())").stdout))
    return notebook


def up(notebook: Notebook, traces: Traces, backend: str) -> None:
    notebook.ok(f"%distributed up -n 2 --backend {backend}")
    notebook.ok("%%distributed\nmx.distributed.all_sum(mx.ones(10))")
    traces.remember(2)


@pytest.mark.parametrize("backend", BACKENDS)
def test_down_leaves_nothing(backend: str, request: pytest.FixtureRequest, traces: Traces, marked: Notebook) -> None:
    if backend == "mpi":
        request.getfixturevalue("need_mpi")
    up(marked, traces, backend)
    assert "2 ranks ended" in marked.ok("%distributed down").stdout
    traces.vanish()
    marked.ok("1 + 1")


@pytest.mark.slow
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_kernel_that_is_shut_down_leaves_nothing(
    backend: str, request: pytest.FixtureRequest, traces: Traces, marked: Notebook
) -> None:
    if backend == "mpi":
        request.getfixturevalue("need_mpi")
    up(marked, traces, backend)
    marked.close()
    traces.vanish()


@pytest.mark.slow
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_killed_kernel_leaves_nothing(
    backend: str, request: pytest.FixtureRequest, traces: Traces, marked: Notebook
) -> None:
    if backend == "mpi":
        request.getfixturevalue("need_mpi")
    up(marked, traces, backend)
    os.kill(traces.kernel, signal.SIGKILL)
    traces.vanish()


@pytest.mark.slow
def test_down_leaves_nothing_of_ranks_that_ignore_signals_or_wait_for_ever(traces: Traces, marked: Notebook) -> None:
    up(marked, traces, "ring")
    marked.ok(
        "%%distributed --no-wait\n"
        "import signal, time\n"
        "if rank == 0:\n"
        "    mx.eval(mx.distributed.all_sum(mx.ones(10)))\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "while True:\n"
        "    time.sleep(0.1)"
    )
    marked.ok("%distributed down")
    traces.vanish()


@pytest.mark.slow
def test_a_killed_kernel_leaves_nothing_of_ranks_that_are_busy(traces: Traces, marked: Notebook) -> None:
    up(marked, traces, "ring")
    marked.ok(
        "%%distributed --no-wait\nimport signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nwhile True:\n    pass"
    )
    os.kill(traces.kernel, signal.SIGKILL)
    traces.vanish()


def ranks_and_mpirun(cluster: Cluster) -> tuple[list[psutil.Process], psutil.Process]:
    """The processes of its ranks, and the one that started them."""
    ranks = [psutil.Process(rank.pid) for rank in cluster.snapshot.ranks]
    mpirun = ranks[0].parent()
    assert mpirun is not None
    return ranks, mpirun


@pytest.mark.slow
@pytest.mark.mpi
def test_an_mpirun_that_is_slow_to_end_removes_the_shared_memory_of_its_ranks(need_mpi: None) -> None:
    cluster = Cluster(2, backend="mpi", name="slow-mpirun").up()
    try:
        ranks, mpirun = ranks_and_mpirun(cluster)
        files, host = shared_memory(ranks), mpirun.parent()
        assert files and host is not None
        mpirun.suspend()
        host.terminate()
        assert not psutil.wait_procs([mpirun], END_AFTER + 1)[0], "it was killed, as ranks are"
        mpirun.resume()
        assert not psutil.wait_procs([host, mpirun], WITHIN)[1]
        assert not any(map(os.path.exists, files))
    finally:
        cluster.down()


@pytest.mark.slow
@pytest.mark.mpi
def test_an_mpirun_that_was_killed_leaves_no_shared_memory(need_mpi: None) -> None:
    with Cluster(2, backend="mpi", name="no-mpirun") as cluster:
        ranks, mpirun = ranks_and_mpirun(cluster)
        files = shared_memory(ranks)
        mpirun.kill()
        assert not psutil.wait_procs([mpirun, *ranks], WITHIN)[1]
        assert len(files) == 2 and all(map(os.path.exists, files)), "nothing else removes them"
        cause = "ended by mpirun, which was killed by SIGKILL"
        assert comes_true(cluster, lambda now: [rank.cause for rank in now.ranks] == [cause, cause], WITHIN)
        cluster.heal()
        files |= shared_memory(ranks_and_mpirun(cluster)[0])
        assert len(files) == 4 and sums_are_right(cluster)
    assert not any(map(os.path.exists, files))


@pytest.mark.slow
@pytest.mark.mpi
def test_ranks_of_mpi_share_memory_where_the_user_says(need_mpi: None, tmp_path: Path) -> None:
    where = f"--mca btl_sm_backing_directory {tmp_path}"
    with Cluster(2, backend="mpi", name="backing", mpi_args=[where]) as cluster:
        files = shared_memory(ranks_and_mpirun(cluster)[0])
        assert {Path(file).parent for file in files} == {tmp_path}


@pytest.mark.slow
def test_a_start_that_fails_leaves_nothing(traces: Traces, marked: Notebook) -> None:
    cell = marked.run("%distributed up -n 2 --env PYTHONPATH=/nowhere --python /bin/false")
    assert cell.error
    traces.vanish()


@pytest.mark.slow
def test_processes_that_a_cell_started_end_with_down(traces: Traces, marked: Notebook) -> None:
    up(marked, traces, "ring")
    marked.ok("%%distributed\nimport subprocess\nhelper = subprocess.Popen(['sleep', '600'])")
    marked.ok("%distributed down")
    traces.vanish()


@pytest.mark.slow
def test_a_script_that_ends_without_down_leaves_nothing(traces: Traces) -> None:
    script = (
        "import allranks\n"
        "cluster = allranks.Cluster(2).up()\n"
        "print(cluster.run('mx.distributed.all_sum(mx.ones(1)).item()')[0].value, flush=True)\n"
    )
    home = traces.folder.parent / "home"
    home.mkdir()
    env = {**os.environ, **traces.env, "HOME": str(home)}
    del env["IPYTHONDIR"]
    done = subprocess.run([sys.executable, "-c", script], env=env, capture_output=True, text=True, timeout=200)
    assert (done.stdout, done.returncode) == ("2.0\n", 0), done.stderr
    assert not list(home.iterdir())
    traces.vanish()


@pytest.mark.slow
def test_a_cell_that_is_followed_ends_quietly_with_the_cluster() -> None:
    shown, cluster = Shown(), Cluster(2).up()
    cell = cluster.begin("import time\ntime.sleep(600)", screen=shown)
    with ThreadPoolExecutor(1) as pool:
        following = pool.submit(cell.finish)
        assert comes_true(cluster, lambda now: all(rank.line == 2 for rank in now.ranks), WITHIN)
        cluster.down()
        with pytest.raises(NoCluster, match=r"the cell ended with the cluster, on ranks 0-1\."):
            following.result(WITHIN)
    assert not shown.text


FORKING = """
import multiprocessing, os, sys
import allranks

cluster = allranks.Cluster(2).up()
child = os.fork()
if not child:
    print(cluster.state, allranks.current() is None, flush=True)
    sys.exit()  # with exit handlers, as a process that forgets os._exit
os.waitpid(child, 0)
with multiprocessing.get_context("fork").Pool(2) as pool:
    print(pool.map(len, ["a", "bc"]), flush=True)
print(cluster.run("mx.distributed.all_sum(mx.ones(1)).item()").check()[0].value, cluster.state, flush=True)
"""


@pytest.mark.slow
def test_a_process_that_the_notebook_forks_does_not_end_the_cluster(traces: Traces) -> None:
    env = {**os.environ, **traces.env}
    done = subprocess.run([sys.executable, "-c", FORKING], env=env, capture_output=True, text=True, timeout=200)
    assert (done.stdout, done.returncode) == ("down True\n[1, 2]\n2.0 whole\n", 0), done.stderr
    traces.vanish()


@pytest.mark.slow
def test_unloading_the_extension_ends_the_cluster(traces: Traces, marked: Notebook) -> None:
    up(marked, traces, "ring")
    marked.ok("%unload_ext allranks")
    traces.vanish()
    assert "not found" in marked.run("%distributed status").all


@pytest.mark.slow
def test_a_cluster_can_be_started_again_and_again_in_one_kernel(traces: Traces, marked: Notebook) -> None:
    count = "import gc, psutil; gc.collect(); print(psutil.Process().num_fds(), psutil.Process().num_threads())"
    for _ in range(2):
        marked.ok("%distributed up -n 2\n%distributed down")
    before = marked.ok(count).stdout.split()
    for _ in range(4):
        marked.ok("%distributed up -n 2")
        marked.ok("%%distributed\nmx.distributed.all_sum(mx.ones(10))")
        marked.ok("%distributed down")
    until = time.monotonic() + WITHIN  # what has been told to end may take a moment
    while True:
        after = marked.ok(count).stdout.split()
        few = [int(b) - int(a) <= 3 for a, b in zip(before, after)] == [True, True]
        if few or time.monotonic() > until:
            break
    assert few, (before, after)
    traces.vanish()
