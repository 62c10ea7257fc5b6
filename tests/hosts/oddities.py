"""Hosts that are odd in one way each, of which `up` and the doctor must say the same.

Each oddity is a function that plants it on the second of two hosts (or between the two), yields what `up` and the
doctor are called with, and takes it away again.
"""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from allranks import Cluster, doctor
from allranks.discovery.doctor import Diagnosis
from allranks.errors import AllranksError
from tests.hosts.lab import Hosts

Options = dict[str, Any]
Plant = Callable[[Hosts], Iterator[Options]]
BAD = "host2"
QUICK = 10.0
"""Seconds in which `up` and the doctor must refuse."""
SUM = "mx.distributed.all_sum(mx.ones(2)).tolist()"


@dataclass(frozen=True)
class Oddity:
    """Something that is odd, and what is to come of it."""

    name: str
    plant: Plant
    refused: str = ""
    """Words of the sentence with which `up` refuses; empty where it works."""
    suite: bool = False
    """Whether the test suite tries it; the benchmark tries all."""
    doctor: str = ""
    """Words of the doctor's error, where they are not the same."""
    fixed_by: str = ""
    """How the doctor's command begins, which fixes it here."""
    needs: str = ""
    """A program that this machine may lack."""


ODDITIES: list[Oddity] = []


def odd(name: str, refused: str = "", **more: Any) -> Callable[[Plant], Plant]:
    """Enter an oddity in the list."""

    def enter(plant: Plant) -> Plant:
        ODDITIES.append(Oddity(name, plant, refused, **more))
        return plant

    return enter


@dataclass(frozen=True)
class Outcome:
    """What came of one oddity."""

    oddity: Oddity
    up_said: str
    """Empty where it worked."""
    up_seconds: float
    diagnosis: Diagnosis
    doctor_seconds: float
    hosts: tuple[str, ...]
    not_fixed: str
    """What the doctor says after its own command was run, where it should fix this; empty where it did."""

    @property
    def doctor_said(self) -> str:
        return next((f"{each.host}: {each.what}" for each in self.diagnosis.findings if each.severity == "error"), "")

    @property
    def wrong(self) -> str:
        """In what the two do not agree with each other, or with what is expected; empty where they do."""
        if bool(self.up_said) == self.diagnosis.ok:
            return "the doctor and up disagree"
        refused = self.oddity.refused
        if bool(self.up_said) != bool(refused):
            return "up refuses" if self.up_said else "up works"
        if not self.up_said:
            return ""
        if refused.lower() not in self.up_said.lower():
            return f"up does not say {refused!r}"
        if not any(name in self.up_said for name in self.hosts):
            return "up names no host"
        if (words := self.oddity.doctor or refused).lower() not in str(self.diagnosis).lower():
            return f"the doctor does not say {words!r}"
        if ".." in self.up_said.replace("...", "") or ".." in str(self.diagnosis).replace("...", ""):
            return "two full stops"
        if "Traceback" in self.up_said:
            return "up shows a traceback"
        if self.not_fixed:
            return f"the doctor's command does not fix it: {self.not_fixed}"
        return ""

    @property
    def slow(self) -> str:
        """Who took too long to refuse."""
        if not self.up_said:
            return ""
        took = {"up": self.up_seconds, "the doctor": self.doctor_seconds}
        return ", ".join(f"{who} took {seconds:.0f} s" for who, seconds in took.items() if seconds > QUICK)


def tried(hosts: Hosts, oddity: Oddity) -> Outcome:
    """Plant it, call `up` and the doctor, and take it away."""
    with contextmanager(oddity.plant)(hosts) as given:
        options = {"hosts": hosts.names[:2], "backend": "ring", **given}
        names = tuple(name.partition(" ")[0] for name in options["hosts"])
        began = time.monotonic()
        said = _up(options)
        up_seconds, began = time.monotonic() - began, time.monotonic()
        diagnosis = doctor(**options)
        seconds = time.monotonic() - began
        not_fixed = _fixed(hosts, oddity, diagnosis, options) if oddity.fixed_by else ""
    return Outcome(oddity, said, up_seconds, diagnosis, seconds, names, not_fixed)


def _fixed(hosts: Hosts, oddity: Oddity, diagnosis: Diagnosis, options: Options) -> str:
    """Run what the doctor says, where it says so; returns what it says then."""
    for finding in diagnosis.findings:
        if finding.fix.startswith(oddity.fixed_by):
            command = finding.fix.replace("sudo ", "")  # the tests are root, and sudo need not be installed
            done = hosts.inside(finding.at, "sh", "-c", command)
            assert done.returncode == 0, (command, done.stderr)
    again = doctor(**options)
    return "" if again.ok and not _up(options) else str(again)


def _up(options: Options) -> str:
    cluster = Cluster(**options)
    try:
        with cluster:
            values = [rank.value for rank in cluster.run(SUM, timeout=30).check().values()]
            assert values == [[float(len(values))] * 2] * len(values), values
    except AllranksError as error:
        return str(error)
    return ""


