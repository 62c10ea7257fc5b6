"""The registry keeps one contract for all backends, and auto chooses as the documentation says."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from dataclasses import replace

import pytest

from allranks_backends.machines.platform import import_advice, this_platform
from allranks_backends.plan import Host, Placement, Platform, Site
from allranks_backends.protocol import WORLD_VARIABLES, BackendError
from allranks_backends.registry import BACKENDS, can_run, cannot_run, choose, get_backend
from tests.backends.one_site import on_one

LAPTOP = Platform("Linux", "6.1", {"ring": True, "mpi": True, "jaccl": False, "nccl": False}, mlx="0.32.4", mpirun="m")
GPUS = replace(LAPTOP, available={**LAPTOP.available, "nccl": True}, cuda_devices=4)
MAC = Platform("Darwin", "26.2", {"ring": True, "mpi": False, "jaccl": True, "nccl": False}, mlx="0.32.4")

# mlx's own table, by what raises and what works (mlx 0.32).
WITHOUT = {
    "ring": {"sum_scatter", "split"},
    "jaccl": {"split"},
    "jaccl-ring": {"split"},
    "mpi": {"sum_scatter"},
    "nccl": {"send", "recv", "recv_like"},
}
EVERY = {"all_sum", "all_max", "all_min", "all_gather", "sum_scatter", "send", "recv", "recv_like", "split"}


def test_five_backends_go_by_their_names():
    assert list(BACKENDS) == ["ring", "jaccl", "jaccl-ring", "mpi", "nccl"]
    assert all(backend.name == name for name, backend in BACKENDS.items())
    assert [name for name, backend in BACKENDS.items() if backend.neighbours_only] == ["ring", "jaccl-ring"]
    assert [name for name, backend in BACKENDS.items() if backend.reform == "in place"] == ["ring"]
    assert [name for name, backend in BACKENDS.items() if backend.reform == "restart"] == ["nccl"]
    assert [name for name, backend in BACKENDS.items() if backend.launcher == "mpirun"] == ["mpi"]
    assert [name for name, backend in BACKENDS.items() if backend.breakable] == ["ring"]
    assert [name for name, backend in BACKENDS.items() if backend.joins_in_turn] == ["ring"]
    assert [name for name, backend in BACKENDS.items() if backend.connections_per_link] == ["ring"]
    assert [backend.needs for backend in BACKENDS.values()] == ["network", "rdma", "rdma", "network", "cuda"]
    assert [backend.init_name for backend in BACKENDS.values()] == ["ring", "jaccl", "jaccl", "mpi", "nccl"]


@pytest.mark.parametrize("name", WITHOUT)
def test_operations_are_those_of_mlx(name):
    assert BACKENDS[name].operations == EVERY - WITHOUT[name]


@pytest.mark.parametrize("name", BACKENDS)
def test_all_that_a_wiring_sets_is_known(name):
    """A rank that is rewired removes WORLD_VARIABLES first: nothing that names a world may be missing there."""
    backend = BACKENDS[name]
    hosts = [Host("box", rdma=((), ("en2",))), Host("box", rdma=(("en3",), ()))]
    ports = backend.ports(1, 1)
    plan = backend.plan(
        [Placement(i, host, i, tuple(range(4000 + i, 4000 + i + ports))) for i, host in enumerate(hosts)]
    )
    neither = {"CUDA_VISIBLE_DEVICES", "MLX_MPI_LIBNAME", "DYLD_LIBRARY_PATH"}
    neither |= {"MPI4PY_RC_INITIALIZE", "MPI4PY_RC_FINALIZE"}
    assert set(backend.wiring(plan, 1).env) - neither <= WORLD_VARIABLES


@pytest.mark.parametrize(("typed", "meant"), [("rign", "ring"), ("JACCL", "jaccl"), ("jaccl_ring", "jaccl-ring")])
def test_a_mistyped_name_is_guessed(typed, meant):
    with pytest.raises(BackendError, match=rf"Did you mean --backend {meant}\? The backends are ring, jaccl,"):
        get_backend(typed)


def test_a_strange_name_is_not_guessed():
    with pytest.raises(BackendError, match=r"^unknown backend 'gloo'\. The backends are"):
        get_backend("gloo")


def test_a_refusal_says_why_and_what_runs_instead():
    assert cannot_run("ring", on_one(LAPTOP, 4)) is None
    said = str(cannot_run("jaccl", on_one(LAPTOP, 4)))
    assert "and this is Linux. ring and mpi can run here: %distributed up -n 4 --backend ring" in said
    assert "ring, mpi and nccl can run here" in str(cannot_run("jaccl", on_one(GPUS, 4)))
    nothing = replace(LAPTOP, available={"ring": False}, mpirun=None)
    assert "No other backend can run here" in str(cannot_run("ring", on_one(nothing, 2)))


@pytest.mark.parametrize(
    ("platform", "size", "rdma", "name", "why"),
    [
        (LAPTOP, 4, {}, "ring", "no CUDA devices or RDMA links"),
        (GPUS, 4, {}, "nccl", "every rank has a CUDA device"),
        (GPUS, 8, {}, "ring", "4 devices are there for 8 ranks"),
        (MAC, 4, {}, "ring", "no CUDA devices or RDMA links"),
        (MAC, 4, {"rdma_mesh": True}, "jaccl", "joins every pair"),
        (MAC, 4, {"rdma_ring": True}, "jaccl-ring", "in a ring"),
        (MAC, 9, {"rdma_mesh": True}, "jaccl-ring", "in a ring"),
        (replace(MAC, release="15.5"), 4, {"rdma_mesh": True}, "ring", "this is macOS 15.5"),
    ],
)
def test_auto(platform, size, rdma, name, why):
    chosen, because = choose(on_one(platform, size), **rdma)
    assert chosen == name
    assert why in because


def test_hosts_are_asked_for_the_ranks_they_run_and_not_the_notebook():
    """A Mac notebook starts NCCL ranks on Linux hosts."""
    notebook = Site("localhost", MAC, 0)
    gpu1, gpu2 = (Site(name, GPUS, 4, local=False) for name in ("gpu1", "gpu2"))
    assert choose([notebook, gpu1, gpu2]) == ("nccl", "nccl, since every rank has a CUDA device.")
    assert cannot_run("nccl", [notebook, gpu1, gpu2]) is None
    bare = replace(gpu2, platform=LAPTOP)
    name, why = choose([notebook, gpu1, bare])
    assert name == "ring" and why.endswith("(gpu2).")
    said = str(cannot_run("nccl", [notebook, gpu1, bare]))
    assert said.startswith("Backend nccl cannot run on gpu2: ")
    assert said.endswith("ring can run on these hosts: --backend ring")
    assert "Linux" in str(cannot_run("jaccl", [notebook, gpu1]))


def test_mpi_is_asked_also_of_the_notebook_which_runs_mpirun():
    remote = Site("gpu1", replace(LAPTOP, available={}), 2, local=False)
    assert "mpi" in can_run([Site("localhost", LAPTOP, 0), remote])
    assert "cannot run here" in str(cannot_run("mpi", [Site("localhost", MAC, 0), remote]))
    without = replace(remote, platform=replace(LAPTOP, mpirun=None))
    assert "cannot run on gpu1" in str(cannot_run("mpi", [Site("localhost", LAPTOP, 0), without]))


def test_this_platform_tells_the_truth_and_joins_nothing(mlx, tmp_path):
    """In a process of its own, with a hostfile set up so that joining a world would fail."""
    code = "from allranks_backends.machines.platform import this_platform as ask; ask(); print(ask())"
    env = dict(os.environ) | {
        "MLX_RANK": "0",
        "MLX_HOSTFILE": str(tmp_path / "none"),
        "PYTHONPATH": os.pathsep.join(sys.path),
    }
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=60, check=True)
    assert f"system={platform.system()!r}" in done.stdout
    here = this_platform()
    assert here.available["ring"]
    assert here.mlx
    assert set(here.available) == set(BACKENDS)
    assert BACKENDS["ring"].why_not(here, 2) is None


def test_an_mpirun_without_a_library_is_no_mpi(mlx, tmp_path):
    lonely = tmp_path / "bin" / "mpirun"
    lonely.parent.mkdir()
    lonely.write_text("#!/bin/sh\n")
    lonely.chmod(0o755)
    (tmp_path / "lib").mkdir()
    name = "libmpi.40.dylib" if platform.system() == "Darwin" else "libmpi.so.40"
    (tmp_path / "lib" / name).write_text("not a library")
    here = this_platform(str(lonely))
    assert here.mpirun == str(lonely)
    assert not here.available["mpi"]
    assert "without an Open MPI library" in str(cannot_run("mpi", on_one(here, 2)))


def test_naming_a_missing_mpirun_finds_no_other(mlx, tmp_path):
    assert this_platform(str(tmp_path / "mpirun")).mpirun is None


def test_planning_needs_no_mlx():
    code = "import sys, allranks_backends.registry, allranks_backends.hostfile; print('mlx' in sys.modules)"
    env = dict(os.environ) | {"PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "False"


@pytest.mark.parametrize(
    ("error", "advice"),
    [  # what importing mlx-cuda-13 0.32.4 said without a driver, with a driver too old, and without NCCL
        ("libcuda.so.1: cannot open shared object file: No such file or directory", "an NVIDIA GPU and its driver"),
        (
            "cudaMallocManaged(&data, size) failed: CUDA driver version is insufficient for CUDA runtime version",
            "an NVIDIA GPU and its driver",
        ),
        ("libnccl.so.2: cannot open shared object file: No such file or directory", "A library that MLX needs"),
        ("No module named 'mlx'", ""),
    ],
)
def test_what_to_do_where_mlx_cannot_be_imported(error, advice):
    assert advice in import_advice(error)
    assert bool(advice) == bool(import_advice(error))
