"""Keeps the working folder equal on all hosts: copies what has changed, on request or before each cell."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from allranks.check_arguments import parse_size
from allranks.errors import CellInterrupted, UsageError
from allranks.files.notebook_folder import Contents, Folder
from allranks.files.sync import FolderSync
from allranks.files.sync_result import HostSync, SyncResult, left_out_lines
from allranks.head.world.ranks import Ranks
from allranks.notebook.ipython_shell import autoreloads
from allranks.notebook.stop_button import Stop
from allranks_backends.plan import rank_label

from .live_ranks import LiveRanks, unsaid
from .reload_modules import ModuleReload


class SyncFolder:
    """Copies the notebook's working folder to all hosts, and has the ranks reload modules that have changed."""

    def __init__(self, live: LiveRanks) -> None:
        self._live = live
        self._modules = ModuleReload(live)
        self._sync: FolderSync | None = None
        self._reported: Sequence[str] = ()
        """The last report on files that were not sent."""

    def refuse_if_too_much(self) -> None:
        """Raise UsageError if the working folder is the home folder or ``/``, or no longer exists."""
        self._folder_sync().folder.refuse_if_too_much()

    @property
    def auto_sync(self) -> bool:
        """See `Cluster.auto_sync`."""
        return self._live.settings.options.sync

    @auto_sync.setter
    def auto_sync(self, on: bool) -> None:
        if on:
            self.refuse_if_too_much()
        self._live.settings.change(sync=on)
        self._save()

    def sync(
        self,
        *,
        limit: int | str | None,
        include: Sequence[str],
        overwrite: bool,
        progress: Callable[[str], None],
    ) -> SyncResult:
        """See `Cluster.sync`."""
        ranks = self._live.refuse_if_unable(range(self._live.size))
        sync, settings = self._folder_sync(), self._live.settings
        for pattern in include:
            sync.folder.refuse_if_absent(pattern)
        if limit is not None:
            most = parse_size(limit) if isinstance(limit, str) else limit
            if most < 1:
                raise UsageError(f"--limit {limit}: nothing could be sent.")
            settings.sync_limit = most
        settings.sync_include = tuple(dict.fromkeys((*settings.sync_include, *include)))
        sync.folder.limit, sync.folder.include = settings.sync_limit, settings.sync_include
        self._save()
        sync.forget()
        result = self._bring(ranks, overwrite, progress)
        self._news(result)
        self._modules.reload(ranks, result)
        return result

    def _save(self) -> None:
        """Save the settings for another notebook that takes the cluster over."""
        if self._live.ranks is not None and self._live.ranks.plan is not None:
            self._live.ranks.save()

    def before_cell(self, ranks: Ranks, chosen: Sequence[int]) -> str:
        """Copy and reload what has changed since the last cell, if enabled; returns a message for the user."""
        if not (self._live.settings.options.sync or autoreloads()):
            return ""
        result, lines = SyncResult({}, Contents({})), list[str]()
        if self._live.settings.options.sync:
            result = self._bring(ranks, False, unsaid)
            lines = self._news(result)
        if not self._live.settings.options.sync or self._modules.is_due(result.contents):
            busy = [rank.rank for rank in ranks.monitor.busy(range(self._live.size))]
            if not busy:
                self._modules.reload(ranks, result)
            elif self._live.settings.options.sync:
                result.not_reloaded = f"They are reloaded once {rank_label(busy)} runs no cell."
        self._live.refuse_if_unable(chosen)  # the copying may have taken long
        return "\n".join([*lines, *result.of_modules()])

    def _news(self, result: SyncResult) -> list[str]:
        """The lines on files that were not sent; no lines if they are the same as in the last report."""
        refused = {host: each for host, each in result.hosts.items() if each.refused}
        kept = {host: HostSync(each.folder, refused=each.refused) for host, each in refused.items()}
        lines = [*str(SyncResult(kept, Contents({}))).splitlines(), *left_out_lines(result.contents)]
        before, self._reported = self._reported, lines
        return lines if lines != before else []

    def _folder_sync(self) -> FolderSync:
        if self._sync is None:
            settings = self._live.settings
            folder = Folder(Path(settings.folder), settings.sync_limit, settings.sync_include)
            self._sync = FolderSync(folder, works_in=settings.cwd, named=settings.cwd_named, placed=settings.folders)
        return self._sync

    def _bring(self, ranks: Ranks, overwrite: bool, progress: Callable[[str], None]) -> SyncResult:
        stop, sync, before = Stop(), self._folder_sync(), dict(self._live.settings.folders)
        with self._live.changing:
            try:
                with stop.noted():
                    result = sync.bring(ranks, overwrite=overwrite, progress=progress, go_on=stop.raise_if_pressed)
            except KeyboardInterrupt:
                has = "may have some of the new files" if sync.putting_in_place else "have what they had"
                raise CellInterrupted(f"stopped while files were sent; the hosts {has}") from None
            if self._live.settings.folders != before:
                ranks.save()
        return result
