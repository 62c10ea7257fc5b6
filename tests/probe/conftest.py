"""The command, in a shell of its own, with a pretended driver."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pytest

from allranks.probe.probe_verdict import Report
from tests.jaccl.conftest import built as built
from tests.jaccl.lab.build import Built
from tests.jaccl.lab.lab import Lab

WITHIN = 240.0


@dataclass
class Run:
    code: int
    out: str
    err: str

    @property
    def report(self) -> Report:
        return msgspec.json.decode(self.out, type=Report)

    def given(self) -> dict[str, str]:
        """The answers by question; ``no answer`` where it was asked."""
        return {each.question: "no answer" if each.failed else each.given for each in self.report.answers}


Probes = Callable[..., Run]


@pytest.fixture
def lab(built: Built) -> Iterator[Lab]:
    """Two pretended Macs with a cable."""
    made = Lab(built, ranks=2)
    yield made
    made.close()


@pytest.fixture
def probe(built: Built, lab: Lab, tmp_path: Path) -> Probes:
    """Run the command with these arguments, and with the lab's environment changed so."""

    def run(*arguments: str, library: str = str(built.verbs), **env: str) -> Run:
        done = subprocess.run(
            command("--library", library, *arguments),
            env=environment(lab, **env),
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=WITHIN,
        )
        return Run(done.returncode, done.stdout, done.stderr)

    return run


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "allranks", "probe", *arguments]


def environment(lab: Lab, **env: str) -> dict[str, str]:
    return {**os.environ, **lab.env(), **env}
