"""The transports that Open MPI tries in a rank."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from allranks import Cluster
from allranks.rank.world.mpi import mpi_membership
from allranks.rank.world.mpi.mpi_membership import leave_out_ofi

VARIABLE = "OMPI_MCA_btl"
USERS = "btl = self,sm,tcp\n"


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The path of an Open MPI library whose folder, like the home folder, has no configuration file yet."""
    for folder in ("home/.openmpi", "prefix/etc", "opal/etc", "etc/openmpi-x86_64"):
        (tmp_path / folder).mkdir(parents=True)
    path = tmp_path / "prefix/lib/libmpi.so.40"
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("MLX_MPI_LIBNAME", str(path))
    monkeypatch.setenv("OPAL_PREFIX", str(tmp_path / "opal"))
    here = [each.replace("/etc/openmpi*", f"{tmp_path}/etc/openmpi*") for each in mpi_membership.CONFIGURED_IN]
    monkeypatch.setattr(mpi_membership, "CONFIGURED_IN", [each for each in here if not each.startswith("/opt")])
    for name in [VARIABLE, *(each for each in os.environ if each.startswith("OMPI_MCA_"))]:
        monkeypatch.setenv(name, "")  # so that it is restored
        monkeypatch.delenv(name)
    return path


def test_a_rank_does_not_look_for_networks_of_libfabric(library: Path) -> None:
    leave_out_ofi()
    assert os.environ[VARIABLE] == "^ofi"


def test_transports_of_the_environment_are_kept(library: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "self,tcp")
    leave_out_ofi()
    assert os.environ[VARIABLE] == "self,tcp"


@pytest.mark.parametrize("name", ["OMPI_MCA_btl_ofi_mode", "OMPI_MCA_mca_base_param_files", "OMPI_MCA_mca_param_files"])
def test_what_the_environment_asks_of_ofi_and_other_files_are_heeded(
    library: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv(name, "2")
    leave_out_ofi()
    assert VARIABLE not in os.environ


def test_a_library_without_a_path_has_no_file_of_its_own(
    library: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "prefix/etc/openmpi-mca-params.conf").write_text(USERS)
    monkeypatch.chdir(tmp_path / "prefix")
    monkeypatch.setenv("MLX_MPI_LIBNAME", "libmpi.so.40")
    leave_out_ofi()
    assert os.environ[VARIABLE] == "^ofi", "the working folder is none of Open MPI's"


@pytest.mark.parametrize(
    "file",
    [
        "home/.openmpi/mca-params.conf",
        "prefix/etc/openmpi-mca-params.conf",
        "opal/etc/openmpi-mca-params.conf",
        "etc/openmpi-x86_64/openmpi-mca-params.conf",
    ],
)
def test_transports_of_a_configuration_file_are_kept(library: Path, tmp_path: Path, file: str) -> None:
    (tmp_path / file).write_text("# btl = none\nbtl_tcp_links = 2\nmtl_btl = 3\n")
    leave_out_ofi()
    assert os.environ.pop(VARIABLE) == "^ofi", "none is chosen there"
    (tmp_path / file).write_text(f"btl_tcp_links = 2\n  {USERS}")
    leave_out_ofi()
    assert VARIABLE not in os.environ


@pytest.mark.slow
@pytest.mark.mpi
def test_ranks_leave_it_out_unless_mpirun_is_told_otherwise(
    need_mpi: None, mpi2: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = f"import os\nos.environ.get({VARIABLE!r})"
    library = mpi2.run("import os\nos.environ['MLX_MPI_LIBNAME']").check()[0].value
    monkeypatch.setenv("MLX_MPI_LIBNAME", library)
    if VARIABLE not in os.environ:
        monkeypatch.setenv(VARIABLE, "")  # so that it is restored
        monkeypatch.delenv(VARIABLE)
    leave_out_ofi()
    assert [rank.value for rank in mpi2.run(there).check().values()] == [os.environ.get(VARIABLE)] * 2
    with Cluster(2, backend="mpi", name="transports", mpi_args=["--mca btl self,sm,tcp"]) as cluster:
        assert [rank.value for rank in cluster.run(there).check().values()] == ["self,sm,tcp"] * 2
        assert cluster.run("mx.distributed.all_sum(mx.array(1)).item()")[0].value == 2
