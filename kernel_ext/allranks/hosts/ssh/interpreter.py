"""Which Python a host is called with: one that was named, or the environment that `setup` made there."""

from __future__ import annotations

import hashlib
import re
import shlex
import sys
from dataclasses import dataclass
from pathlib import Path

from allranks.machine.environments import CURRENT, KEPT_IN
from allranks.machine.identity import this_machine


@dataclass(frozen=True)
class Interpreter:
    """Of one host."""

    path: str
    """There; it may begin with ``~/``."""
    private: str = ""
    """Folder, relative to the home folder, with an environment that is taken in place of `path` where it exists."""

    def words(self) -> list[str]:
        """What a shell there runs it by, before its arguments."""
        if not self.private and not self.path.startswith("~/"):
            return [self.path]
        path = path_for_sh(self.path)
        first = ""
        if self.private:  # the folder itself: the link may lead elsewhere before the cluster has ended
            folder = f"{path_for_sh(f'~/{self.private}')}/{CURRENT}"
            first = f'd=$(cd {folder} 2>/dev/null && pwd -P) && [ -x "$d/bin/python" ] && exec "$d/bin/python" "$@"; '
        return ["/bin/sh", "-c", f'{first}exec {path} "$@"', "sh"]

    def made_by_setup(self, path: str) -> bool:
        """Whether the Python at this path, as it calls itself, is that of the environment."""
        return bool(self.private) and f"/{self.private}/" in path


def path_for_sh(path: str) -> str:
    """A path on a host as `sh` reads it there; it may be ``~``, or begin with ``~/``."""
    if path == "~":
        return '"$HOME"'
    return f'"$HOME"/{shlex.quote(path[2:])}' if path.startswith("~/") else shlex.quote(path)


def interpreter_of(named: str | None) -> Interpreter:
    """The one that was `named`, else that of `setup` or, where there is none, the path of this one."""
    return Interpreter(named) if named else Interpreter(sys.executable, private_environment())


def private_environment() -> str:
    """Where `setup` makes environments that match this one, relative to a host's home folder."""
    prefix = Path(sys.prefix)
    name = prefix.parent.name if prefix.name in (".venv", "venv", "env") else prefix.name
    name = re.sub(r"[^A-Za-z0-9._-]", "_", name) or "python"
    key = hashlib.sha256(f"{this_machine()}:{prefix}".encode(errors="surrogateescape")).hexdigest()[:8]
    return f"{KEPT_IN}/{name}-{key}"
