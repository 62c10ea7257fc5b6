"""What the file of a detached cluster says, and which clusters `attach` takes over."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from allranks.cluster.start_and_end import StartAndEnd
from allranks.cluster_settings import Settings
from allranks.errors import NoCluster, UsageError
from allranks.head.world.attaching import attach
from allranks.head.world.detached_cluster_file import Detached, detached_file, only_left_behind, read_detached
from allranks.machine.describe_host import installed
from allranks.machine.process_identity import identity_of
from allranks.messages.wire import MESSAGE_FORMAT
from allranks.up_options import UpOptions

NO_COMMS: Any = None
"""In place of the comms of widgets: nothing gets as far as using them."""

STORED = Settings(UpOptions(), "python", "python", ".", ".", False, None, None, attached_as="lab").stored()


@pytest.fixture
def gone() -> tuple[int, float]:
    """A process that has ended."""
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    identity = process.pid, psutil.Process(process.pid).create_time()
    process.communicate()
    return identity


def described(name: str, notebook: tuple[int, float], **changes: Any) -> Detached:
    fields: dict[str, Any] = {
        "settings": {"attached_as": name},
        "directory": "",
        "engine_info": {},
        "url": "",
        "keys": ("", ""),
        "backend": "ring",
        "generation": 1,
        "ranks": [],
        "hosts": [],
        "logins": {},
        "notebook": notebook,
        "host_process": identity_of(),
    }
    return Detached(**{**fields, **changes})


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
        ({}, r"an older version of allranks, .* the messages of its ranks\. Attach with that version"),
        (
            {"message_format": MESSAGE_FORMAT + 1, "version": "9.1"},
            r"allranks 9\.1, .* the messages of its ranks\. Attach with that version \(pip install allranks==9\.1\)",
        ),
        (
            {"message_format": MESSAGE_FORMAT + 1, "version": installed("allranks")},
            r"another build of allranks .*Attach with that version",
        ),
        ({"message_format": MESSAGE_FORMAT, "version": "9.1"}, r"allranks 9\.1, .* does not know its options"),
    ],
)
def test_a_cluster_that_this_version_cannot_use_is_not_attached(
    stored: dict[str, Any], started: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(tmp_path))
    described("lab", identity_of(), **stored).write()
    content = json.loads(detached_file("lab").read_text())
    if not stored:  # as a version without these fields wrote it
        content = {name: value for name, value in content.items() if name not in ("message_format", "version")}
        detached_file("lab").write_text(json.dumps(content))
    with pytest.raises(NoCluster, match=f"last notebook of the cluster 'lab' had {started}.*allranks down lab"):
        attach("lab", NO_COMMS)
    assert detached_file("lab").exists()


def test_the_file_of_a_version_with_other_fields_names_that_version(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(tmp_path))
    described("lab", identity_of(), message_format=MESSAGE_FORMAT + 1, version="9.1").write()
    content = json.loads(detached_file("lab").read_text()) | {"a field of later versions": 1}
    detached_file("lab").write_text(json.dumps(content))
    with pytest.raises(NoCluster, match=rf"had allranks 9\.1, .*allranks down lab.*rm {detached_file('lab')}"):
        read_detached("lab")


@pytest.mark.parametrize("format_", [MESSAGE_FORMAT, MESSAGE_FORMAT + 1])
def test_a_cluster_that_has_ended_is_removed_whatever_its_version(
    format_: int, gone: tuple[int, float], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(tmp_path))
    described("lab", gone, host_process=gone, message_format=format_, version="9.1").write()
    with pytest.raises(NoCluster, match="'lab' no longer runs"):
        attach("lab", NO_COMMS)
    assert not detached_file("lab").exists()


def test_clusters_of_other_versions_are_not_offered_for_attach(
    gone: tuple[int, float], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(tmp_path))
    described("lab", gone, message_format=MESSAGE_FORMAT + 1, version="9.1").write()
    with pytest.raises(NoCluster) as raised:
        attach("other", NO_COMMS)
    assert "Available" not in str(raised.value)


def test_the_file_has_the_version_and_message_format_of_its_notebook() -> None:
    described_by: Any = SimpleNamespace
    host = described_by(directory="", engine_info={}, process=identity_of())
    kept = Detached.of(
        settings=described_by(stored=dict),
        plan=described_by(size=0, generation=1, placements=()),
        reached=described_by(here=host, saved=dict),
        lifeline=described_by(url="", keys=("", "")),
        monitor=described_by(ranks=[], backend="ring", breakable=True, not_breakable="", state="whole"),
        owed={},
    )
    assert (kept.message_format, kept.version) == (MESSAGE_FORMAT, installed("allranks"))


def test_a_file_that_this_version_wrote_and_that_lacks_fields_is_damaged(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(tmp_path))
    described("lab", identity_of(), message_format=MESSAGE_FORMAT).write()
    content = json.loads(detached_file("lab").read_text())
    del content["url"]
    detached_file("lab").write_text(json.dumps(content))
    with pytest.raises(NoCluster, match="is damaged"):
        read_detached("lab")


@pytest.mark.parametrize(
    ("changes", "how"),
    [
        ({"message_format": MESSAGE_FORMAT + 1}, r", but the last notebook .* allranks 9\.1, .*Or start another"),
        ({"settings": STORED}, r": take it over .* or start another"),
    ],
)
def test_up_with_the_same_name_advises_attach_only_where_it_works(
    changes: dict[str, Any], how: str, gone: tuple[int, float], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(tmp_path))
    described("lab", gone, **{"message_format": MESSAGE_FORMAT, "version": "9.1", **changes}).write()
    live: Any = SimpleNamespace(settings=SimpleNamespace(name="lab", options=SimpleNamespace(keep=False)))
    unused: Any = None
    with pytest.raises(UsageError, match=rf"'lab' is already up \(.*\){how} .*--name"):
        StartAndEnd(live, unused, unused)._refuse_if_left_behind()
