"""How a host process starts the controller, a launcher such as mpirun, and ranks (forked or as new programs)."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from allranks.machine.private_files import make_private, redirect_to_log, write_private
from allranks.messages.host_messages import RankConfig

EXIT = os._exit  # the original: a rank wraps os._exit for its user's calls


def controller(connections: Mapping[str, object], log: Path) -> subprocess.Popen[bytes]:
    """Start ipyparallel's controller and send it `connections`, its settings; its standard input stays open."""
    process = subprocess.Popen(
        [sys.executable, "-m", "allranks.hosts.ipyparallel_controller"],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=open(log, "wb"),
    )
    assert process.stdin is not None
    process.stdin.write(json.dumps(connections).encode() + b"\n")
    process.stdin.flush()
    return process


def launcher(command: Sequence[str], env: Mapping[str, str], log: Path) -> subprocess.Popen[bytes]:
    """Start a launcher in a session of its own."""
    output = open(log, "wb")
    return subprocess.Popen(
        command,
        env={**os.environ, **env},
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=output,
        start_new_session=True,
    )


def spawned_rank(config: RankConfig) -> subprocess.Popen[bytes]:
    """Start a rank as a new Python process."""
    make_private(Path(config.directory))
    join = Path(config.directory, "rank.json")
    write_private(join, json.dumps(asdict(config)))
    return subprocess.Popen(
        [sys.executable, "-m", "allranks.rank", "--join", str(join)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        pass_fds=() if config.holder is None else (config.holder,),
    )


def forked_rank(config: RankConfig, drop: Callable[[], None]) -> int:
    """Fork a rank, which shares this process's imports; in it, `drop` closes the descriptors of this process only.

    Returns the rank's pid in this process; never returns in the rank.
    """
    make_private(Path(config.directory))
    parent = os.getpid()
    # A child that got SIGTERM while it still had this process's handler would end all other ranks.
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
    try:
        pid = os.fork()
    except OSError:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        raise
    if pid:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        return pid
    try:
        _take_signals(mask)
        _become_rank(parent, config, drop)
        from allranks.rank.process import engine

        engine.run(config)
    except BaseException:
        traceback.print_exc()
    finally:
        EXIT(1)


def _take_signals(mask: Iterable[int]) -> None:
    """In the forked child: restore the default signal handlers, and block only the signals in `mask`."""
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _become_rank(parent: int, config: RankConfig, drop: Callable[[], None]) -> None:
    """In the forked child: close the parent's descriptors, end when the parent ends, and write to the rank's log."""
    drop()
    prctl = ctypes.CDLL(None).prctl
    prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    if os.getppid() != parent:
        EXIT(1)
    redirect_to_log(config.directory)
