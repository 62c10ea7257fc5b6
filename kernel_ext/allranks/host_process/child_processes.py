"""The child processes of a host process: their names, how each ended, and how to end them all."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Collection
from contextlib import suppress

from allranks.messages.host_messages import Ended, Suspended

END_AFTER = 2.0
"""Seconds between asking a rank to end and killing it."""
CONTROLLER, LAUNCHER, SAVER = "controller", "launcher", "saver"
DAEMON = "prted"
"""Open MPI's daemon, which starts the ranks on hosts other than mpirun's."""
LAUNCHER_ENDS_WITHIN = 5.0
"""Seconds to wait for a launcher, or its daemon, to end its ranks and remove their files."""


class Children:
    """The children; `reap` calls `on_end` for each that has ended, `on_suspended` for each suspended or continued."""

    def __init__(self, on_end: Callable[[Ended], None], on_suspended: Callable[[Suspended], None]) -> None:
        self._on_end, self._on_suspended = on_end, on_suspended
        self.suspended: set[int] = set()
        """The pids of the children that are suspended."""
        self._names: dict[int, str] = {}
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        self._ooms = _oom_kills()

    def __contains__(self, pid: int) -> bool:
        return pid in self._names

    @property
    def pids(self) -> dict[str, int]:
        """The pid of each child, by name."""
        return {name: pid for pid, name in self._names.items()}

    def add(self, name: str, pid: int, process: subprocess.Popen[bytes] | None = None) -> None:
        """Register a child. `reap` sets the return code of `process`, which can no longer wait for the child."""
        self._names[pid] = name
        if process is not None:
            self._processes[pid] = process

    def reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG | os.WUNTRACED | os.WCONTINUED)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if os.WIFSTOPPED(status) or os.WIFCONTINUED(status):
                (self.suspended.add if os.WIFSTOPPED(status) else self.suspended.discard)(pid)
                self._on_suspended(Suspended(pid, pid in self.suspended))
                continue
            self.suspended.discard(pid)
            name = self._names.pop(pid, "")
            code = os.waitstatus_to_exitcode(status)
            process = self._processes.pop(pid, None)
            if process is not None:
                process.returncode = code
            ooms = _oom_kills()
            self._on_end(Ended(name, pid, code, ooms > self._ooms))
            self._ooms = ooms

    def end(self) -> None:
        """End all children but the controller and the saver, which may have requested it: SIGTERM, then SIGKILL."""
        within = LAUNCHER_ENDS_WITHIN if LAUNCHER in self._names.values() else END_AFTER
        for number in (signal.SIGTERM, signal.SIGKILL):
            for pid in self._ours():
                try:
                    # A launcher leads a session of its own, so its ranks are killed with it.
                    whole = self._names[pid] == LAUNCHER and number == signal.SIGKILL
                    (os.killpg if whole else os.kill)(pid, number)
                except ProcessLookupError:
                    pass
            deadline = time.monotonic() + within
            while self._ours() and time.monotonic() < deadline:
                self.reap()
                time.sleep(0.01)

    def _ours(self) -> list[int]:
        return [pid for pid, name in self._names.items() if name not in (CONTROLLER, SAVER)]


def end_launched(ranks: Collection[tuple[int, float]]) -> None:
    """End the ranks that a launcher started here, and its daemon: both may outlive the launcher by minutes.

    A daemon ends its ranks itself.
    """
    if not ranks:
        return
    import psutil  # a host process needs it only once its ranks run

    from allranks.machine.process_identity import still_runs

    there = set[psutil.Process]()
    for pid, since in ranks:
        with suppress(psutil.Error):
            if still_runs(pid, since):
                rank = psutil.Process(pid)
                there.add(rank)
                daemon = rank.parent()
                if daemon is not None and daemon.name() == DAEMON:
                    daemon.terminate()
                    there.add(daemon)
                else:
                    rank.kill()
    for each in psutil.wait_procs(there, LAUNCHER_ENDS_WITHIN)[1]:
        with suppress(psutil.Error):
            each.kill()


def _oom_kills() -> int:
    """How often the kernel killed a process of this control group for lack of memory; 0 if unknown."""
    try:
        with open("/sys/fs/cgroup/memory.events") as file:
            return sum(int(line.split()[1]) for line in file if line.startswith("oom_kill "))
    except (OSError, ValueError, IndexError):
        return 0
