"""The doctor on this machine alone, by its magic, and what it makes of a Mac's answers. Hosts: tests/hosts."""

from __future__ import annotations

import pytest

from allranks import doctor
from allranks.errors import UsageError
from allranks_backends.doctor import Asked, HostFacts
from allranks_backends.doctor._gpus import gpus
from allranks_backends.doctor._software import same_versions
from allranks_backends.doctor.facts import facts_of
from tests.notebook import Notebook

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
    assert "Nothing wrong was found on localhost." in cell.mime("text/plain")[0]
    assert "Checked: Python and the packages" in cell.mime("text/html")[0]
    wrong = kernel.ok("%distributed doctor --memory 900000G")
    assert "more hosts, or a smaller or quantized model" in wrong.mime("text/plain")[0]
    assert "<table" in wrong.mime("text/html")[0] and "✗ error" in wrong.mime("text/html")[0]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("--backend rnig", "Did you mean --backend ring?"),
        ("--memory lots", "'lots' is no size"),
        ("--hosts a -n 2", "not allowed with argument"),
        ("--hostfile nowhere.json", "does not exist"),
    ],
)
def test_a_slip_is_a_sentence(kernel: Notebook, line: str, said: str) -> None:
    cell = kernel.run(f"%distributed doctor {line}")
    assert said in cell.all and "Traceback" not in cell.all


def test_from_python() -> None:
    diagnosis = doctor()
    assert diagnosis.ok and repr(diagnosis).startswith("Nothing wrong was found on localhost.")
    with pytest.raises(UsageError, match="no backend"):
        doctor(backend="rnig")


def test_a_package_from_source_here_is_missed_where_another_is_installed() -> None:
    """As `up` does, which refuses it."""
    there = {"python": "3.12.1", "executable": "/opt/python", "packages": {"allranks": "0.9", "mlx": "0.31"}}
    host = HostFacts("box", False, python=there)
    (finding,) = same_versions([host], Asked(versions={"python": "3.12.3", "allranks": "", "mlx": "0.31"}))
    assert finding.what == "Allranks is 0.9 there and from source here."
    assert finding.mend == "install allranks there from the source that this notebook runs" and not finding.at
    (finding,) = same_versions([host], Asked(versions={"python": "3.12.3", "allranks": "", "mlx": "0.32"}))
    assert finding.mend == "/opt/python -m pip install mlx==0.32" and finding.at == "box"


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
    assert said == ([] if left is None else [f"CUDA_VISIBLE_DEVICES leaves {left} of its 2 GPUs."])


def test_what_cannot_be_asked_stays_unknown() -> None:
    known = facts_of("mac1", False, lambda _: "", lambda _: "", (0.0, 1.0))
    assert known["memory"] is None and known["disk"] is None and known["python"] is None and known["skew"] == 0.0
    memory = facts_of("mac1", False, lambda name: VM_STAT if name == "memory" else "", lambda _: "", (0.0, 1.0))
    assert memory["memory"] == (549755813888, 3030 * 16384)