def ended(hosts: Hosts, name: str) -> None:
    """End what a test has left hanging on a host."""
    for pid in hosts.processes(name):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


# How to plant them.


@contextmanager
def _login(
    hosts: Hosts, rc: str = "", more: str = "", *, shell: str = "/bin/bash", home: Path | None = None, **env: str
) -> Iterator[Path]:
    """The odd host with a home folder, a login shell and a .bashrc of its own; yields that folder."""
    folder = home or hosts.home(BAD) / "odd-home"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / ".bashrc").write_text(rc)
    passwd = hosts.home(BAD) / "passwd"
    with open("/etc/passwd") as file:
        lines = [line for line in file if not line.startswith("root:")]
    account = f"x:0:0::{folder}:{shell}\n"
    passwd.write_text("".join([f"root:{account}", *lines, f"ada:{account}"]))
    hosts.restart_sshd(BAD, more, **env)
    hosts.mounted(BAD, "--bind", str(passwd), "/etc/passwd")
    try:
        yield folder
    finally:
        hosts.restart_sshd(BAD)
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _rc(hosts: Hosts, rc: str, more: str = "", **env: str) -> Iterator[Options]:
    with _login(hosts, f"{rc}\n", more, **env):  # type: ignore[arg-type]
        yield {}


def by_rc(
    name: str, rc: str, refused: str = "", more: str = "", env: dict[str, str] | None = None, **rest: Any
) -> None:
    """An oddity that is lines of .bashrc, of sshd's configuration, or of its environment."""

    def plant(hosts: Hosts) -> Iterator[Options]:
        with _rc(hosts, rc, more, **(env or {})):
            yield {}

    odd(name, refused, **rest)(plant)


def by_env(name: str, refused: str = "", suite: bool = False, **env: str) -> None:
    """An oddity that is variables in the odd host's environment."""
    by_rc(name, "", refused, env=env, suite=suite)


@contextmanager
def _file(path: Path, text: str) -> Iterator[None]:
    before = path.read_text()
    path.write_text(text)
    try:
        yield
    finally:
        path.write_text(before)


@contextmanager
def _config(hosts: Hosts, lines: str) -> Iterator[None]:
    """With these lines first in the notebook's ~/.ssh/config."""
    file = hosts.folder / "config"
    with _file(file, f"{lines}\n{file.read_text()}"):
        yield


@contextmanager
def _ran(hosts: Hosts, do: str, undo: str, name: str = BAD) -> Iterator[Options]:
    """A line of sh on a host, and the one that takes it back."""
    done = hosts.inside(name, "sh", "-c", do)
    assert done.returncode == 0, (do, done.stderr)
    try:
        yield {}
    finally:
        hosts.inside(name, "sh", "-c", undo)


@contextmanager
def _python(hosts: Hosts, script: str) -> Iterator[Options]:
    """Another interpreter on the odd host only."""
    path = hosts.home(BAD) / "odd-python"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    try:
        yield {"hosts": [hosts.names[0], f"{BAD} python={path}"]}
    finally:
        path.unlink()


def by_python(name: str, script: str, refused: str, **rest: Any) -> None:
    """An oddity that is another interpreter: a script of `sh`."""

    def plant(hosts: Hosts) -> Iterator[Options]:
        with _python(hosts, script) as options:
            yield options

    odd(name, refused, **rest)(plant)


HERE = shlex.quote(sys.executable)


@cache
def _packages() -> Path:
    return next(Path(each) for each in sys.path if each.endswith("site-packages"))


@contextmanager
def _environment(hosts: Hosts, *without: str) -> Iterator[tuple[Options, Path]]:
    """An environment like the notebook's, on the odd host, without the packages whose names begin so."""
    folder = hosts.home(BAD) / "odd-env"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    (own,) = (folder / "lib").glob("python*/site-packages")
    for each in _packages().iterdir():
        if not each.name.startswith(without):
            (own / each.name).symlink_to(each)
    try:
        yield {"hosts": [hosts.names[0], f"{BAD} python={folder / 'bin' / 'python'}"]}, own
    finally:
        shutil.rmtree(folder)


# Accounts, shells, and what they print.


@odd("another user")
def another_user(hosts: Hosts) -> Iterator[Options]:
    with _login(hosts):
        yield {"hosts": [hosts.names[0], f"ada@{BAD}"]}


for _shell in ("fish", "tcsh", "zsh", "dash"):

    @odd(f"{_shell} is the login shell", needs=_shell)
    def other_shell(hosts: Hosts, shell: str = _shell) -> Iterator[Options]:
        with _login(hosts, shell=shutil.which(shell) or shell):
            yield {}


@odd("nologin is the login shell", "not available", suite=True)
def nologin(hosts: Hosts) -> Iterator[Options]:
    with _login(hosts, shell="/usr/sbin/nologin"):
        yield {}


@odd("false is the login shell", "host2: ")
def false(hosts: Hosts) -> Iterator[Options]:
    with _login(hosts, shell="/bin/false"):
        yield {}


