"""What ssh and a host's shell say, told in words; and answers of a host that come late."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from allranks.errors import CannotStart
from allranks.hosts import host_end
from allranks.hosts.host_end import PipedHost
from allranks.hosts.ssh import differences, login, ssh_failures
from allranks.hosts.ssh.remote import RemoteHost
from allranks.messages.host_messages import Greeting, HostAnswer, Prepare, read_order, to_line
from tests.needs import need, need_tool

PYTHON = "/opt/env/bin/python"


@pytest.mark.parametrize(
    "said",
    [
        f"bash: line 1: {PYTHON}: No such file or directory",
        f"bash: line 1: exec: {PYTHON}: not found",
        f"sh: 1: exec: {PYTHON}: not found",
        f"zsh:1: no such file or directory: {PYTHON}",
        f"zsh:1: command not found: {PYTHON}",
    ],
)
def test_every_shell_says_in_its_own_way_that_there_is_no_python(said: str) -> None:
    assert ssh_failures.explained([said], "mac1", PYTHON).startswith(f"there is no {PYTHON} there")


@pytest.mark.parametrize(
    "said",
    [
        ["/bin/sh: 1: exec: /usr/bin/corkscrew: not found", "Connection closed by UNKNOWN port 65535"],
        ["zsh:1: no such file or directory: /usr/bin/corkscrew", "Connection closed by UNKNOWN port 65535"],
    ],
)
def test_a_proxy_that_is_not_there_is_no_missing_python(said: list[str]) -> None:
    assert "its ProxyJump or ProxyCommand" in ssh_failures.explained(said, "mac1", PYTHON)


def test_what_runs_from_source_is_not_asked_of_pip(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(differences, "versions", lambda: {"python": "3.11.7", "allranks": "", "mlx": "0.32.4"})
    differs = differences.differing({"python": "3.11.2", "allranks": "0.1.0", "mlx": "0.31.0"})
    listing = differences.listing(differs, PYTHON)
    assert "there: install allranks from the same source as this notebook" in listing
    assert f"there: {PYTHON} -m pip install mlx==0.32.4" in listing
    assert "==(from source)" not in listing


def test_what_to_type_for_a_python_in_a_path_with_a_space(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(differences, "versions", lambda: {"python": "3.11.7", "mlx": "0.32.4"})
    python = "/opt/my env/bin/python"
    for said in (
        differences.listing(differences.differing({"python": "3.11.7", "mlx": "0.31.0"}), python),
        ssh_failures.explained([f"{python}: No module named 'allranks'"], "mac1", python),
        ssh_failures.explained(["No module named 'numpy'"], "mac1", python),
    ):
        assert "here: '/opt/my env/bin/python' -m pip install " in said


def test_a_host_with_an_older_allranks_is_told_from_one_without() -> None:
    said = ssh_failures.explained([f"{PYTHON}: No module named allranks.host_process.clusters_here"], "mac1", PYTHON)
    assert "another version of allranks" in said and "--upgrade" in said


SCRIPT = "sleep 1000 & (sleep 1000; true) & echo ready; wait"


@pytest.mark.parametrize("pgrep", [True, False], ids=["with pgrep", "without pgrep"])
def test_what_hangs_is_ended_with_all_that_it_has_started(tmp_path: Path, pgrep: bool) -> None:
    need(pgrep or sys.platform == "linux", "systems without /proc have pgrep")
    for tool in ("sh", "sleep", "grep", "cut", *["pgrep"] * pgrep):
        (tmp_path / tool).symlink_to(need_tool(tool, f"apt install {tool}"))
    with subprocess.Popen(["sh", "-c", SCRIPT], stdout=subprocess.PIPE, text=True) as hangs:
        assert hangs.stdout is not None and hangs.stdout.readline() == "ready\n"
        family = [each := psutil.Process(hangs.pid), *each.children(recursive=True)]
        try:
            assert len(family) >= 3

            def end(parent: int) -> None:
                line = ["/bin/sh", "-c", login._END, "sh", str(hangs.pid), str(parent)]
                subprocess.run(line, env={"PATH": str(tmp_path)}, check=True, timeout=60)

            end(os.getppid())
            assert all(each.is_running() for each in family), "a process of that number, on another host of that name"
            end(os.getpid())
            assert not psutil.wait_procs(family, 60)[1]
        finally:
            for each in family:
                with suppress(psutil.NoSuchProcess):
                    each.kill()


def test_an_answer_that_comes_late_is_not_taken_for_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_end, "ANSWER_WITHIN", 0.3)
    (orders, to_host), (from_host, events) = os.pipe(), os.pipe()

    def late() -> None:
        """A host that answers the first question when it hears the second."""
        asked: list[Any] = []
        with open(orders, "rb") as heard, open(events, "wb") as answers:
            for line in heard:
                asked.append(read_order(line)[1])
                ready = [] if len(asked) == 1 else [(asked[0], [1111])] if len(asked) == 2 else [(asked[2], [3333])]
                for number, ports in ready:
                    answers.write(to_line(HostAnswer(number, ports)) + b"\n")
                    answers.flush()

    threading.Thread(target=late, daemon=True).start()
    with open(from_host, "rb") as reader, open(to_host, "wb") as writer:
        host = PipedHost("mac1", reader, writer)
        host.follow(lambda _event: None)
        for _ in range(2):
            with pytest.raises(CannotStart, match="mac1 did not report free ports"):
                host.ask_ports(1)()
        monkeypatch.setattr(host_end, "ANSWER_WITHIN", 60.0)
        assert host.ask_ports(1)() == [3333]
        writer.close()
        host.wait_end()


@pytest.mark.parametrize("forks", [True, False])
def test_a_host_imports_for_ranks_only_if_it_will_start_them(forks: bool) -> None:
    orders, begun = list[Any](), SimpleNamespace(greeted=False, runs=False)
    connection = SimpleNamespace(
        login=begun, heard=lambda _event: None, order=lambda order, _number: orders.append(order)
    )
    host: Any = RemoteHost.__new__(RemoteHost)
    host._connection, host._changed, host._forks = connection, threading.Condition(), forks
    host._hear(Greeting(10, 9))
    assert [(type(order), order.forks) for order in orders] == [(Prepare, forks)]


@pytest.mark.parametrize(
    ("said", "typed"),
    [
        ("ada@box: Permission denied (publickey).", "ssh-copy-id -p 2222 ada@box"),
        ("REMOTE HOST IDENTIFICATION HAS CHANGED!", "ssh-keygen -R '[box]:2222'"),
        ("Host key verification failed.", "ssh -p 2222 ada@box"),
    ],
)
def test_what_to_type_for_a_host_with_a_port_is_what_ssh_s_programs_take(said: str, typed: str) -> None:
    assert ssh_failures.explained([said], "ada@box:2222", PYTHON).endswith(f": {typed}")
