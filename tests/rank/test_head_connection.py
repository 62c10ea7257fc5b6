"""The host process's line to a head that goes away and comes back."""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import pytest

from allranks.messages.host_messages import (
    Alive,
    End,
    Ended,
    Heard,
    HostEvent,
    Keep,
    Launch,
    Launched,
    Prepare,
    Prepared,
    Present,
    Signal,
    read_event,
    to_line,
)
from tests.waiting import eventually

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="Unix sockets")

WITHIN = 60.0


class Head:
    """What the notebook does, at the lowest level: lines to a host process, and back."""

    def __init__(self, to: IO[bytes], back: IO[bytes]) -> None:
        self._to, self._back = to, back

    def say(self, *lines: bytes) -> None:
        self._to.write(b"".join(line + b"\n" for line in lines))
        self._to.flush()

    def hear(self, kind: type[Any]) -> Any:
        """The next event of that kind."""
        while True:
            event = self.next()
            if isinstance(event, kind):
                return event

    def next(self) -> HostEvent:
        ready, _, _ = select.select([self._back], [], [], WITHIN)
        assert ready, "nothing came"
        line = self._back.readline()
        assert line, "it has closed"
        return read_event(line)


@contextmanager
def reached(*arguments: str) -> Iterator[Head]:
    """As a login does it."""
    command = [sys.executable, "-m", "allranks.host_process.login_relay", *arguments]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0) as relay:
        assert relay.stdin is not None and relay.stdout is not None
        try:
            yield Head(relay.stdin, relay.stdout)
        finally:
            relay.stdin.close()
            relay.kill()


def test_orders_are_carried_out_once_and_what_ended_is_told_again(tmp_path: Path) -> None:
    with reached() as head:
        head.say(to_line(Prepare()), to_line(Keep(lease=60.0), serial=("notebook", 1)))
        folder = head.hear(Prepared).directory
        join = str(Path(folder) / "join.json")
        launch = Launch(["sh", "-c", f"echo once >> {tmp_path}/ran; exec sleep 600"], {}, [], join)
        head.say(to_line(launch, serial=("notebook", 2)), to_line(launch, serial=("notebook", 2)))
        pid = head.hear(Launched).pid
        head.say(to_line(Alive()))
        assert head.hear(Heard).received == 2
    with reached(folder) as head:
        present = head.next()
        assert isinstance(present, Present)
        assert (present.processes, present.ended, present.received) == ({"launcher": pid}, [], 2)
        assert eventually(lambda: (tmp_path / "ran").exists() and (tmp_path / "ran").read_text())
        head.say(to_line(launch, serial=("notebook", 2)), to_line(Signal(pid, signal.SIGKILL), serial=("notebook", 3)))
        assert head.hear(Ended).pid == pid
    with reached(folder) as head:
        present = head.next()
        assert isinstance(present, Present)
        assert [(each.name, each.pid, each.code) for each in present.ended] == [("launcher", pid, -9)]
        assert (tmp_path / "ran").read_text() == "once\n"
        head.say(b"no order", b"{}", json.dumps({"type": "Ports"}).encode())
        head.say(to_line(Alive()))
        assert head.hear(Heard).received == 3, "junk does not end it"
        head.say(b'{"type": "End", "number": null, "serial": ["notebook", 9], "body": {}}')
        while head._back.readline():
            pass
    assert vanishes(Path(folder))


def test_another_head_counts_its_orders_anew(tmp_path: Path) -> None:
    launch = Launch(["sh", "-c", f"echo once >> {tmp_path}/ran; exec sleep 600"], {}, [], str(tmp_path / "join.json"))
    with reached() as head:
        head.say(to_line(Prepare()), to_line(Keep(lease=60.0), serial=("first", 7)), to_line(Alive()))
        folder = head.hear(Prepared).directory
        assert head.hear(Heard) == Heard(7, "first")
    with reached(folder) as head:
        present = head.next()
        assert isinstance(present, Present) and (present.head, present.received) == ("first", 7)
        head.say(to_line(launch, serial=("second", 1)), to_line(launch, serial=("second", 1)), to_line(Alive()))
        head.hear(Launched)
        assert head.hear(Heard) == Heard(1, "second")
        assert eventually(lambda: (tmp_path / "ran").exists() and (tmp_path / "ran").read_text())
        head.say(to_line(End(), serial=("second", 2)))
        assert vanishes(Path(folder))
    assert (tmp_path / "ran").read_text() == "once\n"