@odd("a banner")
def banner(hosts: Hosts) -> Iterator[Options]:
    file = hosts.home(BAD) / "banner"
    file.write_text("Authorised use only. Permission denied (to others).\nNo module named allranks\n")
    with _rc(hosts, "", f"Banner {file}\n"):
        yield {}


@odd("a banner, and no python", "/opt/nowhere/python")
def banner_no_python(hosts: Hosts) -> Iterator[Options]:
    file = hosts.home(BAD) / "banner"
    file.write_text("Authorised use only. Permission denied (to others).\n")
    with _rc(hosts, "", f"Banner {file}\n"):
        yield {"hosts": [hosts.names[0], f"{BAD} python=/opt/nowhere/python"]}


by_rc("a prompt without newline", "printf 'ready> '")
by_rc("a prompt that breaks up", "printf 'rea'; sleep 0.2; printf 'dy\\r\\n> '; printf '\\033]0;host\\007'")
by_rc("a JSON-like line", """echo '{"type": "hello", "body": {}}'; printf '{"a":'""", suite=True)
by_rc("20,000 lines at login", "i=0; while [ $i -lt 20000 ]; do echo line $i of the news; i=$((i+1)); done")
by_rc("bytes that are no text", "printf '\\377\\376\\000\\001'; printf '\\303' >&2")
by_rc("a misleading complaint", "echo 'Permission denied (publickey).' >&2; echo 'No module named allranks' >&2")
by_rc("exit 3 in .bashrc", "exit 3", "host2", suite=True)
by_rc("exit 0 in .bashrc", "echo Bye; exit 0", "host2")
by_rc("a slow login", "sleep 3")
by_rc("a login that waits for input", "read x", "host2")
by_rc("a login that hangs", "sleep 1000", "host2")
by_rc("set -e and a failing line", "set -e; false", "host2")
by_rc("set -u", "set -u")
by_rc("stty and tput", "stty erase '^H'; tput setaf 1")
by_rc("a python alias", "alias python=false; python() { false; }; python3() { false; }")
by_rc("a process that stays at login", "sleep 60 &", suite=True)
by_rc("cd in .bashrc", "cd /usr")
by_rc("umask 777", "umask 777")
by_rc("umask 077", "umask 077")
by_rc("exec sh in .bashrc", "exec sh", "host2")
by_rc("unset HOME", "unset HOME")

# Limits.

by_rc("ulimit -n 64", "ulimit -n 64", "too few files", suite=True)
by_rc("ulimit -S -n 64", "ulimit -S -n 64")
by_rc("ulimit -n 20", "ulimit -n 20", "host2")
by_rc("ulimit -f 0", "ulimit -f 0", "host2")
by_rc("ulimit -v 300 MB", "ulimit -v 300000", "host2")

# sshd and ssh.

by_rc("ForceCommand", "", "only backups", "ForceCommand echo only backups\n")
by_rc("AllowTcpForwarding no", "", "does not forward ports", "AllowTcpForwarding no\n")
by_rc("AllowTcpForwarding local", "", "does not forward ports", "AllowTcpForwarding local\n")
by_rc("DisableForwarding yes", "", "does not forward ports", "DisableForwarding yes\n")
by_rc("PermitListen none", "", "does not forward ports", "PermitListen none\n")
by_rc("MaxSessions 1", "", "", "MaxSessions 1\n")
by_rc("MaxStartups 1", "", "", "MaxStartups 1:100:1\n")
by_rc("passwords only", "", "passwords only", "PubkeyAuthentication no\n")
by_rc("AllowUsers", "", "refused the ssh key", "AllowUsers grace\n")
by_rc("PermitTTY no", "", "", "PermitTTY no\n")
by_rc("PermitUserEnvironment", "", "", "PermitUserEnvironment yes\n")
by_rc("ClientAliveInterval 1", "", "", "ClientAliveInterval 1\nClientAliveCountMax 3\n")


@odd("a key that is refused", "refused the ssh key")
def refused_key(hosts: Hosts) -> Iterator[Options]:
    with _config(hosts, f"Host {BAD}\n  IdentityFile none"), _file(hosts.folder / "authorized", ""):
        yield {"hosts": [BAD, "host1"]}


@odd("a changed host key", "its host key has changed", suite=True)
def changed_key(hosts: Hosts) -> Iterator[Options]:
    known = hosts.folder / "known"
    lines = known.read_text().splitlines()
    other = lines[0].split(" ", 1)[1]
    with _file(known, "\n".join([lines[0], f"{lines[1].split()[0]} {other}", *lines[2:]]) + "\n"):
        yield {}


@odd("an unknown host key", "its host key is not known")
def unknown_key(hosts: Hosts) -> Iterator[Options]:
    known = hosts.folder / "known"
    with _file(known, "".join(line for line in known.read_text().splitlines(True) if BAD not in line)):
        yield {}


@odd("known_hosts is read-only")
def read_only_known(hosts: Hosts) -> Iterator[Options]:
    (hosts.folder / "known").chmod(0o444)
    try:
        yield {}
    finally:
        (hosts.folder / "known").chmod(0o644)


