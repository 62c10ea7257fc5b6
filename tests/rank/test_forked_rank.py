"""A rank that is forked off the host process."""

from __future__ import annotations

import gc
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from allranks.host_process import host
from allranks.rank.process import import_engine

HOST_PROCESS = """
import os, signal, sys
from types import SimpleNamespace
from allranks.host_process import start_processes

fork = os.fork

def ended_at_once():
    if (pid := fork()) == 0:
        os.kill(os.getpid(), signal.SIGTERM)
    return pid

os.fork = ended_at_once
signal.signal(signal.SIGTERM, lambda *_: print("the host process ends all ranks", flush=True))
pid = start_processes.forked_rank(SimpleNamespace(directory=sys.argv[1]), lambda: None)
print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
os.kill(os.getpid(), signal.SIGTERM)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="ranks are forked on Linux")
def test_one_that_is_ended_as_it_begins_ends_no_other(tmp_path: Path) -> None:
    command = [sys.executable, "-c", HOST_PROCESS, str(tmp_path / "rank-0")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.stdout.splitlines() == ["-15", "the host process ends all ranks"], done.stderr


def test_the_host_process_freezes_what_it_imported_without_a_collection(monkeypatch: pytest.MonkeyPatch) -> None:
    did = list[str]()
    monkeypatch.setattr(host, "FORK", True)
    monkeypatch.setattr(import_engine, "import_engine", lambda: did.append("import"))
    monkeypatch.setattr(gc, "freeze", lambda: did.append("freeze"))
    monkeypatch.setattr(gc, "collect", lambda: did.append("collect"))
    process: Any = SimpleNamespace(_imported=False)
    for _ in range(2):
        host.HostProcess._import_for_ranks(process)
    assert did == ["import", "freeze"]
