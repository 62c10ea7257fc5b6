"""The host process: one on each host, or one for each process that has joined from there (`hosts.joined_host`).

It starts the ranks, or a launcher that starts them, reports how its child processes ended (which only a parent knows
exactly), and ends the ranks with the notebook. It exchanges JSON lines over its standard input and output, or over a
Unix socket to which a login connects (`login_relay`). A head that disconnects may come back: everything is ended when
the head's lease has expired, or at once without a lease.

It starts with only the standard library and imports other packages when a request needs them, so that it can report a
missing package. It has one thread, so that on Linux it can import the modules that all ranks need and then fork the
ranks: four ranks cost one import instead of four.
"""

from __future__ import annotations

import errno
import gc
import json
import os
import resource
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path

from allranks.machine.describe_host import description
from allranks.machine.lease import BUSY_STATUS, LOOK_EVERY, seconds_left
from allranks.machine.made_environments import use_environment
from allranks.machine.private_files import SHARED_MEMORY, last_words, make_private, offered, open_log, write_private
from allranks.machine.protect_from_cleaners import KeptFromCleaners
from allranks.machine.shortages import FILES
from allranks.messages.host_messages import (
    Alive,
    DescribeCluster,
    End,
    Ended,
    Forget,
    Gone,
    Heard,
    HostAnswer,
    HostOrder,
    Keep,
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
)
from allranks.rank.world.held_sockets import Holder

from . import start_processes
from .child_processes import CONTROLLER, LAUNCHER, SAVER, Children, end_launched
from .controller_child import ControllerChild
from .describe_for_shell import Description
from .head_connection import HeadConnection
from .record_login import write_login
from .start_processes import EXIT

FORK = sys.platform == "linux"
"""Whether ranks are forked: on macOS, libraries do not survive a fork without exec."""
LOOPBACK_WITHIN = 3.0
"""Timeout, in seconds, for a loopback connection to this host; ranks reach their tunnels over loopback."""
SAVER_RUNS = 2
"""Attempts to save variables before an expired lease ends the ranks; the second is made one lease later."""
ROOM = 8 << 20
"""Bytes that must be free for the ranks' settings and logs."""