@odd("ControlMaster in ssh config")
def control_master(hosts: Hosts) -> Iterator[Options]:
    lines = f"Host *\n  ControlMaster auto\n  ControlPath {hosts.folder}/c-%C\n  ControlPersist 2"
    with _config(hosts, lines):
        yield {}


@odd("RequestTTY and RemoteCommand in ssh config")
def remote_command(hosts: Hosts) -> Iterator[Options]:
    with _config(hosts, f"Host {BAD}\n  RequestTTY force\n  SendEnv LANG"):
        yield {}


@odd("another port", suite=True)
def other_port(hosts: Hosts) -> Iterator[Options]:
    known = hosts.folder / "known"
    key = known.read_text().splitlines()[1].split(" ", 1)[1]
    with (
        _rc(hosts, "", f"Port 2222\nListenAddress {hosts.address(BAD)}:2222\n"),
        _file(known, f"{known.read_text()}[{hosts.address(BAD)}]:2222,[host2]:2222 {key}\n"),
    ):
        yield {"hosts": ["host1", f"{BAD}:2222"]}


@odd("an IPv6 ssh address")
def ipv6(hosts: Hosts) -> Iterator[Options]:
    prefix = f"fd77:{hosts.address(BAD).split('.')[2]}"
    known = hosts.folder / "known"
    key = known.read_text().splitlines()[1].split(" ", 1)[1]
    bridge = hosts._bridge
    subprocess.run(["ip", "addr", "add", f"{prefix}::1/64", "dev", bridge, "nodad"], check=True)
    try:
        with (
            _ran(hosts, f"ip addr add {prefix}::12/64 dev eth0 nodad", f"ip addr del {prefix}::12/64 dev eth0"),
            _rc(hosts, "", f"ListenAddress [{prefix}::12]:22\n"),
            _file(known, f"{known.read_text()}{prefix}::12 {key}\n"),
            _config(hosts, f"Host six\n  HostName {prefix}::12"),
        ):
            yield {"hosts": ["host1", "six"]}
    finally:
        subprocess.run(["ip", "addr", "del", f"{prefix}::1/64", "dev", bridge], check=True)


@odd("a jump host", suite=True)
def jump(hosts: Hosts) -> Iterator[Options]:
    with _config(hosts, f"Host {BAD}\n  ProxyJump host1"):
        yield {}


@odd("a jump host that is not there", "host2")
def no_jump(hosts: Hosts) -> Iterator[Options]:
    with _config(hosts, f"Host {BAD}\n  ProxyJump nowhere.invalid"):
        yield {}


@odd("a ProxyCommand that hides addresses")
def proxy(hosts: Hosts) -> Iterator[Options]:
    sshd = f"ip netns exec {hosts.space(BAD)} /usr/sbin/sshd -i -f {hosts.home(BAD) / 'sshd_config'}"
    with _config(hosts, f"Host {BAD}\n  ProxyCommand {sshd}"):
        yield {}


@odd("a host with only loopback", "host2")
def only_loopback(hosts: Hosts) -> Iterator[Options]:
    sshd = f"ip netns exec {hosts.space(BAD)} /usr/sbin/sshd -i -f {hosts.home(BAD) / 'sshd_config'}"
    address = f"{hosts.address(BAD)}/24"
    with (
        _config(hosts, f"Host {BAD}\n  ProxyCommand {sshd}"),
        _ran(hosts, "ip link set eth0 down", f"ip link set eth0 up; ip addr replace {address} dev eth0"),
    ):
        yield {}


@odd("nothing listens for ssh", "nothing listens for ssh")
def no_sshd(hosts: Hosts) -> Iterator[Options]:
    with _config(hosts, f"Host {BAD}\n  Port 2299\n  HostKeyAlias {BAD}"):
        yield {}


@odd("an unknown name", "unknown host name", suite=True)
def unknown_name(hosts: Hosts) -> Iterator[Options]:
    yield {"hosts": ["host1", "nowhere.invalid"]}


@odd("a host that is off", "host2")
def off(hosts: Hosts) -> Iterator[Options]:
    hosts.link(BAD, "down")
    try:
        yield {}
    finally:
        hosts.link(BAD, "up")


@odd("an sshd that says nothing", "host2")
def silent(hosts: Hosts) -> Iterator[Options]:
    with _config(hosts, f"Host {BAD}\n  ProxyCommand sleep 100"):
        yield {}


@odd("another host, under its address too", "")
def twice(hosts: Hosts) -> Iterator[Options]:
    with _config(hosts, f"Host alias\n  HostName {hosts.address(BAD)}"):
        yield {"hosts": [BAD, "alias"]}


@odd("two hosts of one host name")
def same_name(hosts: Hosts) -> Iterator[Options]:
    with _login(hosts):
        hosts.renamed(BAD, "host1")
        yield {}


# Folders.


@odd("a missing working folder", "no working folder", doctor="cannot work in", suite=True, fixed_by="mkdir -p")
def no_folder(hosts: Hosts) -> Iterator[Options]:
    folder = hosts.home(BAD) / "Ada's work" / "here"
    try:
        yield {"cwd": str(folder)}
    finally:
        shutil.rmtree(folder.parent, ignore_errors=True)


