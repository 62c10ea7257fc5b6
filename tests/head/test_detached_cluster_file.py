"""Which cluster `attach` takes over when none is named."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from allranks.errors import UsageError
from allranks.head.world.detached_cluster_file import Detached, detached_file, only_left_behind
from allranks.machine.process_identity import identity_of


@pytest.fixture
def gone() -> tuple[int, float]:
    """A process that has ended."""
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    identity = process.pid, psutil.Process(process.pid).create_time()
    process.communicate()
    return identity


def written(name: str, notebook: tuple[int, float]) -> None:
    kept = Detached(
        settings={"attached_as": name},
        directory="",
        engine_info={},
        url="",
        keys=("", ""),
        backend="ring",
        generation=1,
        ranks=[],
        hosts=[],
        logins={},
        notebook=notebook,
        host_process=identity_of(),
    )
    kept.write()


def test_the_only_one_needs_no_name(gone: tuple[int, float], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(tmp_path))
    assert only_left_behind() == "main"
    written("second", gone)
    written("attached", identity_of())
    assert only_left_behind() == "second"
    written("third", gone)
    with pytest.raises(UsageError, match="second, third"):
        only_left_behind()
    ended = json.loads(detached_file("third").read_text()) | {"host_process": gone}
    detached_file("third").write_text(json.dumps(ended))
    assert only_left_behind() == "second"
