"""Makes an environment that matches the notebook's. The notebook sends this file to a host as text and runs it there.

Uses only the standard library and runs on any Python from 3.8 on, which need not be the environment's Python. Requests
come on standard input, one line of JSON each. After the last request come the wheels that it announces. Each event is
a line on standard output: the token from the first request, then JSON.

A new environment is made next to the one in use. Once it is complete, a link is moved to it, and older environments
that no process uses are removed. A setup that fails, or is stopped, leaves the old environment in use.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import select
import shutil
import signal
import ssl
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, BinaryIO

INDEX = "https://pypi.org/simple"
ANSWERS_WITHIN = 5.0
"""Timeout, in seconds, for an index to answer."""
EVERY = 0.25
"""Minimum time, in seconds, between two progress events."""
ASK = "import json, sys, sysconfig; print(json.dumps([list(sys.version_info[:2]), sysconfig.get_platform()]))"


class SetupFailed(Exception):
    """Setup failed on this host; the message is a sentence."""


class EnvironmentMaker:
    """Makes the environment. `first` is the first request; further requests are read from `stdin`.

    It first reports the packages that were chosen for the environment in use (None: all, or no environment). The second
    request has the digest of the wanted environment, and the packages chosen for it. Unless that environment is in use
    and works, the third request lists the packages to install.
    """

    def __init__(self, first: Mapping[str, Any], stdin: BinaryIO) -> None:
        self._token, self._stdin = first["token"], stdin
        self._minor: str = first["python"]
        self._named = first["named"]
        self._digest, self._only = "", None
        self._root = os.path.join(os.path.realpath(os.path.expanduser("~")), first["private"])
        self._short = "~/" + first["private"]
        self._link = os.path.join(self._root, first["current"])
        self._mark: str = first["mark"]
        self._places = os.pathsep.join(map(os.path.expanduser, first["places"]))
        self._said_at = 0.0
        self._child: subprocess.Popen[bytes] | None = None
        self._folder = ""

    def say(self, event: str, **more: object) -> None:
        line = self._token + json.dumps(dict(more, event=event)) + "\n"
        with suppress(BrokenPipeError):
            sys.stdout.write(line)
            sys.stdout.flush()

    def progress(self, text: str) -> None:
        if time.monotonic() - self._said_at > EVERY:
            self._said_at = time.monotonic()
            self.say("progress", text=text)

    def run(self) -> None:
        try:
            self.progress("looks for Python " + self._minor)
            python, platform = self._python()
            gpu, mine = _cuda(), self._current()
            self.say("has", only=mine["only"] if mine is not None else None)
            wanted = json.loads(self._stdin.readline())
            self._digest, self._only = wanted["digest"], wanted["only"]
            # Hosts that share a home folder may need different packages, so include the platform and the GPU.
            self._digest = hashlib.sha256(f"{self._digest} {platform} {gpu}".encode()).hexdigest()[:12]
            if self._is_there():
                return
            uv = self._program("uv")
            index = _index(uv)
            with self._alone():
                if self._is_there():  # another setup made it in the meantime
                    return
                self.say("needs", platform=platform, uv=uv, gpu=gpu, index=_reachable(index))
                self._make(json.loads(self._stdin.readline()), python, uv, index)
        except SetupFailed as failure:
            self.say("failed", why=str(failure))
        except OSError as error:
            self.say("failed", why=(error.filename or self._short) + ": " + (error.strerror or str(error)))

    # The current state of the host.

    def _current(self) -> dict[str, Any] | None:
        """The description of the environment in use, with its folder; None if there is none."""
        folder = os.path.realpath(self._link)
        try:
            with open(os.path.join(folder, self._mark)) as file:
                return dict(json.load(file), folder=folder)
        except (OSError, ValueError):
            return None

    def _is_there(self) -> bool:
        """Whether the environment in use is the wanted one and works; if so, reports it."""
        mine = self._current()
        if mine is None or mine["digest"] != self._digest or self._does_not_work(mine["folder"]):
            return False
        if self._named and mine["made"]["python"] != os.path.expanduser(self._named):
            return False
        self.say("same", folder=self._short, **mine["made"])
        return True

    def _does_not_work(self, folder: str) -> str:
        """Why the environment in `folder` does not work; empty if it does."""
        code = "import mlx.core, allranks.host_process.host"
        try:
            lines, status = self._run([os.path.join(folder, "bin", "python"), "-c", code])
        except OSError as error:
            return error.strerror or str(error)
        return "" if status == 0 else (lines or [f"it ended with {status}"])[-1]

    def _python(self) -> tuple[str, str]:
        """The path of a Python of the notebook's minor version, and its platform. Raises SetupFailed without one."""
        seen = []
        for path in self._candidates():
            try:
                done = subprocess.run([path, "-c", ASK], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=30)
                version, platform = json.loads(done.stdout.decode())
            except (OSError, ValueError, subprocess.TimeoutExpired):
                continue
            if "{}.{}".format(*version) == self._minor:
                return path, str(platform)
            seen.append(f"{version[0]}.{version[1]} ({path})")
        found = f"it is {', '.join(seen)}" if seen else "there is no such program there"
        if self._named:
            raise SetupFailed(f"{self._named} is no Python {self._minor}: {found}")
        found = f"it has {', '.join(dict.fromkeys(seen))}" if seen else "it has none"
        raise SetupFailed(f"it needs a Python {self._minor}, as this notebook has, and {found}. {self._advice()}")

    def _program(self, name: str) -> str | None:
        """The path of a program, or None; also searches `places`: the PATH of a shell that ssh starts may lack them."""
        return shutil.which(name) or shutil.which(name, path=self._places)

    def _candidates(self) -> list[str]:
        if self._named:
            return [os.path.expanduser(self._named)]
        name = "python" + self._minor
        found = [self._program(name), sys.executable, self._program("python3")]
        uv = self._program("uv")
        if uv:
            with suppress(OSError, subprocess.TimeoutExpired):
                line = [uv, "python", "find", "--no-project", "--no-python-downloads", self._minor]
                done = subprocess.run(line, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=30)
                found.append(done.stdout.decode().strip())
        return [path for path in dict.fromkeys(found) if path]

    def _advice(self) -> str:
        uv = self._program("uv")
        if uv:
            return f"There: {uv} python install {self._minor}"
        if sys.platform == "darwin":
            return "There: brew install python@" + self._minor
        return "There: curl -LsSf https://astral.sh/uv/install.sh | sh && ~/.local/bin/uv python install " + self._minor

    # Making the environment.

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Lock the environments; waits for another setup to finish, perhaps on a host that shares the home folder.

        Raises SetupFailed if the connection is lost.
        """
        os.makedirs(self._root, mode=0o700, exist_ok=True)
        with open(os.path.join(self._root, "lock"), "w") as file:
            while not _locked(file.fileno()):
                self.progress("waits for another setup there")
                if select.select([self._stdin], [], [], 0.2)[0]:  # no request is due, so the input has closed
                    raise SetupFailed("the connection was lost")
            yield

    def _make(self, request: Mapping[str, Any], python: str, uv: str | None, index: str) -> None:
        began, before = time.monotonic(), self._current()
        self._folder = tempfile.mkdtemp(prefix=self._digest + "-", dir=self._root)
        wheels = os.path.join(self._folder, "wheels")
        try:
            os.mkdir(wheels)
            for name, size in request["files"]:
                self._receive(os.path.join(wheels, name), size)
            threading.Thread(target=self._end_with_input, daemon=True).start()
            installed = self._install(request, python, uv, index, wheels)
            if why := self._does_not_work(self._folder):
                raise SetupFailed("the environment was made, but does not work: " + why)
            shutil.rmtree(wheels, ignore_errors=True)
            made = {"python": python, "with_uv": bool(uv), "packages": installed}
            with open(os.path.join(self._folder, self._mark), "w") as file:
                json.dump({"digest": self._digest, "only": self._only, "made": made}, file)
            self._use()
        except BaseException:
            shutil.rmtree(self._folder, ignore_errors=True)
            raise
        with suppress(OSError):
            self._remove_unused(before["folder"] if before is not None else "")
        self.say("made", folder=self._short, seconds=time.monotonic() - began, **made)

    def _receive(self, path: str, size: int) -> None:
        with open(path, "wb") as file:
            while size:
                data = self._stdin.read(min(size, 1 << 20))
                if not data:
                    raise SetupFailed("the connection was lost")
                file.write(data)
                size -= len(data)

    def _install(self, request: Mapping[str, Any], python: str, uv: str | None, index: str, wheels: str) -> int:
        """Install the packages; returns the number of packages in the environment."""
        self.progress("makes the environment")
        files = {}
        for name in ("requirements", "constraints"):
            files[name] = os.path.join(wheels, name + ".txt")
            with open(files[name], "w") as file:
                file.write("\n".join(line.replace("{wheels}", wheels) for line in request[name]) + "\n")
        target = os.path.join(self._folder, "bin", "python")
        # The folder exists already and holds the wheels.
        self._call([python, "-m", "venv", "--without-pip", self._folder])
        what = ["-r", files["requirements"], "-c", files["constraints"]]
        where = ["--no-index", "--find-links", wheels] if request["no_index"] else []
        if uv:
            # Not on the command line, since the index's URL may contain a password.
            named = {} if where or index == INDEX else {"UV_DEFAULT_INDEX": index}
            self._call([uv, "pip", "install", "--compile-bytecode", "--python", target, *where, *what], named)
        else:
            pip = os.path.join(wheels, next(name for name, _ in request["files"] if name.startswith("pip-")), "pip")
            options = [
                "--disable-pip-version-check",
                "--no-input",
                "--no-compile",
                "--no-warn-script-location",
                "--progress-bar",
                "off",
            ]
            self._call([target, pip, "install", *options, *where, *what])
            # pip itself would compile on one core. Files that cannot be compiled, such as templates, are ignored.
            self.progress("compiles the packages")
            self._run([target, "-m", "compileall", "-q", "-j", "0", os.path.join(self._folder, "lib")])
        site = [each for each in os.listdir(os.path.join(self._folder, "lib")) if each.startswith("python")]
        packages = os.listdir(os.path.join(self._folder, "lib", site[0], "site-packages"))
        return sum(name.endswith(".dist-info") for name in packages)

    def _call(self, line: Sequence[str], variables: Mapping[str, str] | None = None) -> None:
        """Run a command with additional environment variables. Raises SetupFailed if it fails."""
        lines, status = self._run(line, variables)
        if status:
            raise SetupFailed(_reason(lines) or f"{line[0]} ended with {status}")

    def _run(self, line: Sequence[str], variables: Mapping[str, str] | None = None) -> tuple[list[str], int]:
        """Run a command and report its output as progress; returns the lines that it printed, and its exit status."""
        lines = []
        with subprocess.Popen(
            line,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env=dict(os.environ, PIP_USER="0", **(variables or {})),
        ) as child:
            self._child = child
            assert child.stdout is not None
            for raw in child.stdout:
                text = raw.decode(errors="replace").rstrip()
                if text:
                    lines.append(text)
                    self.progress(_short(text.strip()))
        return lines, child.returncode

    def _use(self) -> None:
        """Point the link to the new environment."""
        new = self._link + ".new"
        with suppress(OSError):
            os.unlink(new)
        os.symlink(os.path.basename(self._folder), new)
        os.replace(new, self._link)

    def _remove_unused(self, before: str) -> None:
        """Remove older unused environments, except the folder `before`, which a login may be about to use.

        A host process holds a lock on the mark file of its environment (`allranks.machine.made_environments`), and the
        lock is seen from all hosts that share the folder.
        """
        for name in os.listdir(self._root):
            folder = os.path.join(self._root, name)
            if os.path.islink(folder) or not os.path.isdir(folder) or folder in (self._folder, before):
                continue
            try:
                with open(os.path.join(folder, self._mark)) as file:
                    unused = _locked(file.fileno())
            except FileNotFoundError:  # unfinished, left by a setup that was killed
                unused = True
            except OSError:  # another user's
                continue
            if unused:
                shutil.rmtree(folder, ignore_errors=True)

    def _end_with_input(self) -> None:
        """Wait until standard input closes: the notebook is gone.

        Then kill the command that runs, remove an unfinished environment and exit.
        """
        if os.read(self._stdin.fileno(), 1):
            return
        if self._child is not None:
            with suppress(OSError):
                os.killpg(self._child.pid, signal.SIGKILL)
        if not os.path.exists(os.path.join(self._folder, self._mark)):
            shutil.rmtree(self._folder, ignore_errors=True)
        os._exit(1)


def _locked(descriptor: int) -> bool:
    """Lock a file; returns False if another process holds a lock on it, True also if the file system has no locks."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        pass  # the file system has no locks
    return True


