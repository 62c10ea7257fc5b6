"""Hosts with file systems of their own, as far as the notebook's folder and the home folders are concerned."""

from __future__ import annotations

from pathlib import Path

from tests.hosts.lab import Hosts


class Apart:
    """Hosts that share no file of the notebook's with it, nor their home folders."""

    def __init__(self, hosts: Hosts, work: Path, homes: Path) -> None:
        self.hosts, self.names, self.work, self._homes = hosts, hosts.names, work, homes
        for name in self.names:
            self.home(name).mkdir(parents=True)
            hosts.restart_sshd(name, HOME=str(self.home(name)))
            hosts.mounted(name, "-t", "tmpfs", "none", str(work))

    def together(self) -> None:
        """As they were made."""
        for name in self.names:
            self.hosts.restart_sshd(name)

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
