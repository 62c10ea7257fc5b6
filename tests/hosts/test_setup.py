"""Hosts with nothing but sshd and a Python become hosts: environments that match the notebook's, made over ssh."""

from __future__ import annotations

import functools
import http.server
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from allranks import Cluster
from allranks.environments import setup as setup_code
from allranks.environments.describe_environment import this_environment
from allranks.environments.setup import Environments, HostLogin, setup
from allranks.environments.wheels import Wheels
from allranks.errors import CannotStart, UsageError
from allranks.hosts.ssh.interpreter import private_environment
from allranks_backends.plan import Host
from tests.hosts.apart import Apart
from tests.hosts.oddities import ended
from tests.needs import need
from tests.shell import allranks
from tests.waiting import eventually

pytestmark = [pytest.mark.hosts, pytest.mark.timeout(600)]
NO_INDEX = "http://127.0.0.1:9/simple"
WHERE = "import sys, allranks; (sys.prefix, allranks.__file__, mx.distributed.all_sum(mx.ones(2)).tolist())"


@pytest.fixture
def variables() -> dict[str, str]:
    return {"PIP_INDEX_URL": NO_INDEX}


@pytest.fixture
def apart(apart: Apart, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Iterator[Apart]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.getbasetemp() / "cache"))
    version = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    pythons = [apart.hosts.home(name) / "bin" / version for name in apart.names]
    for python in pythons:
        python.parent.mkdir(exist_ok=True)
        python.symlink_to(Path(sys.base_prefix, "bin", version))
    yield apart
    for python in pythons:
        python.unlink()


def environments(apart: Apart, name: str) -> list[Path]:
    """Those that a host has, whole or not."""
    folder = apart.home(name) / private_environment()
    return [each for each in folder.iterdir() if each.is_dir() and not each.is_symlink()] if folder.exists() else []


@pytest.mark.slow  # it makes two environments
def test_a_host_without_an_index_gets_wheels_and_up_uses_them(apart: Apart) -> None:
    name = apart.names[0]
    lines: list[str] = []
    made = setup(hosts=[name], only=["msgspec"], progress=lines.append)
    assert made.ok, made
    assert re.search(
        r"^host1: \d+ packages in ~/\.allranks/.* with \w+ in \d+ s, .* of wheels sent\.$", str(made), re.M
    )
    assert str(made).endswith("Next: %distributed up --hosts host1")
    assert any("sent" in line for line in lines)
    assert str(setup(hosts=[name])).startswith("host1: matches this notebook already: "), "what was chosen last time"
    (first,) = environments(apart, name)
    sources, compiled = ([*first.glob(f"lib/**/*.{kind}")] for kind in ("py", "pyc"))
    assert len(compiled) > 0.9 * len(sources), "ranks start without compiling"
    with Cluster(hosts=[name, "localhost"], backend="ring") as cluster:
        there, here = (rank.value for rank in cluster.run(WHERE, timeout=60.0).check().values())
        assert there[0] == str(first) and there[1].startswith(str(first)) and there[2] == here[2] == [2.0, 2.0]
        assert here[0] == sys.prefix
        # Ranks keep the environment in which they were started.
        assert setup(hosts=[name], only=["msgspec", "tqdm"]).ok
        assert {first} < set(environments(apart, name))
        assert cluster.run("import pathspec; pathspec.__file__")[0].value.startswith(str(first))
        found = allranks("list", "--hosts", name)
        assert "main" in found.stdout and found.returncode == 0, found
    lib = apart.home(name) / private_environment() / "current" / "lib"
    lib.rename(lib.with_name("lost"))
    assert setup(hosts=[name], only=["msgspec", "tqdm"]).hosts[0].seconds is not None, "it did not work any more"
    kept = environments(apart, name)
    assert first not in kept and len(kept) == 2, "nothing uses it any more; the one before the last stays"


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        """Tests have other things to say."""


class Index(http.server.ThreadingHTTPServer):
    def handle_error(self, *_: object) -> None:
        """uv drops connections on which it has read enough."""


