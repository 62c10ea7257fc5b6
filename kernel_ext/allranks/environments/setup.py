"""Give hosts environments that match the notebook's, over ssh, all hosts at once."""

from __future__ import annotations

import argparse
import importlib.util
import json
import re
import secrets
import shlex
import sys
import sysconfig
import tempfile
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any, TypeAlias

from allranks.errors import CellInterrupted, UsageError
from allranks.hosts.ssh.interpreter import Interpreter, private_environment
from allranks.hosts.ssh.login import Login
from allranks.hosts.ssh.ssh_command import typed
from allranks.hosts_from_options import hosts_of
from allranks.machine.made_environments import CURRENT, MARK
from allranks_backends.plan import Host
from allranks_widgets import human_bytes
from allranks_widgets.table import html_table

from .describe_environment import PYTHON, Environment, half_for, this_environment
from .wheels import CannotPack, Wheels

LOOK_EVERY = 0.2
"""Seconds between two progress reports."""
PLACES = ("~/.local/bin", "/opt/homebrew/bin", "/usr/local/bin", "/usr/bin", "~/.cargo/bin", "~/miniforge3/bin")
"""Folders that are searched for programs, since they may not be on the PATH of a shell that ssh starts."""
RUNS_WITHIN = 60.0
"""Timeout, in seconds, from the login until a Python runs: several may be tried, each loaded from a cold disk."""
_PACKAGES_LACK = re.compile("No matching distribution|No solution|not a supported wheel")
BOOT = "import sys; i = sys.stdin.buffer; exec(i.read(int(i.readline()))); main()"

SetupEvent: TypeAlias = dict[str, Any]
"""An event that `on_host` prints: its name under ``event``, and further fields that depend on the event."""
Say = Callable[[str], None]


@dataclass(frozen=True)
class HostSetup:
    """The result of setup on one host."""

    host: str
    trouble: str = ""
    """Why the host has no matching environment, in one or more sentences; empty if it has one."""
    folder: str = ""
    """The folder of the host's environments, starting with ``~/`` for the home folder there."""
    python: str = ""
    """The Python that the environment was made with."""
    seconds: float | None = None
    """Seconds that making the environment took; None if it existed already."""
    packages: int = 0
    with_uv: bool = False
    sent: int = 0
    """Bytes of wheels that were sent to the host."""

    def __str__(self) -> str:
        if self.trouble:
            return f"{self.host}: {self.trouble.rstrip('.')}."
        what = f"{self.packages} packages in {self.folder}, on {self.python}"
        if self.seconds is None:
            return f"{self.host}: matches this notebook already: {what}."
        sent = f", {human_bytes(self.sent)} of wheels sent" if self.sent else ""
        return f"{self.host}: {what}, with {'uv' if self.with_uv else 'pip'} in {self.seconds:.0f} s{sent}."


@dataclass(frozen=True)
class SetupResult:
    """The result of setup on each host."""

    hosts: tuple[HostSetup, ...]
    left_out: tuple[str, ...] = ()
    """Packages that are installed in editable mode here, and therefore not installed on hosts."""
    start: str = ""
    """The command that starts ranks on the hosts."""

    @property
    def ok(self) -> bool:
        """Whether all hosts match this notebook."""
        return not any(each.trouble for each in self.hosts)

    def __str__(self) -> str:
        more = []
        if self.left_out:
            more.append(
                f"Not installed there: {', '.join(self.left_out)}, in editable mode here. Install them here with "
                "python -m pip install FOLDER, or keep the code beside the notebook and start with --sync."
            )
        return "\n".join([*map(str, self.hosts), *more, *([f"Next: {self.start}"] if self.ok else [])])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        rows = [("✗" if each.trouble else "✓", each.host, str(each).partition(": ")[2]) for each in self.hosts]
        rest = str(self).split("\n")[len(self.hosts) :] if self.ok or self.left_out else []
        return html_table(("", "host", "environment"), rows) + "".join(f"<div>{escape(line)}</div>" for line in rest)


