"""Which version of macOS this is, as the list of proven versions has it."""

from __future__ import annotations

import platform
import subprocess

import pytest

from allranks.machine.jaccl_systems import macos_version


def run_on(version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "mac_ver", lambda: (version, ("", "", ""), "arm64"))


@pytest.mark.parametrize(("version", "short"), [("26.3.1", "26.3"), ("26.4", "26.4"), ("", "")])
def test_the_first_two_parts_count(version: str, short: str, monkeypatch: pytest.MonkeyPatch) -> None:
    run_on(version, monkeypatch)
    assert macos_version() == short


def test_a_python_for_an_older_sdk_does_not_take_all_versions_for_one(monkeypatch: pytest.MonkeyPatch) -> None:
    run_on("16.0", monkeypatch)
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: subprocess.CompletedProcess([], 0, "26.3.1\n", ""))
    assert macos_version() == "26.3"
