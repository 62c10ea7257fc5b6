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
import sys
import tempfile
import time
import traceback
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

from allranks.machine.facts import description
from allranks.machine.files import last_words, make_private, offered, write_private
from allranks.messages.host_messages import (
    Alive,
    End,
    Ended,
    Forget,
    Gone,
    HostAnswer,
    HostEvent,
    HostOrder,
    Launch,
    Launched,
    Offer,
    Ports,
    Prepare,
    Prepared,
    Present,
    RankConfig,
    Runs,
    Signal,
    Start,
    Started,
    Trouble,
    read_order,
    to_line,
)
from allranks.rank.world.held_sockets import Holder

from . import start
from .children import CONTROLLER, LAUNCHER, Children
from .controller import Controller
from .start import EXIT

FORK = sys.platform == "linux"
"""macOS libraries do not survive a fork without exec."""
ROOM = 8 << 20
"""Bytes that must be free for the ranks' settings and logs."""


class HostProcess:
    def __init__(self) -> None:
        self._children = Children(self._tell_end)
        self._controller: Controller | None = None
        self._directory: Path | None = None
        self._keep = False
        self._wake_read, self._wake_write = os.pipe()
        os.set_blocking(self._wake_write, False)
        self._input, self._protocol = 0, os.dup(1)
        self._listener: socket.socket | None = None
        self._holder = Holder()
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
            due = [each for each in (self._patience and self._patience / 4, self._close_held()) if each is not None]
            ready, _, _ = select.select(watched + self._holder.watched(), [], [], min(due, default=None))
            self._holder.take(ready)
            if self._wake_read in ready:
                os.read(self._wake_read, 4096)
                self._children.reap()
            if self._input in ready:
                data, self._heard = _read(self._input), time.monotonic()
                if not data:
                    self._notebook_gone()
                *lines, rest = (rest + data).split(b"\n")
                for line in lines:
                    self._handle(line)
            elif self._patience is not None and time.monotonic() - self._heard > self._patience:
                self._end()
            if listener in ready:
                rest = b""
                self._take_over()

    def _close_held(self) -> float | None:
        """Seconds until there is something to close; without a notebook nobody unblocks a dead rank's neighbours."""
        return self._holder.close_due(now=self._input < 0)

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
        self._say(Present(self._children.pids))

    def _say(self, event: HostEvent) -> None:
        try:
            os.write(self._protocol, to_line(event) + b"\n")
        except OSError:
            pass  # nobody listens any more

    def _handle(self, line: bytes) -> None:
        try:
            order, number = read_order(line)
            answer = self._carry_out(order)
            if number is not None:
                self._say(replace(answer or HostAnswer(0), number=number))
        except Exception:
            self._say(Trouble(traceback.format_exc()))

    def _carry_out(self, order: HostOrder) -> HostAnswer | None:
        match order:
            case Prepare():
                self._prepare(order)
            case Start():
                self._start(order.ranks)
            case Launch():
                self._launch(order)
            case Offer():
                self._offer(order)
            case Signal():
                if order.pid in self._children:
                    os.kill(order.pid, order.number)
            case Forget():
                self._forget(order.uuids)
            case Runs():
                return HostAnswer(0, pid=_if_running(order.pid))
            case Ports():
                from allranks.machine.ports import free_ports

                return HostAnswer(0, ports=free_ports(order.count))
            case End():
                self._end()
            case Alive():
                pass
        return None

    def _prepare(self, order: Prepare) -> None:
        directory, keep = order.directory, order.keep
        self._keep, self._patience = keep, order.patience
        self._directory = Path(directory or tempfile.mkdtemp(prefix="allranks-"))
        if directory is None:
            (self._directory / "profile").mkdir()  # the engines' own
            if shutil.disk_usage(self._directory).free < ROOM:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self._directory))
            self._say(Prepared(str(self._directory), **description()))
        if keep:
            self._also_remove = Path(order.also_remove) if order.also_remove else None
            # In a folder only this user can enter.
            self._listener = socket.socket(socket.AF_UNIX)
            self._listener.bind(str(self._directory / "control"))
            self._listener.listen()
        if order.controller is not None:
            self._controller = Controller(self._children, order.controller, self._directory / "controller.log")
        if FORK:
            from . import engine  # noqa: F401

            gc.collect()
            gc.freeze()  # else the first collection in each rank would copy all these pages

    def _start(self, ranks: Sequence[RankConfig]) -> None:
        for config in ranks:
            name = f"rank {config.rank}"
            theirs = self._holder.channel(name)
            config.holder = theirs.fileno()
            process = None if FORK else start.spawned_rank(config)
            pid = start.forked_rank(config, self._drop) if process is None else process.pid
            theirs.close()
            self._children.add(name, pid, process)
            self._say(Started(config.rank, pid))

    def _launch(self, order: Launch) -> None:
        join = Path(order.join)
        write_private(join, json.dumps({"ranks": [asdict(config) for config in order.ranks]}))
        process = start.launcher(order.command, order.env, join.parent / "launcher.log")
        self._children.add(LAUNCHER, process.pid, process)
        self._say(Launched(process.pid))

    def _forget(self, uuids: Sequence[str]) -> None:
        if self._controller is not None:
            self._controller.forget(uuids)

    def _offer(self, order: Offer) -> None:
        """Lay the settings of this host's ranks where a launcher's processes find them (see `offered`)."""
        folder = offered(order.cluster)
        make_private(folder)
        for config in order.ranks:
            config.directory = str(folder / f"rank-{config.rank}")
            write_private(folder / f"{config.rank}.json", json.dumps(asdict(config)))
        self._also_remove = folder
        (folder / "profile").mkdir(exist_ok=True)

    def _drop(self) -> None:
        """In a forked rank: close what is the host process's alone."""
        for descriptor in {self._wake_read, self._wake_write, self._protocol, self._input} - {0, -1}:
            os.close(descriptor)
        self._holder.close()
        if self._listener is not None:
            self._listener.close()
        if self._controller is not None:
            self._controller.close_input()

    def _tell_end(self, ended: Ended) -> None:
        self._holder.ended(ended.name)
        unread = self._holder.unread(ended.name)
        log = last_words(self._directory, ended.name, unread) if self._directory is not None else ""
        again = ended.name == CONTROLLER and self._controller is not None and self._controller.again(ended.code)
        self._say(replace(ended, log=log, replaced=again))

    def _end(self) -> None:
        """End every process and file of this host's, then oneself."""
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        self._children.end()
        if self._controller is not None:
            self._controller.kill()
        if self._directory is not None:
            shutil.rmtree(self._directory, ignore_errors=True)
        if self._also_remove is not None and self._also_remove.is_dir():
            shutil.rmtree(self._also_remove, ignore_errors=True)
        elif self._also_remove is not None:
            self._also_remove.unlink(missing_ok=True)
        self._say(Gone())
        if os.getpgrp() == os.getpid():
            os.killpg(0, signal.SIGKILL)  # what cells have started, as a kernel does that shuts down
        EXIT(0)


def _if_running(pid: int) -> int:
    """The pid if that process, which this one did not start, still runs; 0 otherwise."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return 0
    except PermissionError:
        pass  # it runs, as another user
    return pid


def _read(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, 1 << 16)
    except OSError:  # a connection that was reset
        return b""


if __name__ == "__main__":
    HostProcess().run()
