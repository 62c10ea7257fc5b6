"""A pytest plugin: writes what happens as lines of JSON, so that a run that was cut leaves its report, too.

It has a folder of its own, because that folder is on PYTHONPATH while pytest starts. xdist's workers load it and write
nothing but where they stood if they crash. The lines are read by `outcomes.py`.
"""

from __future__ import annotations

import faulthandler
import json
import os
import signal
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

FOLDER = str(Path(__file__).parent)
LONGEST = 500
"""Characters of a reason that are written."""
ENDS_WITHIN = 10.0
"""Seconds until a worker that crashed has a status."""
STOOD = pytest.StashKey[Any]()
"""The file in which a worker that crashes writes where it stood."""


def _leave_the_environment() -> None:
    """Tests pass their PYTHONPATH on (to hosts, say) and must not see ours."""
    others = [folder for folder in os.environ.get("PYTHONPATH", "").split(os.pathsep) if folder not in ("", FOLDER)]
    os.environ.pop("PYTHONPATH", None)
    if others:
        os.environ["PYTHONPATH"] = os.pathsep.join(others)


_leave_the_environment()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--ci-report", metavar="FILE", help="append what happens to this file, as lines of JSON")


@pytest.hookimpl(trylast=True)  # pytest's own plugin has this written between the output of the tests
def pytest_configure(config: pytest.Config) -> None:
    path = config.getoption("--ci-report")
    if not path:
        return
    worker = getattr(config, "workerinput", None)
    if worker is None:
        config.pluginmanager.register(Reporter(path))
    else:
        config.stash[STOOD] = open(stood(path, worker["workerid"]), "w", encoding="utf-8")
        faulthandler.enable(config.stash[STOOD])


def stood(path: str, worker: str) -> str:
    """The file for a worker."""
    return f"{path}.{worker}"


class Reporter:
    def __init__(self, path: str) -> None:
        self._path = path
        self._file = open(path, "a", encoding="utf-8")
        self._collected: list[str] = []

    def _write(self, event: str, **facts: object) -> None:
        self._file.write(json.dumps({"event": event, "time": time.time(), **facts}) + "\n")
        self._file.flush()

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, ids: Sequence[str]) -> None:
        self._collect(list(ids))

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self._collect([item.nodeid for item in session.items])

    def _collect(self, ids: list[str]) -> None:
        if ids != self._collected:  # all workers collect the same
            self._collected = ids
            self._write("collected", ids=ids)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self._write("uncollected", id=report.nodeid or "(the tests)", reason=reason(report))
        elif report.skipped:
            self._write("module skipped", id=report.nodeid, reason=reason(report))

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._write("started", id=nodeid)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        said = "" if report.passed else reason(report)
        self._write("report", id=report.nodeid, when=report.when, outcome=report.outcome, reason=said)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any, error: object | None) -> None:
        if error:
            worker = node.gateway.id
            where = Path(stood(self._path, worker)).read_text(encoding="utf-8", errors="replace")
            self._write("crashed", worker=worker, error=f"{error}; {_how_it_ended(node)}", stood=where)

    def pytest_sessionfinish(self, exitstatus: int) -> None:
        self._write("ended", status=int(exitstatus))

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_make_scheduler(self, config: pytest.Config, log: Any) -> object | None:
        return _scheduler(config, log) if config.getoption("dist") == "loadfile" else None


def _how_it_ended(node: Any) -> str:
    """What its process left for a status: execnet has a process of its own for each worker."""
    with suppress(AttributeError, subprocess.TimeoutExpired):
        status = node.gateway._io.popen.wait(ENDS_WITHIN)
        return signal.Signals(-status).name if status < 0 else f"exit status {status}"
    return "its process goes on"


def _scheduler(config: pytest.Config, log: Any) -> object:
    """As `--dist loadfile`, but a test that crashed its worker is not started again on the next one.

    xdist 3.8's LoadScopeScheduling.remove_node puts the test back: it crashes worker after worker until no more are
    started, and then the tests behind it are lost.
    """
    from xdist.scheduler.loadfile import LoadFileScheduling
    from xdist.workermanage import WorkerController

    class Scheduler(LoadFileScheduling):  # type: ignore[misc]  # xdist has no types
        def remove_node(self, node: WorkerController) -> str | None:
            files = self.assigned_work[node]
            pending = [(tests, test) for tests in files.values() for test, done in tests.items() if not done]
            if pending:
                tests, test = pending[0]
                tests[test] = True
            self.assigned_work[node] = {file: tests for file, tests in files.items() if not all(tests.values())}
            super().remove_node(node)
            return pending[0][1] if pending else None

    return Scheduler(config, log)


def reason(report: pytest.TestReport | pytest.CollectReport) -> str:
    """The first line of what a report says."""
    if isinstance(report.longrepr, tuple):  # of a skipped test: file, line and reason
        said = str(report.longrepr[2])
    else:
        crash = getattr(report.longrepr, "reprcrash", None)
        said = crash.message if crash else str(report.longrepr or "")
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    return lines[0][:LONGEST] if lines else ""
