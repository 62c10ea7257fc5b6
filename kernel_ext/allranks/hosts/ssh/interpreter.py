"""Which Python runs on a host.

It is the Python that was named, or else the Python in the environment that `setup` made on the host. If there is no
such environment, it is the Python at the path of this process's Python.
"""

from __future__ import annotations

import hashlib
import re
import shlex
import sys
from dataclasses import dataclass
from pathlib import Path

from allranks.machine.made_environments import CURRENT, KEPT_IN
from allranks.machine.process_identity import this_machine


@dataclass(frozen=True)
class Interpreter:
    """The Python to run on one host."""

    path: str
    """Its path on the host; it may begin with ``~/``."""
    private: str = ""
    """Folder, relative to the home folder, of an environment whose Python is used instead of `path` if it exists."""

    def words(self) -> list[str]:
        """The words with which a shell on the host runs this Python, before its arguments."""
        if not self.private and not self.path.startswith("~/"):
            return [self.path]
        path = path_for_sh(self.path)
        first = ""
        if self.private:  # resolve the link, since it may point elsewhere before the cluster has ended
            folder = f"{path_for_sh(f'~/{self.private}')}/{CURRENT}"
            first = f'd=$(cd {folder} 2>/dev/null && pwd -P) && [ -x "$d/bin/python" ] && exec "$d/bin/python" "$@"; '
        return ["/bin/sh", "-c", f'{first}exec {path} "$@"', "sh"]

    def made_by_setup(self, path: str) -> bool:
        """Whether `path`, the path that a Python reports as its own, lies in the environment that `setup` made."""
        return bool(self.private) and f"/{self.private}/" in path


def path_for_sh(path: str) -> str:
    """Quote a path on a host for `sh` there; it may be ``~``, or begin with ``~/``."""
    if path == "~":
        return '"$HOME"'
    return f'"$HOME"/{shlex.quote(path[2:])}' if path.startswith("~/") else shlex.quote(path)


def interpreter_of(named: str | None) -> Interpreter:
    """The `named` interpreter; if None, the Python in the environment that `setup` made on the host.

    If the host has no such environment, the Python at the path of this process's Python.
    """
    return Interpreter(named) if named else Interpreter(sys.executable, private_environment())


def private_environment() -> str:
    """The folder where `setup` makes environments that match this one, relative to a host's home folder."""
    prefix = Path(sys.prefix)
    name = prefix.parent.name if prefix.name in (".venv", "venv", "env") else prefix.name
    name = re.sub(r"[^A-Za-z0-9._-]", "_", name) or "python"
    key = hashlib.sha256(f"{this_machine()}:{prefix}".encode(errors="surrogateescape")).hexdigest()[:8]
    return f"{KEPT_IN}/{name}-{key}"