@odd("a working folder that is missing on one host", "/nowhere/at/all")
def no_folder_there(hosts: Hosts) -> Iterator[Options]:
    yield {"hosts": ["host1", f"{BAD} cwd=/nowhere/at/all"]}


@odd("a working folder that is a file", "/etc/passwd")
def folder_is_file(hosts: Hosts) -> Iterator[Options]:
    yield {"hosts": ["host1", f"{BAD} cwd=/etc/passwd"]}


@odd("a module named mlx in the working folder", "mlx", suite=True)
def shadowed(hosts: Hosts) -> Iterator[Options]:
    folder = hosts.home(BAD) / "odd-folder"
    (folder / "mlx").mkdir(parents=True)
    (folder / "mlx" / "__init__.py").write_text("")
    (folder / "mlx" / "core.py").write_text("raise ImportError('this is not MLX')\n")
    try:
        yield {"hosts": ["host1", f"{BAD} cwd={folder}"]}
    finally:
        shutil.rmtree(folder)


@odd("a read-only home folder")
def read_only_home(hosts: Hosts) -> Iterator[Options]:
    with _login(hosts) as home:
        hosts.mounted(BAD, "--bind", str(home), str(home))
        hosts.mounted(BAD, "-o", "remount,bind,ro", str(home))
        yield {}


@odd("no home folder")
def no_home(hosts: Hosts) -> Iterator[Options]:
    with _login(hosts) as home:
        shutil.rmtree(home)
        yield {}


@odd("a home folder with a space")
def home_with_space(hosts: Hosts) -> Iterator[Options]:
    with _login(hosts, home=hosts.home(BAD) / "Ada's home"):
        yield {}


@odd("a full TMPDIR", "disk is full", doctor="free for temporary files")
def full(hosts: Hosts) -> Iterator[Options]:
    with _small(hosts, "1m") as folder, _rc(hosts, f"export TMPDIR={folder}"):
        yield {}


@odd("a TMPDIR with 20 MB")
def little(hosts: Hosts) -> Iterator[Options]:
    with _small(hosts, "20m") as folder, _rc(hosts, f"export TMPDIR={folder}"):
        yield {}


@contextmanager
def _small(hosts: Hosts, size: str) -> Iterator[Path]:
    folder = hosts.home(BAD) / "small"
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)
        folder.rmdir()


by_env("TMPDIR is missing", TMPDIR="/nowhere/at/all")


@odd("TMPDIR has a long path")
def long_tmpdir(hosts: Hosts) -> Iterator[Options]:
    folder = hosts.home(BAD) / ("long" * 25)
    folder.mkdir()
    with _rc(hosts, "", TMPDIR=str(folder)):
        yield {}


@odd("a noexec /tmp")
def noexec(hosts: Hosts) -> Iterator[Options]:
    with _login(hosts):
        hosts.mounted(BAD, "-t", "tmpfs", "-o", "noexec", "tmpfs", "/dev/shm")
        hosts.mounted(BAD, "-t", "tmpfs", "-o", "noexec", "tmpfs", "/var/tmp")
        yield {}


@odd("a read-only /dev/shm")
def read_only_shm(hosts: Hosts) -> Iterator[Options]:
    with _login(hosts):
        hosts.mounted(BAD, "-t", "tmpfs", "-o", "ro", "tmpfs", "/dev/shm")
        yield {}


# Python and its packages.


@odd("no python", "/opt/nowhere/python")
def no_python(hosts: Hosts) -> Iterator[Options]:
    yield {"hosts": ["host1", f"{BAD} python=/opt/nowhere/python"]}


@odd("a python that is a folder", "/usr/lib")
def folder_python(hosts: Hosts) -> Iterator[Options]:
    yield {"hosts": ["host1", f"{BAD} python=/usr/lib"]}


by_python("a python that crashes", "kill -SEGV $$", "host2")
by_python(
    "python without allranks",
    f'exec {HERE} -I -S "$@"',
    "allranks is not installed",
    doctor="allranks is missing",
)


@odd("a python that hangs", "did not start within 6 s", doctor="does not run", suite=True)
def hanging_python(hosts: Hosts) -> Iterator[Options]:
    with _python(hosts, "exec sleep 1000") as options:
        try:
            yield options
        finally:
            ended(hosts, BAD)


@odd("mlx is missing", "mlx", suite=True)
def no_mlx(hosts: Hosts) -> Iterator[Options]:
    with _environment(hosts, "mlx") as (options, _):
        yield options


@odd("mlx cannot be imported", "libmlx.so")
def broken_mlx(hosts: Hosts) -> Iterator[Options]:
    with _environment(hosts, "mlx") as (options, own):
        for each in _packages().glob("mlx*.dist-info"):
            (own / each.name).symlink_to(each)
        (own / "mlx").mkdir()
        message = "libmlx.so: cannot open shared object file: No such file or directory"
        (own / "mlx" / "core.py").write_text(f"raise ImportError({message!r})\n")
        yield options


