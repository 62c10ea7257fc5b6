"""What all tests share: no process of ours may be left when they end."""

import contextlib
import os
import time
import uuid
from collections.abc import Iterator

import psutil
import pytest

MARK = "ALLRANKS_TEST_RUN"
"""Inherited by every process that a test starts, so that orphans are known as ours and other people's ranks are not."""

OURS = ("allranks", "ipyparallel", "mpirun", "prterun", "prted")
GRACE = 10.0
"""Seconds that `down`, and a rank whose notebook died, have to clear up."""

os.environ[MARK] = uuid.uuid4().hex


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
