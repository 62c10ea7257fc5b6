"""Processes: know those a benchmark started, and leave none of them behind."""

from __future__ import annotations

import os
import secrets
import signal
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import psutil

MARK = "ALLRANKS_BENCHMARK"
"""Environment variable that every process a benchmark starts inherits: daemons have no parent to be found by."""


@contextmanager
def nothing_left() -> Iterator[None]:
    """Mark processes started in this context, give them a folder for their files, and at the end remove both.

    A termination signal is raised as SystemExit, so that everything is ended then too.
    """
    os.environ.setdefault(MARK, secrets.token_hex(8))
    previous = signal.signal(signal.SIGTERM, _exit)
    with tempfile.TemporaryDirectory(prefix="allranks-benchmark-", ignore_cleanup_errors=True) as folder:
        # ipyparallel keeps connection files and logs in the profile, and mlx.launch leaves its in the temporary folder.
        settings = {"IPYTHONDIR": os.path.join(folder, "ipython"), "TMPDIR": folder}
        before = {name: os.environ.get(name) for name in settings}
        os.environ.update(settings)
        tempfile.tempdir = None  # looked up again
        try:
            yield
        finally:
            end(started())
            for name, value in before.items():
                _restore(name, value)
            tempfile.tempdir = None
            signal.signal(signal.SIGTERM, previous)


def started() -> list[psutil.Process]:
    """Every living process that a benchmark of ours started, directly or not."""
    return carrying(os.environ[MARK])


def carrying(mark: str, variable: str = MARK) -> list[psutil.Process]:
    """Every living process with this mark in the environment variable, except the calling one."""
    found = []
    for process in psutil.process_iter():
        try:
            marked = process.environ().get(variable) == mark and process.pid != os.getpid()
            if marked and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except psutil.Error:  # gone meanwhile, or another user's
            continue
    return found


def end(processes: Sequence[psutil.Process], patience: float = 5.0) -> None:
    """Terminate processes, and kill those still alive after ``patience`` seconds."""
    for process in processes:
        _signal(process, signal.SIGTERM)
    _, alive = psutil.wait_procs(processes, timeout=patience)
    for process in alive:
        _signal(process, signal.SIGKILL)
    psutil.wait_procs(alive, timeout=patience)


def wait_ended(processes: Sequence[psutil.Process], within: float = 10.0) -> None:
    """Wait for processes to end, and end the processes that still run after `within` seconds."""
    _, alive = psutil.wait_procs(processes, timeout=within)
    end(alive)


def _signal(process: psutil.Process, number: int) -> None:
    try:
        process.send_signal(number)
    except psutil.Error:
        pass


def _exit(number: int, _frame: object) -> None:
    raise SystemExit(128 + number)


def _restore(name: str, value: str | None) -> None:
    if value is None:
        os.environ.pop(name, None)
    else:
        os.environ[name] = value