def setup(
    *,
    hosts: Sequence[str] | str | None = None,
    hostfile: str | Path | None = None,
    python: str | None = None,
    only: Sequence[str] | str | None = None,
    wheels: bool = False,
    progress: Say = lambda _text: None,
) -> SetupResult:
    """Make an environment on each host that matches this one; `Cluster.up` then uses it there.

    A host needs ssh and a Python of this Python's minor version; `python` is its path, None to search for it. The
    environment gets all packages that are installed here, except front ends, installers and editable installs; or
    allranks, MLX and the packages in `only`. Their versions are the same as here. Without `only`, the choice made for
    the host last time is used again; ``only="all"`` selects all packages. Packages come from the index that pip or uv
    uses on the host, except packages that were installed here from files, which are sent as wheels. If the host cannot
    reach the index, or with `wheels`, all packages are sent as wheels. `progress` is called with one line of text.

    Raises UsageError, and CellInterrupted on Ctrl-C; unfinished environments are removed.
    """
    placed, _, _ = hosts_of(None, hosts, hostfile, 1)
    if hosts is None and hostfile is None:
        raise UsageError("which hosts? %distributed setup --hosts mac1,mac2")
    distinct = list({host.name: host for host in placed if not host.local}.values())
    if not distinct:
        raise UsageError("this machine runs its ranks in the notebook's own environment: name other hosts.")
    if own := [host.name for host in distinct if host.python]:
        raise UsageError(
            f"{', '.join(own)}: its python= names the interpreter that up would take in place of a new environment. "
            "Leave it out; --python sets what environments are made with."
        )
    chosen = [name.strip() for name in only.split(",") if name.strip()] if isinstance(only, str) else only
    environments = Environments(None if chosen == ["all"] else chosen, remembered=chosen is None)
    with tempfile.TemporaryDirectory(prefix="allranks-wheels-") as folder:
        made = Wheels(Path(folder))
        logins = [HostLogin(host, python, environments, made, wheels) for host in distinct]
        with ThreadPoolExecutor(len(logins), "allranks-setup") as threads:
            under_way = [threads.submit(login.run) for login in logins]
            try:
                while wait(under_way, LOOK_EVERY).not_done:
                    progress("; ".join(f"{login.host.shown}: {login.doing}" for login in logins if login.doing))
            except KeyboardInterrupt:
                raise CellInterrupted("setup cancelled; unfinished environments were removed") from None
            finally:
                for login in logins:
                    login.stop()
    which = f"--hostfile {shlex.quote(str(hostfile))}" if hostfile is not None else f"--hosts {_listed(hosts or ())}"
    found = tuple(each.result() for each in under_way)
    left_out = environments.left_out if any(not each.trouble for each in found) else ()
    return SetupResult(found, tuple(left_out), f"%distributed up {which}")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `setup`, for the magic and the shell."""
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument("--hosts", metavar="A,B", help="as for up: host names for ssh")
    where.add_argument("--hostfile", metavar="F", help="as for up")
    parser.add_argument("--python", metavar="P", help="path of the Python there to make it with (default: found)")
    parser.add_argument(
        "--only", metavar="NAMES", help="only these packages, and what they need, beside allranks and mlx; or all"
    )
    parser.add_argument("--wheels", action="store_true", help="send all packages from here, also if there is an index")


def asked_by(options: argparse.Namespace, progress: Say) -> SetupResult:
    """Run `setup` with the options that `add_arguments` declares. Raises UsageError and CellInterrupted."""
    return setup(
        hosts=options.hosts,
        hostfile=options.hostfile,
        python=options.python,
        only=options.only,
        wheels=options.wheels,
        progress=progress,
    )


class Environments:
    """The environments that hosts are to get, by the packages chosen for each host.

    The chosen packages are `only` (None: all), or with `remembered` the host's previous choice. The constructor and
    `of` raise UsageError.
    """

    def __init__(self, only: Sequence[str] | None, *, remembered: bool) -> None:
        self._only, self._remembered = only, remembered
        self._lock = threading.Lock()
        self._known: dict[tuple[str, ...] | None, Environment] = {}
        if not remembered:
            self.of(None)  # so that UsageError is raised before any login

    def of(self, last: Sequence[str] | None) -> tuple[Environment, Sequence[str] | None]:
        """Return a host's environment and the packages chosen for it (None: all); `last` is its previous choice."""
        chosen = last if self._remembered else self._only
        key = tuple(chosen) if chosen is not None else None
        with self._lock:
            if key not in self._known:
                self._known[key] = this_environment(chosen)
            return self._known[key], chosen

    @property
    def left_out(self) -> list[str]:
        """Packages in editable mode that no host gets."""
        return list(dict.fromkeys(name for each in self._known.values() for name in each.left_out))


class _Gone(Exception):
    """The connection has ended."""