@contextmanager
def index(packages: list[str], folder: Path, address: str) -> Iterator[str]:
    """An index with these packages, as they are installed here."""
    wheels, environment = Wheels(folder), this_environment()
    for name in packages:
        (page := folder / "simple" / name).mkdir(parents=True)
        file = wheels.of(environment.distribution(name))
        (page / "index.html").write_text(f'<a href="../../{file.name}">{file.name}</a>')
    handler = functools.partial(Quiet, directory=str(folder))
    server = Index((address, 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://{address}:{server.server_port}/simple"
    finally:
        server.shutdown()
        server.server_close()


@pytest.mark.slow
def test_from_an_index_with_uv_only_what_no_index_has_is_sent(apart: Apart, tmp_path: Path) -> None:
    beside = Path(sys.executable).with_name("uv")
    uv = str(beside) if beside.exists() else shutil.which("uv")
    need(uv, "uv is not installed (pip install uv)")
    name = apart.names[0]
    programs = apart.hosts.home(name) / "bin"
    programs.mkdir(exist_ok=True)
    (programs / "uv").symlink_to(uv or "")
    packages = [each for each in this_environment(["msgspec"]).closure("mlx-cpu") if each != "allranks"]
    try:
        with index(packages, tmp_path / "index", apart.hosts.gateway) as url:
            apart.hosts.restart_sshd(name, HOME=str(apart.home(name)), UV_INDEX_URL=url, PIP_INDEX_URL=url)
            made = setup(hosts=[name], only=["msgspec"])
            assert made.ok, made
            assert made.hosts[0].with_uv and 0 < made.hosts[0].sent < 5_000_000
            with Cluster(hosts=[name], backend="ring") as cluster:
                assert cluster.run(WHERE)[0].value[0].startswith(str(apart.home(name)))
            (before,) = environments(apart, name)
            failed = setup(hosts=[name], only=["codespell"])
            assert (
                not failed.ok
                and "codespell was not found" in failed.hosts[0].trouble
                and "\n" not in failed.hosts[0].trouble
            )
            assert environments(apart, name) == [before], "what failed leaves nothing, and what was there works"
            assert setup(hosts=[name], only=["msgspec"]).hosts[0].seconds is None
    finally:
        (programs / "uv").unlink()


def test_each_host_that_cannot_is_named_with_its_reason(apart: Apart, tmp_path: Path) -> None:
    other = tmp_path / "python3.9"
    other.write_text('#!/bin/sh\ncase "$2" in *sysconfig*) echo "[[3, 9], \\"linux-x86_64\\"]";; *) exit 1;; esac\n')
    other.chmod(0o755)
    made = setup(hosts=[apart.names[0], "no-such-host.invalid"], python=str(other))
    minor = f"{sys.version_info[0]}.{sys.version_info[1]}"
    assert [each.trouble for each in made.hosts] == [
        f"{other} is no Python {minor}: it is 3.9 ({other})",
        "unknown host name. Add it to ~/.ssh/config or DNS",
    ]
    assert not made.ok and "Next" not in str(made)
    assert environments(apart, apart.names[0]) == []
    done = allranks("setup", "--hosts", "no-such-host.invalid")
    assert (
        done.returncode == 1
        and done.stdout == "no-such-host.invalid: unknown host name. Add it to ~/.ssh/config or DNS.\n"
    )
    done = allranks("setup", "--hosts", "no-such-host.invalid", "--json")
    told = json.loads(done.stdout)
    assert done.returncode == 1 and [each["host"] for each in told["hosts"]] == ["no-such-host.invalid"]
    assert told["hosts"][0]["trouble"].startswith("unknown host name")


def test_a_host_whose_python_hangs_is_given_up_and_nothing_goes_on_there(
    apart: Apart, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hanging, name = tmp_path / "python that hangs", apart.names[0]
    hanging.write_text("#!/bin/sh\nsleep 1000\n")
    hanging.chmod(0o755)
    monkeypatch.setattr(setup_code, "RUNS_WITHIN", 3.0)
    try:
        (made,) = setup(hosts=[name], python=str(hanging)).hosts
        assert made.trouble == f"no Python started there within 3 s. Try: ssh {name} '{hanging}' -V"
        assert eventually(lambda: not apart.hosts.processes(name))
        line = [sys.executable, "-m", "allranks", "setup", "--hosts", name, "--python", str(hanging)]
        with subprocess.Popen(line, stderr=subprocess.PIPE) as shell:
            assert eventually(lambda: any(b"sleep" in line for line in lines_of(apart, name)))
            shell.send_signal(signal.SIGINT)
            shell.communicate(timeout=60)
        assert eventually(lambda: not apart.hosts.processes(name))
    finally:
        ended(apart.hosts, name)


def lines_of(apart: Apart, name: str) -> list[bytes]:
    """The command lines of the processes on a host."""
    found = []
    for pid in apart.hosts.processes(name):
        with suppress(OSError):
            found.append(Path(f"/proc/{pid}/cmdline").read_bytes())
    return found


def test_a_host_whose_login_hangs_is_given_up(apart: Apart, monkeypatch: pytest.MonkeyPatch) -> None:
    name = apart.names[0]
    (apart.home(name) / ".bashrc").write_text("sleep 1000\n")
    monkeypatch.setattr(setup_code, "RUNS_WITHIN", 3.0)
    try:
        (made,) = setup(hosts=[name]).hosts
        assert made.trouble.startswith("no command ran there within 3 s: it does not answer, or its start-up files")
    finally:
        ended(apart.hosts, name)


@pytest.mark.parametrize("by_choice", [True, False])
def test_why_packages_of_another_kind_of_machine_cannot_be_taken_from_here_is_said_as_it_is(by_choice: bool) -> None:
    login = HostLogin(Host("mac1"), None, Environments(["msgspec"], remembered=False), Wheels(Path()), by_choice)
    needs = {"platform": "macosx-14.0-arm64", "gpu": "", "index": by_choice, "uv": True}
    first, last = (
        ("all are to be sent from here (--wheels), ", "Leave out --wheels")
        if by_choice
        else ("it reaches no index, ", "PIP_INDEX_URL or pip.conf")
    )
    with pytest.raises(UsageError, match=f"^{re.escape(first)}and packages for macosx-14.0-arm64 .*{last}$"):
        login._request(this_environment(["msgspec"]), needs)


@pytest.mark.slow
def test_a_full_disk_and_ctrl_c_leave_nothing(apart: Apart, tmp_path: Path) -> None:
    full, stopped = apart.names[:2]
    (kept := apart.home(full) / ".allranks").mkdir()
    apart.hosts.mounted(full, "-t", "tmpfs", "-o", "size=8m", "none", str(kept))
    try:
        made = setup(hosts=[full], only=["msgspec"])
        assert "No space left on device" in made.hosts[0].trouble
        assert not list(apart.hosts.within(full, "find", str(kept), "-name", "bin").splitlines())
    finally:
        apart.hosts.unmounted(full, kept)

    line = [sys.executable, "-m", "allranks", "setup", "--hosts", stopped, "--only", "msgspec"]
    with subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as shell:
        assert eventually(lambda: environments(apart, stopped))
        shell.send_signal(signal.SIGINT)
        _, said = shell.communicate(timeout=60)
    assert shell.returncode == 130
    assert said == "allranks: setup cancelled; unfinished environments were removed.\n"
    assert eventually(lambda: not environments(apart, stopped))


def test_hosts_may_differ_in_interpreter_and_folder(apart: Apart, tmp_path: Path) -> None:
    one, two = apart.names[:2]
    link = tmp_path / "python-of-its-own"
    link.write_text(f'#!/bin/sh\nMINE=yes exec {sys.executable} "$@"\n')
    link.chmod(0o755)
    (tmp_path / "folder of one").mkdir()
    (apart.home(two) / "runs").mkdir()
    entries = f"{one} python={link} cwd='{tmp_path / 'folder of one'}',{two} cwd=~/runs,localhost"
    with Cluster(hosts=entries, backend="ring") as cluster:
        found = [
            rank.value for rank in cluster.run("import os; (os.getcwd(), os.environ.get('MINE'))").check().values()
        ]
        assert found == [
            (str(tmp_path / "folder of one"), "yes"),
            (str(apart.home(two) / "runs"), None),
            (os.getcwd(), None),
        ]
        with pytest.raises(CannotStart, match="mpirun starts all ranks with one path of Python"):
            cluster.rewire("mpi")
        listed = allranks("list", "--hosts", f"{one} python={link},{two}")
        assert listed.returncode == 0 and "main" in listed.stdout
        (apart.work / "train.py").write_text("STEP = 1\n")
        said = str(cluster.sync())
        assert f"{tmp_path / 'folder of one'}" in said and f"{apart.home(two) / 'runs'}" in said
        assert [rank.value for rank in cluster.run("import train; train.STEP").check().values()] == [1, 1, 1]


def test_a_folder_that_was_named_and_is_not_there_is_said(apart: Apart) -> None:
    with pytest.raises(
        CannotStart, match=r"host1 has no working folder \S+/no-such-folder \(No such file or directory\): make it"
    ):
        Cluster(hosts=f"{apart.names[0]} cwd=~/no-such-folder", backend="ring").up()
