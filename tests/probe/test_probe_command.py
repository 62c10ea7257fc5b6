"""``allranks probe`` as a shell calls it: its files, its exit codes, and how it is stopped."""

from __future__ import annotations

import getpass
import os
import signal
import socket
import subprocess
from pathlib import Path

import msgspec
import psutil
import pytest

from allranks.probe.gpu_worlds import nccl_version
from allranks.probe.probe_command import NAMES
from allranks.probe.probe_verdict import Report
from tests.jaccl.lab.build import Built
from tests.jaccl.lab.lab import Lab
from tests.waiting import eventually

from .conftest import WITHIN, Probes, command, environment


def test_the_files_hold_what_was_printed(probe: Probes, tmp_path: Path) -> None:
    done = probe("--skip", "rdma,worlds", "--out", "reports/one")
    folder = tmp_path / "reports" / "one"
    report = msgspec.json.decode((folder / NAMES[0]).read_bytes(), type=Report)
    assert done.code == 0 and report.ok and report.schema == 1
    assert (folder / NAMES[1]).read_text() in done.out
    assert {each.name for each in folder.iterdir()} == set(NAMES)


def test_who_reads_only_the_first_line_has_the_files_all_the_same(tmp_path: Path) -> None:
    arguments = command("--skip", "rdma,worlds")
    with subprocess.Popen(arguments, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as run:
        assert run.stdout is not None and run.stderr is not None
        run.stdout.close()
        assert "Traceback" not in run.stderr.read()
    assert run.returncode == 0 and {each.name for each in tmp_path.iterdir()} == set(NAMES)


def test_json_is_all_that_is_printed_and_no_file_is_written(probe: Probes, tmp_path: Path) -> None:
    assert probe("--skip", "rdma,worlds", "--json").report.complete
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", NAMES)
def test_a_report_that_exists_is_kept(name: str, probe: Probes, tmp_path: Path) -> None:
    (tmp_path / name).write_text("mine")
    done = probe("--skip", "rdma,worlds")
    assert done.code == 2 and f"{name} exists: remove it, or choose another folder with --out FOLDER." in done.err
    assert "asking" not in done.err and (tmp_path / name).read_text() == "mine"


def test_a_folder_that_cannot_be_written_is_known_before_anything_is_asked(probe: Probes, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = probe("--skip", "rdma,worlds", "--out", "file/folder")
    assert done.code == 2 and "cannot write to file/folder (Not a directory)" in done.err and "asking" not in done.err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--skip", "verbs"], "--skip verbs: choose of rdma, endings, worlds."),
        (["--backends", "gloo"], "--backends gloo: choose of ring, jaccl, jaccl-ring, mpi, nccl."),
        (["--hosts", "a", "--hostfile", "b"], "--hosts and --hostfile cannot be combined"),
        (["--hostfile", "nosuch.json"], "--hostfile nosuch.json: "),
        (["--patience", "0"], "--patience 0: it must be above 0."),
    ],
)
def test_wrong_arguments_are_refused(arguments: list[str], said: str, probe: Probes) -> None:
    done = probe(*arguments)
    assert done.code == 2 and said in done.err and "asking" not in done.err


def test_ctrl_c_ends_it_with_what_is_known(built: Built, lab: Lab, tmp_path: Path) -> None:
    with subprocess.Popen(
        command("--library", str(built.verbs), "--skip", "worlds"),
        env=environment(lab, LAB_RDMA_ERR="hang"),
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if "RDMA: flush" in line:
                break
        asking = psutil.Process(process.pid).children()
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=WITHIN)
    assert process.returncode == 1 and "Traceback" not in err
    report = msgspec.json.decode((tmp_path / NAMES[0]).read_bytes(), type=Report)
    given = {each.question: each.given for each in report.answers}
    assert not report.complete and given["layout"] == "yes" and "limits" not in given
    assert "It was stopped before all was asked." in out
    assert not any(each.is_running() for each in asking)


def test_ctrl_c_ends_the_ranks_too(tmp_path: Path) -> None:
    """Those that are left are found at the end of the test run."""
    arguments = command("--skip", "rdma", "--backends", "ring", "--patience", "5")
    with subprocess.Popen(arguments, cwd=tmp_path, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True) as run:
        assert run.stderr is not None
        for line in run.stderr:
            if "world: ring" in line:
                break
        assert eventually(lambda: len(psutil.Process(run.pid).children(recursive=True)) > 1)
        asking = psutil.Process(run.pid).children()
        run.send_signal(signal.SIGINT)
        _, err = run.communicate(timeout=WITHIN)
    assert run.returncode == 1 and "Traceback" not in err and psutil.wait_procs(asking, timeout=WITHIN)[1] == []
    assert not msgspec.json.decode((tmp_path / NAMES[0]).read_bytes(), type=Report).complete


def test_what_asks_ends_with_the_command_however_that_ends(built: Built, lab: Lab, tmp_path: Path) -> None:
    arguments = command("--library", str(built.verbs), "--skip", "worlds")
    env = environment(lab, LAB_RDMA_ERR="hang")
    with subprocess.Popen(arguments, env=env, cwd=tmp_path, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if "RDMA: flush" in line:
                break
        assert eventually(lambda: psutil.Process(process.pid).children())
        asking = psutil.Process(process.pid).children()
        process.kill()
    assert psutil.wait_procs(asking, timeout=WITHIN)[1] == []


def test_hosts_of_a_hostfile_are_not_named(probe: Probes, tmp_path: Path) -> None:
    (tmp_path / "hosts.json").write_text('[{"ssh": "ada@no-such-studio.invalid", "ips": ["203.0.113.7"]}]')
    arguments = ("--json", "--skip", "rdma", "--backends", "ring", "--hostfile", "hosts.json")
    done = probe(*arguments)
    assert "<host 1>" in done.report.checks[0].detail and done.code == 1
    assert [each for each in ("ada", "studio", "203.0") if each in done.out] == []


def test_the_report_names_nobody(probe: Probes, tmp_path: Path) -> None:
    secret = tmp_path / "somebody" / "librdma.dylib"
    names = {socket.gethostname(), str(tmp_path), "somebody", "169.254"} | ({getpass.getuser()} - {"root"})
    done = probe("--skip", "worlds", library=str(secret))
    written = done.out + "".join((tmp_path / name).read_text() for name in NAMES)
    assert [name for name in names if name in written] == []
    assert str(secret) in probe("--skip", "worlds", "--with-names", "--json", library=str(secret)).out


def test_help_lists_it() -> None:
    done = subprocess.run([*command()[:3], "--help"], capture_output=True, text=True, check=True)
    assert "\n    probe " in done.stdout


def test_gpus_are_named_and_why_no_world_is_formed_of_them(probe: Probes, tmp_path: Path) -> None:
    tool = tmp_path / "bin" / "nvidia-smi"
    tool.parent.mkdir()
    tool.write_text("#!/bin/sh\necho 'NVIDIA H100 80GB HBM3, 580.65.06, 81559 MiB'\n")
    tool.chmod(0o755)
    path = f"{tool.parent}:{os.environ['PATH']}"
    done = probe("--json", "--skip", "rdma", "--backends", "nccl", PATH=path)
    answer = next(each for each in done.report.answers if each.question == "gpus")
    assert answer.given == "yes" and answer.detail == "NVIDIA H100 80GB HBM3, 580.65.06, 81559 MiB"
    if not nccl_version():
        assert "without CUDA" in done.report.checks[0].detail and done.code == 0
