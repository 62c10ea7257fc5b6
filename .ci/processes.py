"""Runs a command and finds all its descendants, whatever session or environment they have chosen."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO

import psutil

PR_SET_CHILD_SUBREAPER = 36
"""prctl(2)."""
POLL = 0.02
"""Seconds. Tests wait for orphans to be gone, and these are ours to reap."""


def adopt_orphans() -> None:
    """Make this process the parent of every descendant whose own parent ends. Linux only.

    Otherwise init adopts them, and a daemon that sshd started with a clean environment can no longer be found.
    """
    if sys.platform != "linux":
        return
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "cannot adopt orphans: prctl failed")


def reap() -> dict[int, int]:
    """Exit statuses of all children that ended, by process id."""
    ended: dict[int, int] = {}
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return ended
        if pid == 0:
            return ended
        ended[pid] = os.waitstatus_to_exitcode(status)


def run(
    command: Sequence[str],
    folder: Path,
    environment: Mapping[str, str],
    limit: float,
    grace: float,
    output: IO[bytes] | None = None,
) -> int | None:
    """Exit status of the command, or None where it took longer than `limit` seconds and was ended.

    Then it is interrupted first, with its whole process group: fixtures have `grace` seconds to clear up.
    """
    sys.stdout.flush()
    child = subprocess.Popen(
        command,
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=output if output is not None else sys.stdout,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        if _ended(child, limit):
            return child.returncode
    except SystemExit:  # a signal to this process
        _cut(child, grace)
        raise
    _cut(child, grace)
    return None


def _cut(child: subprocess.Popen[bytes], grace: float) -> None:
    try:
        with suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGINT)
        _ended(child, grace)
    finally:
        end_all()
        child.returncode = -signal.SIGKILL  # reaped


def _ended(child: subprocess.Popen[bytes], limit: float) -> bool:
    deadline = time.monotonic() + limit
    while True:
        ended = reap()
        if child.pid in ended:
            child.returncode = ended[child.pid]
            return True
        if time.monotonic() >= deadline:
            return False
        time.sleep(POLL)


def descendants() -> list[psutil.Process]:
    """All that are alive."""
    reap()
    found = []
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):
            if process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


def end_all() -> None:
    """Kill every descendant, and those that they start meanwhile."""
    deadline = time.monotonic() + 30
    while (left := descendants()) and time.monotonic() < deadline:
        for process in left:
            with suppress(psutil.Error):
                process.kill()
        time.sleep(POLL)


def described(process: psutil.Process) -> str:
    try:
        command = " ".join(process.cmdline()) or process.name()
    except psutil.Error:
        command = "gone meanwhile"
    return f"process {process.pid}: {command[:300]}"
