"""Hosts with their own network and sshd; every test here needs root on Linux."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import pytest

from tests.hosts.apart import Apart
from tests.hosts.cabling import MESH_OF_FOUR
from tests.hosts.lab import Hosts, forbidden, missing, standing
from tests.hosts.macs import Macs
from tests.needs import need

HostsT = TypeVar("HostsT", bound=Hosts)


@pytest.fixture(scope="session")
def hosts3(tmp_path_factory: pytest.TempPathFactory, nothing_left_behind: None) -> Iterator[Hosts]:
    """Three hosts."""
    with _standing(Hosts(3, Path(tmp_path_factory.mktemp("hosts")), f"a{uuid.uuid4().hex[:5]}")) as made:
        yield made


@pytest.fixture
def variables() -> dict[str, str]:
    """What logins to hosts that are `apart` find in their environment; for tests that want more."""
    return {}


@pytest.fixture
def apart(hosts3: Hosts, variables: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Apart]:
    """Three hosts that lack the notebook's working folder, which is empty."""
    work = tmp_path / "my work"
    work.mkdir()
    monkeypatch.chdir(work)
    made = Apart(hosts3, work, tmp_path / "homes", **variables)
    yield made
    made.together()


@pytest.fixture(scope="session")
def _macs(tmp_path_factory: pytest.TempPathFactory, nothing_left_behind: None) -> Iterator[Macs]:
    before = os.environ["PATH"]
    with _standing(Macs(4, Path(tmp_path_factory.mktemp("macs")), f"m{uuid.uuid4().hex[:5]}")) as made:
        os.environ["PATH"] = before  # `macs4` sets it for its tests; others may want other hosts
        yield made


@pytest.fixture
def macs4(_macs: Macs, monkeypatch: pytest.MonkeyPatch) -> Macs:
    """Four Macs, which `become` what a test wants; a full mesh at first."""
    monkeypatch.setenv("PATH", _macs.path)
    _macs.become(MESH_OF_FOUR)
    return _macs


@contextmanager
def _standing(made: HostsT) -> Iterator[HostsT]:
    """Made, known to ssh, and taken down again whatever happens."""
    reason = missing()
    need(reason is None, reason or "")
    if reason := forbidden():
        pytest.skip(reason)
    with standing(made):
        yield made
