"""The host process: one on each host, parent of that host's ranks.

It starts them, says how they ended (which only a parent can know exactly), and ends them with the notebook. It speaks
JSON lines over its standard input and output, so that the same process serves under ``ssh``. When its input closes the
notebook is gone and everything it started is ended, unless the cluster is kept.

Standard library only until ranks start; single-threaded, so that on Linux ranks can be forked from it after it has
imported what all of them need: four ranks then cost one import instead of four.
"""

from __future__ import annotations

import ctypes
import errno
import gc
import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import Any

from .config import RankConfig
from .machine import machine

FORK = sys.platform == "linux"
"""macOS libraries do not survive a fork without exec."""
EXIT = os._exit  # a rank wraps os._exit for its user's calls; this one is ours
COMPARED = ("allranks", "ipyparallel", "ipykernel", "mlx")
"""Packages whose versions must be the notebook's."""
LAST_WORDS = 6000
"""Characters of a crash report passed on."""
ROOM = 8 << 20
"""Bytes that must be free for the ranks' settings and logs."""
END_AFTER = 2.0
"""Seconds between asking a rank to end and killing it."""


class HostProcess:
    def __init__(self) -> None:
        self._names: dict[int, str] = {}
        self._children: dict[int, subprocess.Popen[bytes]] = {}
        self._controller: subprocess.Popen[bytes] | None = None
        self._directory: Path | None = None
        self._keep = False
        self._ooms = _oom_kills()
        self._wake_read, self._wake_write = os.pipe()
        os.set_blocking(self._wake_write, False)
        self._input, self._protocol = 0, os.dup(1)
        self._listener: socket.socket | None = None
        self._also_remove: Path | None = None
        self._patience: float | None = None
        """Seconds without a word after which the notebook, or the network to it, counts as gone."""
        self._heard = time.monotonic()
        os.dup2(2, 1)  # a stray print must not break the protocol

    def run(self) -> None:
        signal.set_wakeup_fd(self._wake_write, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C in a terminal reaches the whole group; ranks decide
        signal.signal(signal.SIGTERM, lambda *_: self._end())
        rest = b""
        while True:
            listener = self._listener.fileno() if self._listener is not None else -1
            watched = [each for each in (self._input, self._wake_read, listener) if each >= 0]
            ready, _, _ = select.select(watched, [], [], self._patience and self._patience / 4)
            if self._wake_read in ready:
                os.read(self._wake_read, 4096)
                self._reap()
            if self._input in ready:
                data, self._heard = _read(self._input), time.monotonic()
                if not data:
                    self._notebook_gone()
                *lines, rest = (rest + data).split(b"\n")
                for line in lines:
                    self._obey(json.loads(line))
            elif self._patience is not None and time.monotonic() - self._heard > self._patience:
                self._end()
            if listener in ready:
                rest = b""
                self._take_over()

    def _notebook_gone(self) -> None:
        """End everything, or wait for the next notebook if the cluster is kept."""
        if not self._keep:
            self._end()
        os.close(self._input)
        if self._protocol != self._input:
            os.close(self._protocol)
        self._input, self._protocol = -1, os.open(os.devnull, os.O_WRONLY)

    def _take_over(self) -> None:
        """Another notebook attaches: from now on it gives the orders, whatever became of the one before."""
        assert self._listener is not None
        connection, _ = self._listener.accept()
        if self._input >= 0:
            self._notebook_gone()
        os.close(self._protocol)
        self._input = self._protocol = connection.detach()
        self._say(event="present", processes={name: pid for pid, name in self._names.items()})

    def _say(self, **event: Any) -> None:
        try:
            os.write(self._protocol, json.dumps(event).encode() + b"\n")
        except OSError:
            pass  # nobody listens any more

    def _obey(self, order: dict[str, Any]) -> None:
        question = order.pop("ask", None)
        try:
            answer = getattr(self, f"_do_{order.pop('do')}")(**order)
            if question is not None:
                self._say(event="answer", ask=question, **answer)
        except Exception:
            self._say(event="trouble", text=traceback.format_exc())

    def _do_prepare(
        self,
        directory: str | None = None,
        keep: bool = False,
        controller: dict[str, Any] | None = None,
        also_remove: str | None = None,
        patience: float | None = None,
    ) -> None:
        """First order: start the controller if it is to live here, and import what the ranks need meanwhile.

        Without a `directory`, one is made, and this host is described to a notebook that is elsewhere.
        """
        self._keep, self._patience = keep, patience
        self._directory = Path(directory or tempfile.mkdtemp(prefix="allranks-"))
        if directory is None:
            (self._directory / "profile").mkdir()  # the engines' own
            if shutil.disk_usage(self._directory).free < ROOM:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self._directory))
            self._say(event="prepared", directory=str(self._directory), **_described())
        if keep:
            self._also_remove = Path(also_remove) if also_remove else None
            # In a folder only this user can enter.
            self._listener = socket.socket(socket.AF_UNIX)
            self._listener.bind(str(self._directory / "control"))
            self._listener.listen()
        if controller is not None:
            process = subprocess.Popen(
                [sys.executable, "-m", "allranks._controller"],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=open(self._directory / "controller.log", "wb"),
            )
            assert process.stdin is not None
            process.stdin.write(json.dumps(controller).encode() + b"\n")
            process.stdin.flush()
            self._controller = process
            self._names[process.pid] = "controller"
        if FORK:
            from . import engine  # noqa: F401

            gc.collect()
            gc.freeze()  # else the first collection in each rank would copy all these pages

    def _do_start(self, ranks: list[dict[str, Any]]) -> None:
        for settings in ranks:
            config = RankConfig(**settings)
            pid = self._fork(config) if FORK else self._spawn(config)
            self._names[pid] = f"rank {config.rank}"
            self._say(event="started", rank=config.rank, pid=pid)

    def _do_launch(self, command: list[str], env: dict[str, str], rank_config: dict[str, Any], join: str) -> None:
        """Start all ranks through a launcher such as mpirun; each reads the file `join` and knows its rank from it."""
        _write_private(Path(join), json.dumps(rank_config))
        log = open(Path(join).parent / "launcher.log", "wb")
        process = subprocess.Popen(
            command, env={**os.environ, **env}, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
        )
        self._children[process.pid] = process
        self._names[process.pid] = "launcher"
        self._say(event="launched", pid=process.pid)

    def _do_signal(self, pid: int, number: int) -> None:
        if pid in self._names:
            os.kill(pid, number)

    def _do_forget(self, uuids: list[str]) -> None:
        """Have the controller forget these engines, whose processes have ended."""
        if self._controller is not None and self._controller.poll() is None:
            assert self._controller.stdin is not None
            self._controller.stdin.write("".join(f"{uuid}\n" for uuid in uuids).encode())
            self._controller.stdin.flush()

    def _do_offer(self, cluster: str, ranks: list[dict[str, Any]]) -> dict[str, Any]:
        """Lay the settings of this host's ranks where a launcher's processes find them (see `offered`)."""
        folder = offered(cluster)
        folder.mkdir(mode=0o700, exist_ok=True)
        for settings in ranks:
            settings["directory"] = str(folder / f"rank-{settings['rank']}")
            _write_private(folder / f"{settings['rank']}.json", json.dumps(settings))
        self._also_remove = folder
        (folder / "profile").mkdir(exist_ok=True)
        return {}

    def _do_runs(self, pid: int) -> dict[str, Any]:
        """Whether a process that another than this one started is still there."""
        try:
            os.kill(pid, 0)
        except OSError:
            pid = 0
        return {"pid": pid}

    def _do_alive(self) -> None:
        """The notebook is there."""

    def _do_ports(self, count: int) -> dict[str, Any]:
        from .ports import free_ports

        return {"ports": free_ports(count)}

    def _do_end(self) -> None:
        self._end()

    def _fork(self, config: RankConfig) -> int:
        Path(config.directory).mkdir(mode=0o700, exist_ok=True)
        parent = os.getpid()
        pid = os.fork()
        if pid:
            return pid
        try:
            self._become_rank(parent, config)
            from . import engine

            engine.run(config)
        except BaseException:
            traceback.print_exc()
        finally:
            EXIT(1)

    def _become_rank(self, parent: int, config: RankConfig) -> None:
        """In the forked child: drop the parent's descriptors, and end if the parent does."""
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        for descriptor in {self._wake_read, self._wake_write, self._protocol, self._input} - {0, -1}:
            os.close(descriptor)
        if self._listener is not None:
            self._listener.close()
        if self._controller is not None and self._controller.stdin is not None:
            self._controller.stdin.close()
        prctl = ctypes.CDLL(None).prctl
        prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
        if os.getppid() != parent:
            EXIT(1)
        redirect_to_log(config.directory)

    def _spawn(self, config: RankConfig) -> int:
        Path(config.directory).mkdir(mode=0o700, exist_ok=True)
        join = Path(config.directory, "rank.json")
        _write_private(join, json.dumps({name: value for name, value in vars(config).items() if name != "stop"}))
        process = subprocess.Popen(
            [sys.executable, "-m", "allranks.rank", "--join", str(join)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        self._children[process.pid] = process
        return process.pid

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            name = self._names.pop(pid, "")
            child = self._children.pop(pid, None)
            if child is not None:
                child.returncode = os.waitstatus_to_exitcode(status)
            ooms = _oom_kills()
            self._say(
                event="ended",
                name=name,
                pid=pid,
                code=os.waitstatus_to_exitcode(status),
                out_of_memory=ooms > self._ooms,
                log=self._log(name),
            )
            self._ooms = ooms

    def _log(self, name: str) -> str:
        """The end of what a process wrote outside any cell: a crash report, mpirun's complaint."""
        if self._directory is None:
            return ""
        kind, _, number = name.partition(" ")
        path = self._directory / (f"rank-{number}/rank.log" if kind == "rank" else f"{kind}.log")
        try:
            text = path.read_text(errors="replace")
            crash = text.rfind("Fatal Python error")  # all threads' stacks follow it
            return (text[-LAST_WORDS:] if crash < 0 else text[crash : crash + LAST_WORDS]).strip()
        except OSError:
            return ""

    def _end(self) -> None:
        """End every process and file of this host's, then oneself."""
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        for number, patience in ((signal.SIGTERM, END_AFTER), (signal.SIGKILL, END_AFTER)):
            for pid in [pid for pid, name in self._names.items() if name != "controller"]:
                try:
                    # A launcher leads a session of its own; its ranks go with it.
                    (os.killpg if self._names[pid] == "launcher" and number == signal.SIGKILL else os.kill)(pid, number)
                except ProcessLookupError:
                    pass
            deadline = time.monotonic() + patience
            while any(name != "controller" for name in self._names.values()) and time.monotonic() < deadline:
                self._reap()
                time.sleep(0.01)
        if self._controller is not None:
            self._controller.kill()
            self._controller.wait()
        if self._directory is not None:
            shutil.rmtree(self._directory, ignore_errors=True)
        if self._also_remove is not None and self._also_remove.is_dir():
            shutil.rmtree(self._also_remove, ignore_errors=True)
        elif self._also_remove is not None:
            self._also_remove.unlink(missing_ok=True)
        self._say(event="gone")
        if os.getpgrp() == os.getpid():
            os.killpg(0, signal.SIGKILL)  # what cells have started, as a kernel does that shuts down
        EXIT(0)


def _described() -> dict[str, Any]:
    """What a notebook elsewhere wants to know before it starts ranks here."""
    try:
        from .addresses import own_addresses

        addresses = own_addresses()
    except ImportError:  # psutil is missing; what is missing is told by the versions
        addresses = []
    return {
        "versions": versions(),
        "ssh": os.environ.get("SSH_CONNECTION", ""),
        "cores": os.cpu_count() or 1,
        "addresses": addresses,
        "platform": machine(),
        "cuda": os.environ.get("CUDA_VISIBLE_DEVICES", ""),
    }


def versions() -> dict[str, str]:
    """Versions of Python and of the packages in `COMPARED`; empty for one that is not installed."""
    from importlib.metadata import PackageNotFoundError, version

    found = {"python": ".".join(map(str, sys.version_info[:3]))}
    for package in COMPARED:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = ""
    return found


def _read(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, 1 << 16)
    except OSError:  # a connection that was reset
        return b""


def offered(cluster: str) -> Path:
    """The folder (0700) in which a cluster's ranks find their settings on any of its hosts.

    Raises PermissionError where it is another user's.
    """
    folder = Path(tempfile.gettempdir(), f"allranks-{cluster}")
    if folder.exists() and (folder.stat().st_uid != os.getuid() or folder.stat().st_mode & 0o077):
        raise PermissionError(f"{folder} is open to others, or theirs")
    return folder


def redirect_to_log(directory: str) -> None:
    """Point the descriptors 0, 1 and 2 away from the host's protocol; crashes of C code are written to the log."""
    import faulthandler

    log = os.open(Path(directory, "rank.log"), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.dup2(log, 1)
    os.dup2(log, 2)
    # The engine later captures descriptor 2; a crash must be written where its parent can read it.
    faulthandler.enable(os.fdopen(log, "w"))


def _write_private(path: Path, text: str) -> None:
    path.touch(mode=0o600)
    path.write_text(text)


def _oom_kills() -> int:
    """How often the kernel killed a process of this control group for memory; 0 where that is not told."""
    try:
        with open("/sys/fs/cgroup/memory.events") as file:
            return sum(int(line.split()[1]) for line in file if line.startswith("oom_kill "))
    except (OSError, ValueError, IndexError):
        return 0


if __name__ == "__main__":
    HostProcess().run()