class HostProcess:
    """The host process. `login` is the pid of the sshd through which the head has logged in; None without a login."""

    def __init__(self, login: int | None = None) -> None:
        self._controller: ControllerChild | None = None
        self._directory: Path | None = None
        self._wake_read, self._wake_write = os.pipe()
        os.set_blocking(self._wake_write, False)
        self._head = HeadConnection()
        self._say = self._head.say
        self._children = Children(self._tell_end, self._say)
        self._login = login
        self._ended: list[Ended] = []
        self._holder = Holder()
        self._description = Description()
        self._cleaners = KeptFromCleaners()
        self._also_remove: set[Path] = set()
        self._lease: float | None = 0.0
        self._longer = 0.0
        self._saver: list[str] = []
        self._saver_says = ""
        self._saver_runs = 0
        """Attempts to run the saver, including failed starts, but without attempts that found a cell running."""
        self._saver_ended_at = 0.0
        self._uses = use_environment()
        self._imported = False

    def run(self) -> None:
        signal.set_wakeup_fd(self._wake_write, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C in a terminal reaches the whole group; ranks handle it
        signal.signal(signal.SIGTERM, lambda *_: self._end())
        while True:
            self._describe()
            limits = self._head.look_within(), self._close_held(), self._left()
            within = min([self._cleaners.use(self._folders), *(each for each in limits if each is not None)])
            # List the descriptors last, since the calls above may close some.
            watched = [*self._head.watched(), self._wake_read, *self._holder.watched()]
            ready, _, _ = select.select(watched, [], [], within)
            self._holder.take(ready)
            if self._wake_read in ready:
                os.read(self._wake_read, 4096)
                self._children.reap()
            for line in self._head.lines(ready):
                self._handle(line)
            if self._head.is_called(ready):
                self._head.accept()
                head, received, suspended = self._head.head, self._head.received, sorted(self._children.suspended)
                self._say(Present(self._children.pids, self._ended, head, received, suspended))

    def _describe(self) -> None:
        try:
            self._description.update(self._folders, self._children.pids, self._lease, self._head.away_since)
        except Exception:  # ranks keep running even if they cannot be listed
            self._say(Trouble(traceback.format_exc()))

    def _close_held(self) -> float | None:
        """Close held sockets that are due or, if no head can unblock neighbours, all sockets of ended processes.

        Returns the seconds until the next sockets are due; None if there are none.
        """
        return self._holder.close_due(now=self._head.away_since is not None)

    def _left(self) -> float | None:
        """Seconds until the lease is next checked (None: never). If it has expired, run the saver or end everything."""
        away = self._head.away_since
        if away is None or self._lease is None:
            return None
        if SAVER in self._children.pids:
            return LOOK_EVERY
        saves = bool(self._saver) and self._saver_runs < SAVER_RUNS
        lease = self._lease if saves else self._lease + self._longer
        left = seconds_left(max(away, self._saver_ended_at), lease, self._folders)
        if left > 0:
            return left
        if not saves:
            self._end()
        self._run_saver()
        return LOOK_EVERY

    def _run_saver(self) -> None:
        """Start the saver, which saves the ranks' variables and then ends the cluster; if it fails, `_left` retries."""
        self._saver_runs += 1
        self._saver_ended_at = time.time()
        try:
            with open(self._saver_says, "ab") as file:
                # In a session of its own, so that it continues after this process has ended.
                saver = subprocess.Popen(
                    self._saver, stdin=subprocess.DEVNULL, stdout=file, stderr=file, start_new_session=True
                )
        except OSError:
            self._say(Trouble(traceback.format_exc()))
        else:
            self._children.add(SAVER, saver.pid, saver)

    @property
    def _folders(self) -> list[Path]:
        """All folders and files of the cluster on this host."""
        return [folder for folder in (self._directory, *sorted(self._also_remove)) if folder is not None]

    def _handle(self, line: bytes) -> None:
        try:
            order, number, serial = read_order(line)
            if not self._head.is_new(serial):
                return
            answer = self._carry_out(order)
            if number is not None:
                self._say(replace(answer or HostAnswer(0), number=number))
        except Exception:
            self._say(Trouble(traceback.format_exc()))

    def _carry_out(self, order: HostOrder) -> HostAnswer | None:
        match order:
            case Prepare():
                self._prepare(order)
            case Keep():
                self._keep(order)
            case DescribeCluster():
                self._description.take(order)
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
                from allranks.machine.tcp_ports import free_ports

                return HostAnswer(0, ports=free_ports(order.count))
            case End():
                self._end()
            case Alive():
                self._say(Heard(self._head.received, self._head.head))
        return None

    def _prepare(self, order: Prepare) -> None:
        directory, self._head.patience = order.directory, order.patience
        self._directory = Path(directory or tempfile.mkdtemp(prefix="allranks-"))
        if directory is None:
            (self._directory / "profile").mkdir()  # for the engines
            if shutil.disk_usage(self._directory).free < ROOM:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self._directory))
            _refuse_if_unable()
            self._say(Prepared(str(self._directory), **description()))
        if self._login is not None:
            write_login(self._directory, self._login)
            log = open_log(self._directory / "host.log")
            for descriptor in (1, 2):  # this process may outlive the login
                os.dup2(log, descriptor)
            os.close(log)
        if order.controller is not None:
            self._controller = ControllerChild(self._children, order.controller, self._directory / "controller.log")
        if order.forks:
            self._import_for_ranks()

    def _import_for_ranks(self) -> None:
        """Import, once, the modules that forked ranks share."""
        if FORK and not self._imported:
            from allranks.rank.process.import_engine import import_engine

            import_engine()
            # Otherwise the first collection in each rank would copy all these pages. No collection before it: it would
            # look at each object of the imports, while the ranks wait.
            gc.freeze()
            self._imported = True

    def _keep(self, order: Keep) -> None:
        assert self._directory is not None
        self._lease, self._longer = order.lease, order.longer
        self._saver, self._saver_says = order.saver, order.says
        if SAVER not in self._children.pids:  # a notebook sent this request, not the saver
            self._saver_runs = 0
        if order.also_remove is not None:
            self._also_remove.add(Path(order.also_remove))
        self._head.listen(self._directory / "control")

    def _start(self, ranks: Sequence[RankConfig]) -> None:
        self._import_for_ranks()
        for config in ranks:
            name = f"rank {config.rank}"
            theirs = self._holder.channel(name)
            config.holder = theirs.fileno()
            process = None if FORK else start_processes.spawned_rank(config)
            pid = start_processes.forked_rank(config, self._drop) if process is None else process.pid
            theirs.close()
            self._children.add(name, pid, process)
            self._say(Started(config.rank, pid))

    def _launch(self, order: Launch) -> None:
        self._share_memory(order.ranks)
        join = Path(order.join)
        write_private(join, json.dumps({"ranks": [asdict(config) for config in order.ranks]}))
        process = start_processes.launcher(order.command, order.env, join.parent / "launcher.log")
        self._children.add(LAUNCHER, process.pid, process)
        self._say(Launched(process.pid))

    def _share_memory(self, ranks: Sequence[RankConfig]) -> None:
        """Give the ranks a folder for their shared memory, since a killed launcher leaves its files behind."""
        if self._directory is None or not os.access(SHARED_MEMORY, os.W_OK):
            return
        folder = SHARED_MEMORY / self._directory.name
        make_private(folder)
        self._also_remove.add(folder)
        for config in ranks:
            config.shared_memory = str(folder)

    def _forget(self, uuids: Sequence[str]) -> None:
        if self._controller is not None:
            self._controller.forget(uuids)

    def _offer(self, order: Offer) -> None:
        """Write the settings of this host's ranks to the folder in which launched processes look (see `offered`)."""
        folder = offered(order.cluster)
        make_private(folder)
        self._share_memory(order.ranks)
        for config in order.ranks:
            config.directory = str(folder / f"rank-{config.rank}")
            write_private(folder / f"{config.rank}.json", json.dumps(asdict(config)))
        self._also_remove.add(folder)
        (folder / "profile").mkdir(exist_ok=True)

    def _drop(self) -> None:
        """In a forked rank: close the descriptors that belong to the host process only."""
        os.close(self._wake_read)
        os.close(self._wake_write)
        self._head.drop()
        self._holder.close()
        if self._controller is not None:
            self._controller.close_input()

    def _tell_end(self, ended: Ended) -> None:
        if ended.name == SAVER:
            self._saver_ended_at = time.time()
            self._saver_runs -= ended.code == BUSY_STATUS
            return
        self._holder.ended(ended.name)
        unread = self._holder.unread(ended.name)
        log = last_words(self._directory, ended.name, unread) if self._directory is not None else ""
        again = ended.name == CONTROLLER and self._controller is not None and self._controller.again(ended.code)
        ended = replace(ended, log=log, replaced=again)
        if ended.name != CONTROLLER:
            self._ended.append(ended)
        self._say(ended)
        if ended.name == LAUNCHER and LAUNCHER not in self._children.pids:  # the launcher may have been killed
            end_launched(self._description.launched)

    def _end(self) -> None:
        """End every process of the cluster on this host, remove its files, then end this process."""
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        self._children.end()
        end_launched(self._description.launched)
        if self._controller is not None:
            self._controller.kill()
        for path in self._folders:
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)
        self._say(Gone())
        if os.getpgrp() == os.getpid():
            os.killpg(0, signal.SIGKILL)  # also processes that cells started, as when a kernel shuts down
        EXIT(0)


def _refuse_if_unable() -> None:
    """Raise OSError if ranks would hang here, since loopback connections fail or the limit of open files is too low.

    The limit is first raised to `FILES`, or as far as this process may raise it.
    """
    files, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    if files < FILES:
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (FILES if most < 0 else min(FILES, most), most))
    if (files := resource.getrlimit(resource.RLIMIT_NOFILE)[0]) < FILES:
        raise OSError(f"a process may open only {files} files")
    try:
        with socket.create_server(("127.0.0.1", 0)) as server:
            socket.create_connection(server.getsockname(), LOOPBACK_WITHIN).close()
    except OSError as error:
        raise OSError(f"loopback passes nothing: {error}") from None


def _if_running(pid: int) -> int:
    """`pid` if that process, which need not be a child, still runs; 0 otherwise."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return 0
    except PermissionError:
        pass  # it runs, as another user
    return pid


if __name__ == "__main__":
    HostProcess(int(sys.argv[1]) if sys.argv[1:] else None).run()