OFTEN = """
from allranks.machine import protect_from_cleaners
from allranks.host_process.host import HostProcess
protect_from_cleaners.EVERY = 0.2
HostProcess().run()
"""


def test_what_lies_unused_for_days_is_kept_from_the_systems_cleaners() -> None:
    command = [sys.executable, "-c", OFTEN]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0) as process:
        assert process.stdin is not None and process.stdout is not None
        head = Head(process.stdin, process.stdout)
        head.say(to_line(Prepare()))
        folder = Path(head.hear(Prepared).directory)
        (folder / "rank-0").mkdir()
        paths = [folder, folder / "profile", folder / "rank-0" / "rank.log", folder / "socket:1"]
        with socket.socket(socket.AF_UNIX) as taken:
            taken.bind(str(paths[-1]))
            paths[2].write_text("")
            old = time.time() - 4 * 86400
            for path in paths[::-1]:
                os.utime(path, (old, old))
            assert eventually(lambda: all(path.stat().st_atime > old + 86400 for path in paths))
            assert paths[2].stat().st_mtime == pytest.approx(old), "it is no sign of a cell that runs"
        head.say(to_line(End()))
        assert vanishes(folder)


def test_a_long_path_is_no_obstacle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    long = tmp_path / ("a" * 60) / ("b" * 60)
    long.mkdir(parents=True)
    monkeypatch.setenv("TMPDIR", str(long))
    with reached() as head:
        head.say(
            to_line(Prepare(), serial=("notebook", 1)), to_line(Keep(60.0), serial=("notebook", 2)), to_line(Alive())
        )
        folder = head.hear(Prepared).directory
        assert head.hear(Heard).received == 2
        assert folder.startswith(str(long))
    with reached(folder) as head:
        assert isinstance(head.next(), Present)
        head.say(to_line(End(), serial=("notebook", 3)))
        assert vanishes(Path(folder))


def test_a_host_process_that_is_gone_is_said_to_be(tmp_path: Path) -> None:
    with reached(str(tmp_path)) as head:
        assert type(head.next()).__name__ == "Gone"


def test_what_nobody_can_attach_to_yet_ends_with_its_login() -> None:
    with reached() as head:
        head.say(to_line(Prepare(), serial=("notebook", 1)))
        folder = Path(head.hear(Prepared).directory)
    assert vanishes(folder)


def test_a_head_that_says_nothing_counts_as_gone() -> None:
    with reached() as head:
        head.say(to_line(Prepare(patience=1.0), serial=("notebook", 1)))
        folder = Path(head.hear(Prepared).directory)
        assert vanishes(folder), "though its connection is open"


def vanishes(folder: Path) -> bool:
    deadline = time.monotonic() + WITHIN
    while folder.exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    return not folder.exists()


def test_another_users_socket_is_no_way_in(tmp_path: Path) -> None:
    with reached() as head:
        head.say(to_line(Prepare()), to_line(Keep(lease=60.0), serial=("notebook", 1)))
        folder = Path(head.hear(Prepared).directory)
        head.say(to_line(Alive()))
        head.hear(Heard)
        assert folder.stat().st_mode & 0o077 == 0
        control = socket.socket(socket.AF_UNIX)
        control.connect(str(folder / "control"))  # the owner gets in, and is the head from now on
        with control, control.makefile("rb") as back:
            assert isinstance(read_event(back.readline()), Present)
            control.sendall(b'{"type": "End", "number": null, "serial": null, "body": {}}\n')
            assert b"Gone" in back.read()
    assert vanishes(folder)
