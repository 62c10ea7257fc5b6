"""The host process: one on each host, parent of that host's ranks.

It starts them, says how they ended (which only a parent can know exactly), and ends them with the notebook. It speaks
JSON lines over its standard input and output, so that the same process serves under ``ssh``. When its input closes the
notebook is gone and everything it started is ended, unless the cluster is kept.

Standard library only until ranks start; single-threaded, so that on Linux ranks can be forked from it after it has
imported what all of them need: four ranks then cost one import instead of four.
"""

from __future__ import annotations

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

from . import processes
from .children import CONTROLLER, LAUNCHER, Children, Ended
from .config import RankConfig
from .files import last_words, offered, write_private
from .machine import description
from .processes import EXIT

FORK = sys.platform == "linux"
"""macOS libraries do not survive a fork without exec."""
ROOM = 8 << 20
"""Bytes that must be free for the ranks' settings and logs."""


class HostProcess:
    def __init__(self) -> None:
        self._children = Children(self._tell_end)
        self._controller: subprocess.Popen[bytes] | None = None
        self._directory: Path | None = None
        self._keep = False
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
                self._children.reap()
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
        self._say(event="present", processes=self._children.pids)

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
            self._say(event="prepared", directory=str(self._directory), **description())
        if keep:
            self._also_remove = Path(also_remove) if also_remove else None
            # In a folder only this user can enter.
            self._listener = socket.socket(socket.AF_UNIX)
            self._listener.bind(str(self._directory / "control"))
            self._listener.listen()
        if controller is not None:
            self._controller = processes.controller(controller, self._directory / "controller.log")
            self._children.add(CONTROLLER, self._controller.pid)
        if FORK:
            from . import engine  # noqa: F401

            gc.collect()
            gc.freeze()  # else the first collection in each rank would copy all these pages

    def _do_start(self, ranks: list[dict[str, Any]]) -> None:
        for settings in ranks:
            config = RankConfig(**settings)
            process = None if FORK else processes.spawned_rank(config)
            pid = processes.forked_rank(config, self._drop) if process is None else process.pid
            self._children.add(f"rank {config.rank}", pid, process)
            self._say(event="started", rank=config.rank, pid=pid)

    def _do_launch(self, command: list[str], env: dict[str, str], rank_config: dict[str, Any], join: str) -> None:
        """Start all ranks through a launcher such as mpirun; each reads the file `join` and knows its rank from it."""
        write_private(Path(join), json.dumps(rank_config))
        process = processes.launcher(command, env, Path(join).parent / "launcher.log")
        self._children.add(LAUNCHER, process.pid, process)
        self._say(event="launched", pid=process.pid)

    def _do_signal(self, pid: int, number: int) -> None:
        if pid in self._children:
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
            write_private(folder / f"{settings['rank']}.json", json.dumps(settings))
        self._also_remove = folder
        (folder / "profile").mkdir(exist_ok=True)
        return {}

    def _do_runs(self, pid: int) -> dict[str, Any]:
        """Whether a process that another than this one started is still there."""
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            pid = 0
        except PermissionError:
            pass  # somebody else's, and there
        return {"pid": pid}

    def _do_alive(self) -> None:
        """The notebook is there."""

    def _do_ports(self, count: int) -> dict[str, Any]:
        from .ports import free_ports

        return {"ports": free_ports(count)}

    def _do_end(self) -> None:
        self._end()

    def _drop(self) -> None:
        """In a forked rank: close what is the host process's alone."""
        for descriptor in {self._wake_read, self._wake_write, self._protocol, self._input} - {0, -1}:
            os.close(descriptor)
        if self._listener is not None:
            self._listener.close()
        if self._controller is not None and self._controller.stdin is not None:
            self._controller.stdin.close()

    def _tell_end(self, ended: Ended) -> None:
        log = last_words(self._directory, ended.name) if self._directory is not None else ""
        self._say(event="ended", **vars(ended), log=log)

    def _end(self) -> None:
        """End every process and file of this host's, then oneself."""
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        self._children.end()
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


def _read(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, 1 << 16)
    except OSError:  # a connection that was reset
        return b""


if __name__ == "__main__":
    HostProcess().run()
