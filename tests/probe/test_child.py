"""A process that asks may hang, crash or write anything: what it has answered by then is kept."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import msgspec
import psutil
import pytest

from allranks.messages.events.probe_answers import ProbeAnswer, ProbeCheck
from allranks.probe.ask_all import CONFORMANCE_MODULE
from allranks.probe.child import Child
from allranks.probe.world import ProbedWorld
from tests.waiting import eventually

LONG = 120.0
ANSWER = '{"question": "flush", "given": "yes"}'
HANGS = f"""
import os, signal, subprocess, sys, time
signal.signal(signal.SIGINT, signal.SIG_IGN)
own = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
with open("pids", "w") as file:
    file.write(f"{{os.getpid()}} {{own.pid}}")
print('{ANSWER}', flush=True)
time.sleep(600)
"""


class Clock:
    """What a module takes for `time`."""

    def __init__(self) -> None:
        self.ahead = 0.0

    def monotonic(self) -> float:
        return time.monotonic() + self.ahead


def answers(
    code: str, folder: Path, monkeypatch: pytest.MonkeyPatch, then: Callable[[], None] = lambda: None
) -> tuple[list[ProbeAnswer], str]:
    """What it answers, and what its trouble was; `then` is done after each answer."""
    (folder / "asks_something.py").write_text(code)
    monkeypatch.chdir(folder)
    child, found = Child(ProbeAnswer, ["asks_something"], LONG, grace=0.1), []
    with closing(child.lines()) as lines:
        for answer in lines:
            found.append(answer)
            then()
    return found, child.trouble


@pytest.mark.parametrize(
    ("then", "trouble"),
    [
        ("", ""),
        ("sys.exit('no device')", "the process that asked ended with exit code 1: no device"),
        ("os.kill(os.getpid(), signal.SIGSEGV)", "the process that asked was ended by SIGSEGV"),
    ],
)
def test_what_was_said_before_the_end_is_kept(
    then: str, trouble: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = f"import os, signal, sys\nprint('[rdma] a library writes this')\nprint('{ANSWER}', flush=True)\n{then}"
    assert answers(code, tmp_path, monkeypatch) == ([ProbeAnswer("flush", "yes")], trouble)


def test_one_that_hangs_is_killed_with_what_it_has_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr("allranks.probe.child.time", clock)
    found, trouble = answers(HANGS, tmp_path, monkeypatch, lambda: setattr(clock, "ahead", LONG))
    assert (found, trouble) == ([ProbeAnswer("flush", "yes")], f"no answer within {LONG:g} s")
    pids = [int(pid) for pid in (tmp_path / "pids").read_text().split()]
    assert eventually(lambda: not any(map(_runs, pids)))


def test_a_world_whose_time_is_over_leaves_no_process() -> None:
    """Or so the end of the test run says."""
    world = msgspec.json.encode(ProbedWorld("ring", "ring")).decode()
    child = Child(ProbeCheck, [CONFORMANCE_MODULE, world], 2.0, grace=LONG)
    with closing(child.lines()) as lines:
        found = list(lines)
    assert child.trouble == "no answer within 2 s" and not [each for each in found if each.result == "failed"]


def _runs(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
