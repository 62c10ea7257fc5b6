"""What a release publishes: an sdist and a wheel with all that allranks needs at run time, and no need for npm."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from allranks import __version__
from tests.needs import need

ROOT = Path(__file__).parents[1]
NO_CODE = {
    "allranks_widgets/static/dashboard.js",
    "allranks_widgets/static/dashboard.css",
    "allranks/quickstart.ipynb",
    "allranks/py.typed",
    "allranks/rank/world/mpi/mpi_calls.c",
    "allranks_backends/py.typed",
    "allranks_widgets/py.typed",
}
"""What a wheel must have beside the modules."""

pytestmark = pytest.mark.slow


def build(source: Path, *targets: str, to: Path, **env: str) -> None:
    """Build from a folder of sources, without a network."""
    command = [sys.executable, "-m", "hatchling", "build", "--directory", str(to)]
    command += [word for target in targets for word in ("--target", target)]
    done = subprocess.run(command, cwd=source, env={**os.environ, **env}, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr


def names(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the sdist and the wheel of this checkout."""
    static = ROOT / "widgets" / "allranks_widgets" / "static"
    need((static / "dashboard.js").exists(), "the widgets are not bundled (pip install -e . with a network)")
    folder = tmp_path_factory.mktemp("dist")
    build(ROOT, "sdist", "wheel", to=folder)
    return folder


@pytest.fixture(scope="module")
def wheel(built: Path) -> Path:
    return built / f"allranks-{__version__}-py3-none-any.whl"


def test_the_wheel_has_the_modules_the_javascript_the_notebook_and_the_types(wheel: Path) -> None:
    modules = {
        str(path.relative_to(root))
        for root in (ROOT / "kernel_ext", ROOT / "backends", ROOT / "widgets")
        for path in root.glob("allranks*/**/*.py")
    }
    packed = {name for name in names(wheel) if not name.startswith("allranks-")}
    assert packed == modules | NO_CODE


def test_a_wheel_made_of_the_sdist_is_the_same_and_needs_no_npm(built: Path, wheel: Path, tmp_path: Path) -> None:
    with tarfile.open(built / f"allranks-{__version__}.tar.gz") as archive:
        archive.extractall(tmp_path, filter="data")
    (tmp_path / "bin").mkdir()
    npm = tmp_path / "bin" / "npm"
    npm.write_text(f"#!/bin/sh\ntouch {tmp_path}/asked\nexit 1\n")
    npm.chmod(0o755)
    build(tmp_path / f"allranks-{__version__}", "wheel", to=tmp_path, PATH=f"{npm.parent}:{os.environ['PATH']}")
    assert not (tmp_path / "asked").exists()
    assert names(tmp_path / wheel.name) == names(wheel)


def test_the_demo_runs_from_the_wheel_in_any_folder(wheel: Path, tmp_path: Path) -> None:
    """Before the editable install on the path of the notebook and of its ranks, the wheel is what they import."""
    site, here = tmp_path / "site", tmp_path / "here"
    here.mkdir()
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    env = {**os.environ, "PYTHONPATH": str(site)}
    where = "import allranks, allranks_backends; print(allranks.__file__, allranks_backends.__file__)"
    told = subprocess.run([sys.executable, "-c", where], cwd=here, env=env, capture_output=True, text=True, check=True)
    assert told.stdout.count(str(site)) == 2
    done = subprocess.run(
        [sys.executable, "-m", "allranks", "demo"], cwd=here, env=env, capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr
    assert "quickstart.ipynb ran on 4 ranks" in done.stdout
    assert not any(here.iterdir())