@odd("ipyparallel is missing", "ipyparallel")
def no_ipyparallel(hosts: Hosts) -> Iterator[Options]:
    with _environment(hosts, "ipyparallel") as (options, _):
        yield options


@odd("psutil is missing", "psutil")
def no_psutil(hosts: Hosts) -> Iterator[Options]:
    with _environment(hosts, "psutil") as (options, _):
        yield options


@odd("zmq is missing", "zmq")
def no_zmq(hosts: Hosts) -> Iterator[Options]:
    with _environment(hosts, "zmq", "pyzmq") as (options, _):
        yield options


@odd("another minor version of Python", "3.9")
def other_minor(hosts: Hosts) -> Iterator[Options]:
    folder = hosts.home(BAD) / "lies"
    folder.mkdir()
    lies = "import platform, sys\nsys.version_info = (3, 9, 2, 'final', 0)\nplatform.python_version = lambda: '3.9.2'\n"
    (folder / "sitecustomize.py").write_text(lies)
    try:
        with _python(hosts, f'PYTHONPATH={folder} exec {HERE} "$@"') as options:
            yield options
    finally:
        shutil.rmtree(folder)


@odd("a broken sitecustomize")
def sitecustomize(hosts: Hosts) -> Iterator[Options]:
    folder = hosts.home(BAD) / "broken"
    folder.mkdir()
    (folder / "sitecustomize.py").write_text("import nothing_like_this\n")
    try:
        with _rc(hosts, f"export PYTHONPATH={folder}:$PYTHONPATH"):
            yield {}
    finally:
        shutil.rmtree(folder)


by_env("PYTHONHOME is wrong", "PYTHONHOME", suite=True, PYTHONHOME="/opt/nowhere")
by_env("PYTHONWARNINGS=error", "Deprecat", PYTHONWARNINGS="error")
by_env("PYTHONOPTIMIZE=2", PYTHONOPTIMIZE="2")
by_env("PYTHONSAFEPATH and PYTHONNOUSERSITE", PYTHONSAFEPATH="1", PYTHONNOUSERSITE="1", PYTHONUNBUFFERED="1")
by_env("PYTHONVERBOSE", PYTHONVERBOSE="1")
by_env("PYTHONINSPECT", PYTHONINSPECT="1")

# The environment.

by_rc("an empty PATH", "export PATH=")
by_env("LANG is not set", LANG="", LC_ALL="C")
by_env("a locale that is not there", LANG="xx_XX.UTF-8", LC_ALL="xx_XX.UTF-8")
by_env(
    "proxy variables",
    http_proxy="http://10.255.255.1:1",
    https_proxy="http://10.255.255.1:1",
    ALL_PROXY="socks5://10.255.255.1:1",
)
by_env(
    "variables of another world",
    suite=True,
    MLX_RANK="7",
    MLX_HOSTFILE="/nowhere.json",
    MLX_WORLD_SIZE="9",
    OMPI_COMM_WORLD_RANK="3",
    OMPI_COMM_WORLD_SIZE="4",
    PMI_RANK="1",
    PMIX_RANK="1",
    JACCL_RANK="5",
)
by_env("LD_PRELOAD of nothing", LD_PRELOAD="/nowhere/lib.so")
by_env("CUDA_VISIBLE_DEVICES=-1", CUDA_VISIBLE_DEVICES="-1", MLX_METAL_FAST_SYNCH="1")
by_env("IPYTHONDIR and JUPYTER folders that are not there", IPYTHONDIR="/nowhere", JUPYTER_CONFIG_DIR="/nowhere")
by_env("TERM=dumb and PAGER", TERM="dumb", PAGER="false", PS1="$ ", PROMPT_COMMAND="false")


@odd("a clock that is off")
def clock(hosts: Hosts) -> Iterator[Options]:
    (hosts.home(BAD) / "bin").mkdir(exist_ok=True)
    date = hosts.home(BAD) / "bin" / "date"
    date.write_text('#!/bin/sh\n[ "$1" = +%s ] && echo $(($(/bin/date +%s) - 300))\n')
    date.chmod(0o755)
    try:
        yield {}
    finally:
        date.unlink()


# The network between the hosts.


def _rule(hosts: Hosts, rule: str, name: str = BAD, chain: str = "INPUT") -> Any:
    return _ran(hosts, f"iptables -w -A {chain} {rule}", f"iptables -w -D {chain} {rule}", name)


@odd(
    "a firewall that drops",
    "host1 cannot reach host2",
    doctor="TCP connections from host1",
    suite=True,
    fixed_by="sudo iptables",
)
def drops(hosts: Hosts) -> Iterator[Options]:
    flush = "iptables -w -F"  # also the rules of the doctor's fix, which is for both hosts
    with _ran(hosts, f"iptables -w -A INPUT -s {hosts.address('host1')} -p tcp -j DROP", flush):
        yield {}
    hosts.inside("host1", *flush.split())