def _cuda() -> str:
    """The newest major version of CUDA that the driver can run; empty if ``nvidia-smi`` is missing or reports none."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return ""
    try:
        done = subprocess.run([tool], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    found = re.search(rb"CUDA Version:\s*(\d+)", done.stdout)
    return found.group(1).decode() if found else ""


def _index(uv: str | None) -> str:
    """The URL of the index that this user's installer uses."""
    names = ["UV_DEFAULT_INDEX", "UV_INDEX_URL"] if uv else []
    for name in [*names, "PIP_INDEX_URL"]:
        if os.environ.get(name):
            return os.environ[name]
    files = ["~/.config/uv/uv.toml", "/etc/uv/uv.toml"] if uv else []
    files += ["~/.config/pip/pip.conf", "~/.pip/pip.conf", "/etc/pip.conf"]
    files += ["~/Library/Application Support/pip/pip.conf"]
    for each in files:
        with suppress(OSError):
            with open(os.path.expanduser(each)) as file:
                found = re.search(r"^\s*index-url\s*=\s*[\"']?([^\s\"']+)", file.read(), re.MULTILINE)
            if found:
                return found.group(1)
    return INDEX


def _reachable(index: str) -> bool:
    """Whether the index answers at all, even with an error."""
    answers = []

    def ask() -> None:
        try:
            urllib.request.urlopen(index.rstrip("/") + "/allranks/", timeout=ANSWERS_WITHIN).close()
        except urllib.error.HTTPError:
            pass
        except urllib.error.URLError as error:
            if not isinstance(error.reason, ssl.SSLError):  # the installer may trust a certificate that Python does not
                return
        except (OSError, ValueError):
            return
        answers.append(True)

    asking = threading.Thread(target=ask, daemon=True)  # name resolution may exceed the timeout
    asking.start()
    asking.join(ANSWERS_WITHIN)
    return bool(answers)


def _short(text: str) -> str:
    """Shorten an installer's line: remove folders, cut it at a colon or an opening parenthesis and at 60 characters."""
    return re.sub(r"\S*/", "", re.split(r" \(|: ", text)[0])[:60]


def _reason(said: Sequence[str]) -> str:
    """The reason why an installer failed, from its output."""
    plain = [re.sub(r"^[\s×╰─▶│├]+", "", line) for line in said]
    marks = [number for number, line in enumerate(said) if re.match(r"(error|ERROR):|\s*×", line)]
    if not marks:
        return " ".join(plain[-2:])[-400:].rstrip(".")
    first = marks[-1] if said[marks[-1]].startswith("ERROR") else marks[0]
    return re.sub(r"^(error|ERROR): ", "", " ".join(plain[first : first + 6]))[:600].rstrip(".")


def main() -> None:
    stdin = sys.stdin.buffer
    EnvironmentMaker(json.loads(stdin.readline()), stdin).run()
    sys.stdout.flush()
    os._exit(0)  # a thread may still read the input
