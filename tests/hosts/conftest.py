"""Hosts with their own network and sshd; every test here needs root on Linux."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.hosts.lab import Hosts, forbidden, missing
from tests.needs import need


@pytest.fixture(scope="session")
def hosts3(tmp_path_factory: pytest.TempPathFactory, nothing_left_behind: None) -> Iterator[Hosts]:
    """Three hosts."""
    reason = missing()
    need(reason is None, reason or "")
    if reason := forbidden():
        pytest.skip(reason)
    made = Hosts(3, Path(tmp_path_factory.mktemp("hosts")), f"a{uuid.uuid4().hex[:5]}")
    before = os.environ["PATH"]
    try:
        made.up()
        os.environ["PATH"] = made.path
        yield made
    finally:
        os.environ["PATH"] = before
        made.down()