class HostLogin:
    """One login to a host, in a thread of its own."""

    def __init__(self, host: Host, named: str | None, environments: Environments, wheels: Wheels, send: bool) -> None:
        self.host, self._named, self._environments = host, named, environments
        self._wheels, self._send_all = wheels, send
        self.doing = "logs in"
        self._token = f"allranks-{secrets.token_hex(8)} "
        self._login: Login | None = None
        self._stopped = self._silent = False
        self._limit: threading.Timer | None = None
        """Runs out if no Python starts on the host."""
        self._looks = False
        """Whether the process on the host still checks what the host has.

        The check may hang, so `stop` kills the process through another login. Later, the process itself removes an
        unfinished environment when the connection closes.
        """

    def run(self) -> HostSetup:
        """Set up the host; returns a failure as a result instead of raising it."""
        name = self.host.shown
        try:
            return self._set_up()
        except (UsageError, CannotPack) as error:
            return HostSetup(name, str(error))
        except _Gone:
            assert self._login is not None
            self._login.closed = True
            return HostSetup(name, self._why_silent() or self._login.why_not() or "the connection was lost")
        except OSError as error:
            return HostSetup(name, f"{error.filename or 'ssh'} on this machine: {error.strerror or error}")
        finally:
            self.stop()
            if self._limit is not None:
                self._limit.cancel()
            if self._login is not None:
                self._login.end()
            self.doing = ""

    def stop(self) -> None:
        """Close the connection; the host then removes an unfinished environment."""
        self._stopped = True
        if self._login is None:
            return
        looks, self._looks = self._looks, False
        if looks and self._login.greeted:
            threading.Thread(target=self._login.end_there).start()
        else:
            self._login.process.terminate()

    def _set_up(self) -> HostSetup:
        command = ["sh", "-c", _find_python(PYTHON, self._named), "sh"]
        self._login = Login(self.host.name, Interpreter(self._named or "python3"), command)
        if self._stopped:  # `stop` was called before there was a login to end
            self.stop()
        program = (files("allranks.environments") / "on_host.py").read_bytes()
        first = {
            "token": self._token,
            "private": private_environment(),
            "python": PYTHON,
            "named": self._named,
            "places": PLACES,
            "current": CURRENT,
            "mark": MARK,
        }
        self._limit = threading.Timer(RUNS_WITHIN, self._give_up)
        self._limit.daemon = True
        self._limit.start()
        with suppress(_Gone):  # ssh has reported the reason
            self._write(b"%d\n" % len(program) + program + json.dumps(first).encode() + b"\n")
        event, sent = self._event(looks=True), 0
        if event["event"] == "has":
            environment, only = self._environments.of(event["only"])
            self._write(json.dumps({"digest": environment.digest, "only": only}).encode() + b"\n")
            event = self._event(looks=True)
        if event["event"] == "needs":
            request, paths = self._request(environment, event)
            self._write(json.dumps(request).encode() + b"\n")
            with suppress(_Gone):  # the host has reported the reason
                sent = self._send(paths)
            event = self._event()
        if event["event"] == "failed":
            advice = ". --only NAMES leaves packages out" if _PACKAGES_LACK.search(event["why"]) else ""
            return HostSetup(self.host.shown, event["why"] + advice)
        return HostSetup(
            self.host.shown,
            folder=event["folder"],
            python=event["python"],
            seconds=event.get("seconds"),
            packages=event["packages"],
            with_uv=event["with_uv"],
            sent=sent if event["event"] == "made" else 0,
        )

    def _request(self, environment: Environment, needs: SetupEvent) -> tuple[dict[str, object], list[Path]]:
        """The request that lists what to install, and the wheels to send. Raises UsageError, CannotPack and _Gone."""
        platform = needs["platform"]
        half = half_for(needs["gpu"], platform.partition("-")[0])
        by_wheels, mine = self._send_all or not needs["index"], sysconfig.get_platform()
        why = "all are to be sent from here (--wheels)" if self._send_all else "it reaches no index"
        if by_wheels and _kind(platform) != _kind(mine):
            fix = "Leave out --wheels" if needs["index"] else "Give it an index with PIP_INDEX_URL or pip.conf"
            raise UsageError(f"{why}, and packages for {platform} cannot be taken from here ({mine}). {fix}")
        self.doing = "packs what is sent there"
        try:
            packages = environment.closure(half) if by_wheels else [*environment.sent]
        except UsageError as error:
            raise UsageError(f"{why}, and {error}") from None
        paths = {}
        for name in packages:
            if self._stopped:
                raise _Gone
            paths[name] = self._wheels.of(environment.distribution(name))
        files = [*paths.values(), *([] if needs["uv"] else [_pip()])]
        return {
            "requirements": [
                *environment.requirements(half),
                *(f"{{wheels}}/{paths[name].name}" for name in environment.sent),
            ],
            "constraints": environment.constraints(),
            "no_index": by_wheels,
            "files": [(path.name, path.stat().st_size) for path in files],
        }, files

    def _send(self, paths: Sequence[Path]) -> int:
        total, moved = sum(path.stat().st_size for path in paths), 0
        for path in paths:
            with path.open("rb") as file:
                while data := file.read(1 << 18):
                    self._write(data)
                    moved += len(data)
                    self.doing = f"{human_bytes(moved)} of {human_bytes(total)} sent"
        return total

    def _write(self, data: bytes) -> None:
        """Send `data` to the host. Raises _Gone if the other end has closed."""
        assert self._login is not None
        try:
            self._login.writer.write(data)
            self._login.writer.flush()
        except BrokenPipeError:
            raise _Gone from None

    def _event(self, *, looks: bool = False) -> SetupEvent:
        """Wait for the next event that is not progress; for `looks`, see `_looks`. Raises _Gone."""
        assert self._login is not None
        self._looks = looks
        for raw in self._login.reader:
            _, token, rest = raw.decode(errors="replace").partition(self._token)
            if not token:  # output of a login shell
                self._login.is_greeting(raw)
                continue
            if self._limit is not None:
                self._limit.cancel()
            event: SetupEvent = json.loads(rest)
            if event["event"] != "progress":
                self._looks = False
                return event
            self.doing = event["text"]
        self._looks = False
        raise _Gone

    def _give_up(self) -> None:
        """Stop, since no Python has started on the host in time."""
        self._silent = True
        self.stop()

    def _why_silent(self) -> str:
        """Why no Python started on the host, if setup gave up on it; else empty."""
        if not self._silent or self._login is None:
            return ""
        words = typed(self.host.name)
        if self._login.greeted:
            python = shlex.quote(self._named or "python3")
            return f"no Python started there within {RUNS_WITHIN:g} s. Try: ssh {words} {python} -V"
        return (
            f"no command ran there within {RUNS_WITHIN:g} s: it does not answer, or its start-up files (~/.bashrc, "
            f"say) wait for something. Try: ssh {words} true"
        )