@odd("a firewall that rejects", "host1 cannot reach host2", doctor="TCP connections from host1")
def rejects(hosts: Hosts) -> Iterator[Options]:
    with _rule(hosts, f"-s {hosts.address('host1')} -p tcp -j REJECT --reject-with tcp-reset"):
        yield {}


@odd("a firewall in one direction", "host2 cannot reach host1", doctor="TCP connections from host2")
def one_way(hosts: Hosts) -> Iterator[Options]:
    with _rule(hosts, f"-s {hosts.address(BAD)} -p tcp --syn -j DROP", "host1"):
        yield {}


@odd("a firewall for outgoing connections", "host2 cannot reach host1", doctor="TCP connections from host2")
def outgoing(hosts: Hosts) -> Iterator[Options]:
    with _rule(hosts, f"-d {hosts.address('host1')} -p tcp --syn -j REJECT", chain="OUTPUT"):
        yield {}


@odd("only ports up to 1024", "host1 cannot reach host2", doctor="TCP connections from host1")
def low_ports(hosts: Hosts) -> Iterator[Options]:
    with _rule(hosts, "-p tcp --dport 1025:65535 -m state --state NEW ! -i lo -j DROP"):
        yield {}


@odd("a firewall for loopback", "own 127.0.0.1 fail")
def own_loopback(hosts: Hosts) -> Iterator[Options]:
    with _rule(hosts, "-i lo -p tcp --syn -j DROP"):
        yield {}


@odd("loopback is down", "own 127.0.0.1 fail")
def no_loopback(hosts: Hosts) -> Iterator[Options]:
    with _ran(hosts, "ip link set lo down", "ip link set lo up"):
        yield {}


@odd("no route", "host1 cannot reach host2", doctor="no route to host2")
def no_route(hosts: Hosts) -> Iterator[Options]:
    route = f"unreachable {hosts.address(BAD)}/32"
    with _ran(hosts, f"ip route add {route}", f"ip route del {route}", "host1"):
        yield {}


@odd("an asymmetric route", "cannot reach", doctor="TCP connections from")
def asymmetric(hosts: Hosts) -> Iterator[Options]:
    route = f"blackhole {hosts.address('host1')}/32"
    with _ran(hosts, f"ip route add {route}", f"ip route del {route}"):
        yield {}


@odd("an MTU of 1280")
def mtu(hosts: Hosts) -> Iterator[Options]:
    with _ran(hosts, "ip link set eth0 mtu 1280", "ip link set eth0 mtu 1500"):
        yield {}


@odd("a network of 1 Mbit/s")
def thin(hosts: Hosts) -> Iterator[Options]:
    limit = "tbf rate 1mbit burst 16kb latency 100ms"
    with _ran(hosts, f"tc qdisc add dev eth0 root {limit}", "tc qdisc del dev eth0 root"):
        yield {}


@odd("no common network", "cannot reach", doctor="no route to")
def no_common(hosts: Hosts) -> Iterator[Options]:
    bridge, address = hosts._bridge, hosts.address(BAD)
    known = hosts.folder / "known"
    key = known.read_text().splitlines()[1].split(" ", 1)[1]
    subprocess.run(["ip", "addr", "add", "10.79.7.1/24", "dev", bridge], check=True)
    try:
        with (
            _ran(hosts, "ip addr add 10.79.7.2/24 dev eth0", "ip addr del 10.79.7.2/24 dev eth0"),
            _rc(hosts, "", "ListenAddress 10.79.7.2:22\n"),
            _ran(hosts, f"ip addr del {address}/24 dev eth0", f"ip addr add {address}/24 dev eth0"),
            _config(hosts, f"Host {BAD}\n  HostName 10.79.7.2"),
            _file(known, f"{known.read_text()}10.79.7.2 {key}\n"),
        ):
            yield {}
    finally:
        subprocess.run(["ip", "addr", "del", "10.79.7.1/24", "dev", bridge], check=True)


@odd("two networks, of which ssh's is slow")
def two_networks(hosts: Hosts) -> Iterator[Options]:
    hosts.slow("host1", 20)
    hosts.slow(BAD, 20)
    peer = f"peer name fast0 netns {hosts.space(BAD)}"
    make = f"ip link add fast0 type veth {peer}; ip addr add 10.78.9.1/24 dev fast0; ip link set fast0 up"
    try:
        with (
            _ran(hosts, make, "ip link del fast0", "host1"),
            _ran(hosts, "ip addr add 10.78.9.2/24 dev fast0; ip link set fast0 up", "true"),
        ):
            yield {}
    finally:
        for name in ("host1", BAD):
            hosts.inside(name, "tc", "qdisc", "del", "dev", "eth0", "root")


@odd("two networks, of which the second is cut")
def second_cut(hosts: Hosts) -> Iterator[Options]:
    peer = f"peer name fast0 netns {hosts.space(BAD)}"
    make = f"ip link add fast0 type veth {peer}; ip addr add 10.78.9.1/24 dev fast0; ip link set fast0 up"
    with (
        _ran(hosts, make, "ip link del fast0", "host1"),
        _ran(hosts, "ip addr add 10.78.9.2/24 dev fast0; ip link set fast0 up", "true"),
        _rule(hosts, "-i fast0 -j DROP"),
    ):
        yield {}


