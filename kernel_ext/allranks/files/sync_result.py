"""The result of a sync, and its text."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from allranks.messages.requests.file_requests import CHANGED, NOT_OURS
from allranks.units import count_text
from allranks_backends.plan import alike, rank_label
from allranks_widgets import human_bytes

from .notebook_folder import SECRET, TOO_LARGE, Contents

SHOWN = 8
"""Maximum number of names in a line; the others are counted."""


@dataclass(frozen=True)
class HostSync:
    """The result of a sync for one host."""

    folder: str = ""
    """The folder in which the host's ranks work."""
    sent: Sequence[str] = ()
    nbytes: int = 0
    removed: Sequence[str] = ()
    refused: Mapping[str, str] = field(default_factory=dict)
    """Files that were not replaced or removed on the host, and why."""
    same: bool = False
    """Whether the host has the notebook's folder itself."""
    with_host: str = ""
    """The host whose copy this host shares; empty if it shares no other host's copy."""


@dataclass
class SyncResult:
    """The files that were sent to each host, and the modules that were reloaded."""

    hosts: Mapping[str, HostSync]
    contents: Contents
    reloaded: Mapping[tuple[int, ...], Sequence[str]] = field(default_factory=dict)
    """Maps each group of ranks to the modules that the group reloaded, in the order of reloading."""
    size: int = 0
    """Number of ranks."""
    removed: Sequence[str] = ()
    """Modules whose file is gone."""
    not_reloaded: str = ""
    """Why no modules were reloaded; empty if nothing prevented it."""

    @property
    def sent(self) -> dict[str, list[str]]:
        """The files that were sent to each host."""
        return {host: list(each.sent) for host, each in self.hosts.items()}

    def __str__(self) -> str:
        return "\n".join([*self._of_hosts(), *left_out_lines(self.contents), *self.of_modules()])

    __repr__ = __str__

    def _of_hosts(self) -> list[str]:
        groups = alike({host: self._said(each) for host, each in self.hosts.items()})
        return [f"{', '.join(hosts)}: {said}" for said, hosts in groups.items()]

    def _said(self, there: HostSync) -> str:
        if there.same:
            return "has this folder itself; nothing to send."
        if there.with_host:
            return f"shares {there.folder} with {there.with_host}."
        said = []
        if there.sent:
            said.append(f"{files_text(len(there.sent), there.nbytes)} sent to {there.folder}: {names(there.sent)}.")
        if there.removed:
            said.append(f"Removed: {names(there.removed)}.")
        for why, paths in alike(there.refused).items():
            replaces = "; %distributed sync --overwrite replaces it" if why in (CHANGED, NOT_OURS) else ""
            said.append(f"Left as it is there: {names(paths)} ({why}{replaces}).")
        return " ".join(said or [f"up to date in {there.folder}."])

    def of_modules(self) -> list[str]:
        """Lines about modules that were reloaded, removed or kept."""
        lines = []
        for ranks, modules in self.reloaded.items():
            where = "all ranks" if len(ranks) == self.size else rank_label(list(ranks))
            lines.append(f"Reloaded on {where}: {', '.join(modules)}.")
        if self.removed:
            lines.append(f"No longer loaded, since their files are gone: {', '.join(self.removed)}.")
        if self.not_reloaded:
            lines.append(f"Not reloaded; all ranks keep the modules they had. {self.not_reloaded}")
        return lines


def left_out_lines(contents: Contents) -> list[str]:
    """A line for each reason why files are not sent."""
    lines = []
    for why, paths in alike(contents.left_out).items():
        if why == SECRET:
            one = shlex.quote(names(paths[:1]))
            said = f"{names(paths)}: may hold secrets. To send one: %distributed sync --include {one}"
        elif why == TOO_LARGE:
            largest = [f"{path} ({human_bytes(contents.sizes[path])})" for path in paths[:SHOWN]]
            need = sum(each.size for each in contents.files.values()) + sum(contents.sizes.values())
            whole = files_text(len(contents.files) + len(paths), need)
            said = (
                f"{names(largest, of=len(paths))}: the folder has {whole}, "
                f"more than are sent unasked. To send all: %distributed sync --limit {need // 2**20 + 1}M"
            )
        else:
            said = f"{names(paths)}: {why}."
        lines.append(f"Not sent: {said}")
    return lines


def files_text(count: int, nbytes: int) -> str:
    return f"{count_text(count, 'file')} ({human_bytes(nbytes)})"


def names(paths: Sequence[str], of: int | None = None) -> str:
    """The first names and the number of the others, in one line: unprintable characters are escaped.

    `of` is the number of all names if `paths` has only some of them.
    """
    shown = [path if path.isprintable() else repr(path)[1:-1] for path in paths[:SHOWN]]
    more = (len(paths) if of is None else of) - len(shown)
    return ", ".join(shown) + (f" and {more:,} more" if more > 0 else "")
