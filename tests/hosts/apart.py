"""Hosts with file systems of their own, as far as the notebook's folder and the home folders are concerned."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from allranks import Cluster
from tests.hosts.lab import Hosts, made

WITHIN = 60.0


class Apart:
    """Hosts that share no file of the notebook's with it, nor their home folders; logins get these `variables`."""

    def __init__(self, hosts: Hosts, work: Path, homes: Path, **variables: str) -> None:
        self.hosts, self.names, self.work, self._homes = hosts, hosts.names, work, homes
        for name in self.names:
            self.home(name).mkdir(parents=True)
            hosts.restart_sshd(name, HOME=str(self.home(name)), **variables)
            hosts.mounted(name, "-t", "tmpfs", "none", str(work))

    def together(self) -> None:
        """As they were made."""
        for name in self.names:
            self.hosts.restart_sshd(name)
            self.hosts.link(name, "up")

    def home(self, name: str) -> Path:
        return self._homes / name

    def copy(self, name: str) -> Path:
        """The notebook's folder on that host."""
        (folder,) = (self.home(name) / "allranks").iterdir()
        return folder

    def texts(self, name: str) -> dict[str, str]:
        root = self.copy(name)
        files = (each for each in sorted(root.rglob("*")) if each.is_file())
        return {
            str(each.relative_to(root)): each.read_text()
            for each in files
            if not {".allranks", "__pycache__"} & set(each.parts)
        }


@contextmanager
def made_apart(count: int) -> Iterator[Apart]:
    """Hosts for a program that is no test, which works meanwhile in the folder that they lack."""
    before = Path.cwd()
    with tempfile.TemporaryDirectory() as folder, made(count) as hosts:
        work = Path(folder, "work")
        work.mkdir()
        os.chdir(work)
        try:
            yield Apart(hosts, work, Path(folder, "homes"))
        finally:
            os.chdir(before)


def values(cluster: Cluster, code: str) -> list[object]:
    """What the cell gives on each rank."""
    return [rank.value for rank in cluster.run(code, timeout=WITHIN).check().values()]