@odd("the same private network on both, as Docker's")
def docker(hosts: Hosts) -> Iterator[Options]:
    make = "ip link add docker0 type bridge; ip addr add 172.17.0.1/16 dev docker0; ip link set docker0 up"
    with _ran(hosts, make, "ip link del docker0", "host1"), _ran(hosts, make, "ip link del docker0"):
        yield {}


@odd("only IPv6 between the hosts", "No address is known")
def only_ipv6(hosts: Hosts) -> Iterator[Options]:
    prefix = f"fd77:{hosts.address(BAD).split('.')[2]}"
    known = hosts.folder / "known"
    key = known.read_text().splitlines()[1].split(" ", 1)[1]
    bridge, address = hosts._bridge, hosts.address(BAD)
    subprocess.run(["ip", "addr", "add", f"{prefix}::1/64", "dev", bridge, "nodad"], check=True)
    try:
        with (
            _ran(hosts, f"ip addr add {prefix}::12/64 dev eth0 nodad", f"ip addr del {prefix}::12/64 dev eth0"),
            _rc(hosts, "", f"ListenAddress [{prefix}::12]:22\n"),
            _ran(hosts, f"ip addr del {address}/24 dev eth0", f"ip addr add {address}/24 dev eth0"),
            _file(known, f"{known.read_text()}{prefix}::12 {key}\n"),
            _config(hosts, f"Host {BAD}\n  HostName {prefix}::12"),
        ):
            yield {}
    finally:
        subprocess.run(["ip", "addr", "del", f"{prefix}::1/64", "dev", bridge], check=True)


@odd("a wrong entry in /etc/hosts")
def etc_hosts(hosts: Hosts) -> Iterator[Options]:
    with _login(hosts) as home:
        (home / "hosts").write_text("127.0.0.1 localhost\n10.255.255.9 host1\n127.0.1.1 host2\n")
        hosts.mounted(BAD, "--bind", str(home / "hosts"), "/etc/hosts")
        yield {}


@odd("no entry for localhost in /etc/hosts")
def no_localhost(hosts: Hosts) -> Iterator[Options]:
    with _login(hosts) as home:
        (home / "hosts").write_text("10.255.255.9 localhost\n")
        hosts.mounted(BAD, "--bind", str(home / "hosts"), "/etc/hosts")
        yield {}


# Another user's rights: a real one, who cannot read root's files.


@contextmanager
def _ordinary(hosts: Hosts, rc: str = "", **env: str) -> Iterator[Options]:
    """A user without rights, who runs the system's Python with this environment's packages."""
    folder = Path("/tmp", f"allranks-odd-{hosts.space(BAD)}")
    folder.mkdir()
    os.chown(folder, 1234, 1234)
    (folder / ".bashrc").write_text(f"{rc}\n")
    paths = ":".join(each for each in sys.path if each and "pyenv" not in each)
    passwd = hosts.home(BAD) / "passwd"
    passwd.write_text(Path("/etc/passwd").read_text() + f"ordinary:x:1234:1234::{folder}:/bin/bash\n")
    keys = f"{folder}/keys"
    shutil.copy(hosts.folder / "authorized", keys)
    os.chmod(keys, 0o644)
    script = folder / "python"
    script.write_text(f'#!/bin/sh\nPYTHONPATH={paths} exec /usr/bin/python3 "$@"\n')
    script.chmod(0o755)
    hosts.restart_sshd(BAD, f"AuthorizedKeysFile {keys}\n", **env)
    hosts.mounted(BAD, "--bind", str(passwd), "/etc/passwd")
    try:
        yield {"hosts": ["host1", f"ordinary@{BAD} python={script}"]}
    finally:
        hosts.restart_sshd(BAD)
        with suppress(OSError):
            shutil.rmtree(folder)


def by_user(name: str, rc: str = "", refused: str = "") -> None:
    """An oddity of an ordinary user, with lines of .bashrc."""

    def plant(hosts: Hosts) -> Iterator[Options]:
        with _ordinary(hosts, rc) as options:
            yield options

    odd(name, refused)(plant)


by_user("an ordinary user")
by_user("ulimit -u 1", "ulimit -u 1", "too few processes")
by_user("ulimit -u 12", "ulimit -u 12", "host2")
by_user("a TMPDIR that the user may not write to", "export TMPDIR=/root")


@odd("a working folder that the user may not enter", "/root")
def not_entered(hosts: Hosts) -> Iterator[Options]:
    with _ordinary(hosts) as options:
        one, other = options["hosts"]
        yield {"hosts": [one, f"{other} cwd=/root"]}


@odd("a python that the user may not run", "/etc/ssl/private/python")
def not_run(hosts: Hosts) -> Iterator[Options]:
    with _ordinary(hosts) as options:
        one, other = options["hosts"]
        yield {"hosts": [one, f"{other.partition(' ')[0]} python=/etc/ssl/private/python"]}
