"""The transports that Open MPI tries in a rank."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from allranks import Cluster
from allranks.rank.world.mpi.mpi_membership import leave_out_ofi

VARIABLE = "OMPI_MCA_btl"
USERS = "btl = self,sm,tcp\n"


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The path of an Open MPI library whose folder, like the home folder, has no configuration file yet."""
    (tmp_path / "home/.openmpi").mkdir(parents=True)
    (tmp_path / "prefix/etc").mkdir(parents=True)
    path = tmp_path / "prefix/lib/libmpi.so.40"
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("MLX_MPI_LIBNAME", str(path))
    monkeypatch.setenv(VARIABLE, "")  # so that it is restored
    monkeypatch.delenv(VARIABLE)
    return path


def test_a_rank_does_not_look_for_networks_of_libfabric(library: Path) -> None:
    leave_out_ofi()
    assert os.environ[VARIABLE] == "^ofi"


def test_transports_of_the_environment_are_kept(library: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "self,tcp")
    leave_out_ofi()
    assert os.environ[VARIABLE] == "self,tcp"


@pytest.mark.parametrize("file", ["home/.openmpi/mca-params.conf", "prefix/etc/openmpi-mca-params.conf"])
def test_transports_of_a_configuration_file_are_kept(library: Path, tmp_path: Path, file: str) -> None:
    (tmp_path / file).write_text("# btl = none\nbtl_tcp_links = 2\nmtl_btl = 3\n")
    leave_out_ofi()
    assert os.environ.pop(VARIABLE) == "^ofi", "none is chosen there"
    (tmp_path / file).write_text(f"btl_tcp_links = 2\n  {USERS}")
    leave_out_ofi()
    assert VARIABLE not in os.environ


@pytest.mark.slow
@pytest.mark.mpi
def test_transports_of_mpirun_s_command_are_kept(mpi2: Cluster, need_mpi: None) -> None:
    there = f"import os\nos.environ[{VARIABLE!r}]"
    assert [rank.value for rank in mpi2.run(there).check().values()] == ["^ofi", "^ofi"]
    with Cluster(2, backend="mpi", name="transports", mpi_args=["--mca btl self,sm,tcp"]) as cluster:
        assert [rank.value for rank in cluster.run(there).check().values()] == ["self,sm,tcp"] * 2
        assert cluster.run("mx.distributed.all_sum(mx.array(1)).item()")[0].value == 2
