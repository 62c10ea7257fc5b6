"""Which cluster `attach` takes over when none is named."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from allranks.errors import NoCluster, UsageError
from allranks.head.world.detached_cluster_file import Detached, detached_file, only_left_behind, read_detached
from allranks.machine.describe_host import installed
from allranks.machine.process_identity import identity_of
from allranks.messages.wire import WIRE_FORMAT


@pytest.fixture
def gone() -> tuple[int, float]:
    """A process that has ended."""
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    identity = process.pid, psutil.Process(process.pid).create_time()
    process.communicate()
    return identity


def described(name: str, notebook: tuple[int, float], **changes: Any) -> Detached:
    return Detached(
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
        **changes,
    )


def written(name: str, notebook: tuple[int, float]) -> None:
    described(name, notebook).write()


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


@pytest.mark.parametrize(
    ("stored", "started"),
    [
        ({}, r"by an older version of allranks, .*Attach with the version that started it"),
        ({"wire": WIRE_FORMAT + 1, "version": "9.1"}, r"by allranks 9\.1, .*\(pip install allranks==9\.1\)"),
        (
            {"wire": WIRE_FORMAT + 1, "version": installed("allranks")},
            r"by another build of allranks .*with that build",
        ),
    ],
)
def test_ranks_whose_messages_this_version_cannot_read_are_not_attached(
    stored: dict[str, Any], started: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(tmp_path))
    described("lab", identity_of(), **stored).write()
    content = json.loads(detached_file("lab").read_text())
    if not stored:  # as a version without these fields wrote it
        content = {name: value for name, value in content.items() if name not in ("wire", "version")}
        detached_file("lab").write_text(json.dumps(content))
    kept = read_detached("lab")
    assert kept is not None
    with pytest.raises(NoCluster, match=f"ranks of the cluster 'lab' were started {started}.*allranks down lab"):
        kept.asked_for()
    detached_file("lab").write_text(json.dumps(content | {"a field of later versions": 1}))
    with pytest.raises(
        NoCluster, match=f"ranks of the cluster 'lab' were started {started}.*rm {detached_file('lab')}"
    ):
        read_detached("lab")


def test_a_file_that_this_version_wrote_and_that_lacks_fields_is_damaged(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(tmp_path))
    described("lab", identity_of(), wire=WIRE_FORMAT).write()
    content = json.loads(detached_file("lab").read_text())
    del content["url"]
    detached_file("lab").write_text(json.dumps(content))
    with pytest.raises(NoCluster, match="is damaged"):
        read_detached("lab")