def _kind(platform: str) -> tuple[str, str]:
    """System and processor of a `sysconfig.get_platform()`: equal for ``macosx-14.0-arm64`` and ``macosx-11.0-arm64``.

    The version is ignored: it is the oldest macOS that this Python supports, not the version that the host runs.
    A ``universal2`` Python, as python.org builds it, runs as arm64 there: MLX has no packages for Macs with Intel.
    """
    processor = platform.rpartition("-")[2]
    return platform.partition("-")[0], "arm64" if processor == "universal2" else processor


def _find_python(minor: str, named: str | None) -> str:
    """A line of sh that runs `BOOT` with the first Python 3.8 or later that it finds; it tries `named` first."""
    pythons = [program for name in (f"python{minor}", "python3", "python") for program in _paths(name)]
    each = " ".join(([shlex.quote(named)] if named else []) + pythons)
    boot = shlex.quote(BOOT)
    # On macOS python3 may be a stub that only offers to install Python, so test that it runs.
    return (
        f'for p in {each}; do "$p" -c "import sys; assert sys.version_info >= (3, 8)" </dev/null >/dev/null 2>&1'
        f' && exec "$p" -c {boot}; done; for u in {" ".join(_paths("uv"))}; do'
        f' p=$("$u" python find --no-project {minor} 2>/dev/null) && exec "$p" -c {boot}; done;'
        f" echo \"it has no Python, and this notebook's is {minor}. There: curl -LsSf https://astral.sh/uv/install.sh"
        f' | sh && ~/.local/bin/uv python install {minor}" >&2; exit 127'
    )


def _paths(program: str) -> list[str]:
    """The paths where a program may be, unquoted, so that sh expands ``~``."""
    return [program, *(f"{place}/{program}" for place in PLACES)]


def _pip() -> Path:
    """Find a wheel of pip; pip can run from its wheel. Raises UsageError if there is none."""
    spec = importlib.util.find_spec("ensurepip")
    beside = Path(spec.origin or "").parent / "_bundled" if spec is not None else Path("/usr/share/python-wheels")
    for folder in (beside, Path("/usr/share/python-wheels")):
        for found in sorted(folder.glob("pip-*.whl")):
            return found
    raise UsageError(f"it has no uv, and {sys.executable} comes without pip. There: install uv")


def _listed(hosts: Sequence[str] | str) -> str:
    return shlex.quote(hosts if isinstance(hosts, str) else ",".join(hosts))
