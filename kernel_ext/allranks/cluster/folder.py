"""The part of `Cluster` that keeps the notebook's working folder, and the modules in it, alike on all ranks."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from allranks.arguments import parse_size
from allranks.errors import CannotCopy, CellInterrupted
from allranks.files.fetch import TARGET, Fetch, FetchResult
from allranks.files.folder import Contents, Folder, Stamp
from allranks.files.result import SyncResult, left_out_lines
from allranks.files.sync import FolderSync
from allranks.head.world.ranks import Ranks
from allranks.messages.questions import Reply, RequestFailed
from allranks.messages.requests import DecideReload, PrepareReload, ReloadPrepared, StopReload
from allranks.notebook.front_end import autoreloads
from allranks_backends.plan import alike, rank_label

from .base import ClusterBase
from .stop import Stop

SOURCE = ".py"


def _silent(_line: str) -> None: ...


class ClusterFolder(ClusterBase):
    """The working folder on all hosts."""

    _sync: FolderSync | None = None
    _sources: Mapping[str, Stamp] | None = None
    """The folder's modules when ranks reloaded theirs last."""
    _committed = 0
    """Number of the last reload that all ranks were to keep."""
    _said_left_out: Mapping[str, str] = {}

    @property
    def auto_sync(self) -> bool:
        """Whether each cell first brings the working folder to all hosts, and reloads modules that have changed.

        May be set. Raises UsageError for the home folder, which is too much.
        """
        return self._settings.sync

    @auto_sync.setter
    def auto_sync(self, on: bool) -> None:
        if on:
            self._folder_sync().folder.refuse_if_too_much()
        self._settings.sync = on

    def sync(
        self,
        *,
        limit: int | str | None = None,
        include: Sequence[str] = (),
        overwrite: bool = False,
        progress: Callable[[str], None] = _silent,
    ) -> SyncResult:
        """Bring the notebook's working folder to all hosts that lack it, and reload modules that have changed.

        Sends what has changed, without what ``.gitignore`` names, notebooks, secrets, and the largest files beyond
        50 MiB in all; `limit` (bytes, or ``"2G"``) sets another limit and `include` names files, with patterns as in
        ``.gitignore``, that are sent all the same. Both hold for later cells too. On a host, only files that came from
        here are replaced or removed, unless with `overwrite`. Ranks work in the folder afterwards: the one that
        ``cwd`` names, or one of its own below ``~/allranks``. `progress` is called with a line before the first files
        are sent to a host.

        Raises UsageError for the home folder, CannotCopy where a host cannot take the files (then no host has changed),
        CellInterrupted, and what `run` raises.
        """
        ranks = self._refuse_if_unable(range(self.size))
        sync = self._folder_sync()
        if limit is not None:
            sync.folder.limit = parse_size(limit) if isinstance(limit, str) else limit
        sync.folder.include = (*sync.folder.include, *include)
        sync.forget()
        result = self._bring(ranks, overwrite, progress)
        self._reload(ranks, result)
        return result

    def fetch(
        self,
        pattern: str,
        *,
        ranks: Sequence[int] | int | None = None,
        to: str | Path | None = None,
        overwrite: bool = False,
    ) -> FetchResult:
        """Bring files of the ranks here: into the folder ``fetched`` beside the notebook, or `to` another one.

        `pattern` is one of `glob`, with ``**``, relative to each rank's working folder, absolute, or below ``~``. A
        file that is equal on all ranks that have it is fetched once, under its own path; where files of one path
        differ, each is below ``rank-0``, ``rank-1`` and so on. Ranks may be running a cell. Times of modification are
        kept. In ``fetched``, files are replaced; in another folder only with `overwrite`.

        Raises UsageError where no rank has such a file, or it is here already, CannotCopy where a file cannot be read
        there or written here, or changes meanwhile, NoCluster, and CellInterrupted (files that are whole by then stay).
        """
        chosen, living = self.choose_ranks(ranks), self._up()
        target = Path(self._settings.folder, TARGET) if to is None else Path(to).expanduser().absolute()
        stop = Stop()
        try:
            with stop.noted():
                fetch = Fetch(living, chosen, target, stop.raise_if_pressed)
                return fetch.run(pattern, overwrite=overwrite or to is None)
        except KeyboardInterrupt:
            raise CellInterrupted(f"stopped; files that are whole are in {target}") from None

    def _before_cell(self, ranks: Ranks) -> str:
        """Bring what has changed since the last cell, where that is wanted; returns what the user should know."""
        if not self._settings.sync:
            if autoreloads():
                result = SyncResult({}, Contents({}))
                self._reload(ranks, result)
                return "\n".join(result.of_modules())
            return ""
        result = self._bring(ranks, False, _silent)
        sources = {path: stamp for path, stamp in result.contents.files.items() if path.endswith(SOURCE)}
        if sources != self._sources:
            self._reload(ranks, result)
        lines = result.of_modules()
        refused = {host: each for host, each in result.hosts.items() if each.refused}
        lines += str(SyncResult(refused, Contents({}))).splitlines()
        if result.contents.left_out != self._said_left_out:
            self._said_left_out = result.contents.left_out
            lines += left_out_lines(result.contents)
        return "\n".join(lines)

    def _folder_sync(self) -> FolderSync:
        if self._sync is None:
            settings = self._settings
            folder = Folder(Path(settings.folder))
            self._sync = FolderSync(folder, works_in=settings.cwd, named=settings.cwd_named, placed=settings.folders)
        return self._sync

    def _bring(self, ranks: Ranks, overwrite: bool, progress: Callable[[str], None]) -> SyncResult:
        stop, sync, before = Stop(), self._folder_sync(), dict(self._settings.folders)
        with self._changing:
            try:
                with stop.noted():
                    result = sync.bring(ranks, overwrite=overwrite, progress=progress, go_on=stop.raise_if_pressed)
            except KeyboardInterrupt:
                raise CellInterrupted("stopped while files were sent; the hosts have what they had") from None
            if self._settings.folders != before:
                ranks.save()
        if progress is not _silent:
            self._said_left_out = result.contents.left_out
        return result

    # Modules.

    def _reload(self, ranks: Ranks, result: SyncResult) -> None:
        """Have all ranks reload the modules that have changed, or none; `result` gets what became of that."""
        if busy := [rank.rank for rank in ranks.monitor.busy(range(self.size))]:
            result.not_reloaded = f"They are reloaded once {rank_label(busy)} runs no cell."
            return
        number = time.time_ns()  # also after another notebook's
        try:
            answers, silent = self._replies(
                self._ask_all(PrepareReload(reload=number, committed=self._committed), None)
            )
        except BaseException:
            for rank in ranks.monitor.ranks:
                ranks.lifeline.tell(rank.uuid, StopReload(number))
            self._decide(number, commit=False)
            raise
        failed = _failures(answers)
        if silent:
            failed |= dict.fromkeys(silent, "no answer")
        changed = any(
            reply.answer.reloaded or reply.answer.removed for reply in answers.values() if isinstance(reply, Reply)
        )
        if failed or changed:
            self._decide(number, commit=not failed)
        if failed:
            result.not_reloaded = "; ".join(f"{rank_label(which)}: {why}" for why, which in alike(failed).items())
            return
        given = [reply.answer for reply in answers.values() if isinstance(reply, Reply)]
        result.reloaded = list(dict.fromkeys(name for each in given for name in each.reloaded))
        result.removed = list(dict.fromkeys(name for each in given for name in each.removed))
        self._sources = {path: stamp for path, stamp in result.contents.files.items() if path.endswith(SOURCE)}

    def _decide(self, number: int, *, commit: bool) -> None:
        """A rank that loses its connection here learns of the decision with the next reload."""
        if commit:
            self._committed = number
        answers, _ = self._replies(self._ask_all(DecideReload(reload=number, commit=commit), None))
        for rank, reply in answers.items():
            if isinstance(reply, RequestFailed):
                raise CannotCopy(f"rank {rank}: its modules could not be updated: {reply.kind}: {reply}")


def _failures(answers: Mapping[int, Any]) -> dict[int, str]:
    """Why ranks could not reload."""
    failed = dict[int, str]()
    for rank, reply in answers.items():
        if isinstance(reply, RequestFailed):
            failed[rank] = f"{reply.kind}: {reply}"
        elif isinstance(reply.answer, ReloadPrepared) and reply.answer.error:
            failed[rank] = reply.answer.error
    return failed
