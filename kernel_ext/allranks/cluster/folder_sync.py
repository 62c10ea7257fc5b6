"""The part of `Cluster` that copies files to and from hosts, and keeps the folder and modules equal on all hosts."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import wait
from pathlib import Path

from allranks.check_arguments import parse_size
from allranks.errors import CannotCopy, CellInterrupted, UsageError
from allranks.files.fetch import TARGET, Fetch, FetchResult
from allranks.files.notebook_folder import Contents, Folder, Stamp
from allranks.files.share_files import HeadShare, ShareResult
from allranks.files.sync import FolderSync
from allranks.files.sync_result import HostSync, SyncResult, left_out_lines
from allranks.head.world.ranks import Ranks
from allranks.lifeline.open_questions import Reply, RequestFailed
from allranks.messages.requests import DecideReload, PrepareReload, ReloadPrepared, StopReload
from allranks.notebook.ipython_shell import autoreloads
from allranks.notebook.stop_button import Stop
from allranks.notebook.transfer_progress import SHOW_EVERY, wait_and_show
from allranks_backends.plan import alike, rank_label

from .cluster_base import Answered, ClusterBase, for_others, unsaid

DECIDED_WITHIN = 10.0
"""Seconds that ranks get to keep or undo a reload; the new and the old modules are in their memory."""


class ClusterFiles(ClusterBase):
    """Copies the working folder to all hosts, fetches files of the ranks, and shares files of one host."""

    _sync: FolderSync | None = None
    _sources: Mapping[str, Stamp] | None = None
    """The folder's modules when the ranks last reloaded them; None if that is unknown."""
    _committed = 0
    """Number of the last reload that all ranks were asked to keep."""
    _reported: Sequence[str] = ()
    """The last report on files that were not sent."""

    @property
    def auto_sync(self) -> bool:
        """Whether the working folder is copied to all hosts, and changed modules are reloaded, before each cell.

        Can be set. Raises UsageError if the working folder is the home folder or ``/``, or no longer exists.
        """
        return self._settings.options.sync

    @auto_sync.setter
    def auto_sync(self, on: bool) -> None:
        if on:
            self._folder_sync().folder.refuse_if_too_much()
        self._settings.change(sync=on)
        self._save()

    def sync(
        self,
        *,
        limit: int | str | None = None,
        include: Sequence[str] = (),
        overwrite: bool = False,
        progress: Callable[[str], None] = unsaid,
    ) -> SyncResult:
        """Copy the notebook's working folder to all hosts that lack it, and reload modules that have changed.

        Sends changed files, except notebooks, secrets, files that ``.gitignore`` excludes, and the largest files beyond
        50 MiB in total. `limit` (bytes, or text such as ``"2G"``) sets another limit; `include` has patterns, as in
        ``.gitignore``, of files that are sent nevertheless. Both also apply to later cells. On a host, only files that
        came from here are replaced or removed, unless `overwrite` is set. Afterwards, ranks work in the copy: in the
        folder that ``cwd`` names, or in one below ``~/allranks``. `progress` is called with a line of text before the
        first files are sent to a host.

        Raises UsageError for the home folder and for invalid arguments, CannotCopy if a host cannot take the files,
        CellInterrupted, and what `run` raises. No host is changed before all hosts have received all files.
        """
        ranks = self._refuse_if_unable(range(self.size))
        sync, settings = self._folder_sync(), self._settings
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
        self._reload(ranks, result)
        return result

    def _save(self) -> None:
        """Save the settings for another notebook that takes the cluster over."""
        if self._ranks is not None and self._ranks.plan is not None:
            self._ranks.save()

    def fetch(
        self,
        pattern: str,
        *,
        ranks: Sequence[int] | int | None = None,
        to: str | Path | None = None,
        overwrite: bool = False,
    ) -> FetchResult:
        """Copy files of the ranks here: into the folder ``fetched`` beside the notebook, or into the folder `to`.

        `pattern` is a pattern of `glob`, with ``**``: relative to each rank's working folder, absolute, or below ``~``.
        A file that is equal on all ranks that have it is fetched once, under its own path; files that differ between
        ranks are stored below ``rank-0``, ``rank-1`` and so on. Ranks may be running a cell. Modification times are
        kept. Existing files are replaced in ``fetched``, but in the folder `to` only with `overwrite`.

        Raises UsageError if no rank has such a file, or it is here already, CannotCopy if a file cannot be read there
        or written here, or changes meanwhile, NoAnswer and WorldBroken for dead ranks, NoCluster, and CellInterrupted
        (files that are complete by then stay).
        """
        chosen, living = self.choose_ranks(ranks), self._up()
        self._refuse_dead(chosen, for_others("fetch", repr(pattern)))
        target = Path(self._settings.folder, TARGET) if to is None else Path(to).expanduser().absolute()
        stop = Stop()
        try:
            with stop.noted():
                fetch = Fetch(living, chosen, target, stop.raise_if_pressed)
                return fetch.run(pattern, overwrite=overwrite or to is None)
        except KeyboardInterrupt:
            raise CellInterrupted(f"stopped; files that are whole are in {target}") from None

    def share(
        self,
        path: str | Path,
        *,
        source: int | str | None = None,
        to: str | Path | None = None,
        overwrite: bool = False,
    ) -> ShareResult:
        """Copy a file or folder from the host that has it to all other hosts, from host to host, and verify checksums.

        `path` is a path on that host (relative paths begin at its rank's working folder), or the id of a repository in
        its Hugging Face cache, such as ``"mlx-community/Qwen3-0.6B-4bit"``. `source` names the host, or a rank on it;
        the default is a host whose copy did not come from a share: the notebook's host, if ranks run there and have the
        files, or the first one. On other hosts the files get the same path, below their own home folder if it is below
        the source's; files of the Hugging Face cache go to the cache there. `to` names another folder. In a cell,
        ``allranks.shared(name)`` returns the path on each rank.

        Files that a host has already are not sent. Only files of an earlier share are replaced, unless `overwrite` is
        set. Ranks may be running a cell. If the network fails for a while, the share goes on when it is back; the next
        call continues a share that was stopped or failed.

        Raises UsageError if no host has the files, copies differ, or something else is in the way; CannotCopy if a host
        cannot send or take them; NoCluster and CellInterrupted. Nothing is put in place before all hosts have all
        files. If a host then cannot put a file in place, it and other hosts may have some of the files in place; each
        of these is complete, and the message says so.
        """
        living, stop = self._up(), Stop()
        if not living.monitor.alive():
            self._refuse_if_broken(living)
        share = HeadShare(living, stop.raise_if_pressed)
        try:
            with stop.noted():
                return share.run(
                    os.fspath(path), source=source, to=None if to is None else os.fspath(to), overwrite=overwrite
                )
        except KeyboardInterrupt:
            raise CellInterrupted(share.stopped()) from None

    def _before_cell(self, ranks: Ranks, chosen: Sequence[int]) -> str:
        """Copy and reload what has changed since the last cell, if enabled; returns a message for the user."""
        if not (self._settings.options.sync or autoreloads()):
            return ""
        result, lines = SyncResult({}, Contents({})), list[str]()
        if self._settings.options.sync:
            result = self._bring(ranks, False, unsaid)
            lines = self._news(result)
        if not self._settings.options.sync or _sources(result.contents) != self._sources:
            busy = [rank.rank for rank in ranks.monitor.busy(range(self.size))]
            if not busy:
                self._reload(ranks, result)
            elif self._settings.options.sync:
                result.not_reloaded = f"They are reloaded once {rank_label(busy)} runs no cell."
        self._refuse_if_unable(chosen)  # the copying may have taken long
        return "\n".join([*lines, *result.of_modules()])

    def _news(self, result: SyncResult) -> list[str]:
        """The lines on files that were not sent, if they differ from the last report."""
        refused = {host: each for host, each in result.hosts.items() if each.refused}
        kept = {host: HostSync(each.folder, refused=each.refused) for host, each in refused.items()}
        lines = [*str(SyncResult(kept, Contents({}))).splitlines(), *left_out_lines(result.contents)]
        before, self._reported = self._reported, lines
        return lines if lines != before else []

    def _folder_sync(self) -> FolderSync:
        if self._sync is None:
            settings = self._settings
            folder = Folder(Path(settings.folder), settings.sync_limit, settings.sync_include)
            self._sync = FolderSync(folder, works_in=settings.cwd, named=settings.cwd_named, placed=settings.folders)
        return self._sync

    def _bring(self, ranks: Ranks, overwrite: bool, progress: Callable[[str], None]) -> SyncResult:
        stop, sync, before = Stop(), self._folder_sync(), dict(self._settings.folders)
        with self._changing:
            try:
                with stop.noted():
                    result = sync.bring(ranks, overwrite=overwrite, progress=progress, go_on=stop.raise_if_pressed)
            except KeyboardInterrupt:
                has = "may have some of the new files" if sync.putting_in_place else "have what they had"
                raise CellInterrupted(f"stopped while files were sent; the hosts {has}") from None
            if self._settings.folders != before:
                ranks.save()
        return result

    # Modules.

    def _reload(self, ranks: Ranks, result: SyncResult) -> None:
        """Have all ranks reload the modules that have changed, or none; `result` gets the names, or the reason.

        Raises CannotCopy if a rank does not respond: its modules may differ from those of other ranks until the next
        reload, which first tells it what was decided.
        """
        number, stop = time.time_ns(), Stop(around=True)  # a higher number than in any earlier notebook
        with self._changing, stop.noted():
            try:
                asked = self._ask_all(PrepareReload(reload=number, committed=self._committed), None)
                wait_and_show(
                    lambda: not wait(asked.values(), SHOW_EVERY).not_done,
                    asked,
                    lambda rank: "" if asked[rank].done() else "reloads its modules",
                    stop.raise_if_pressed,
                )
                answers, silent = self._replies(asked)
            except KeyboardInterrupt:
                self._undo(ranks, number)
                raise CellInterrupted("stopped while modules were reloaded; all ranks keep those they had") from None
            except BaseException:
                self._undo(ranks, number)
                raise
            failed = _failures(answers)
            given = [reply.answer for reply in answers.values() if isinstance(reply, Reply)]
            changed = any(answer.reloaded or answer.removed for answer in given)
            if silent or failed:
                silent += self._decide(ranks, number, commit=False)
            elif changed:
                silent += self._decide(ranks, number, commit=True)
            if silent:
                self._sources = None
                which = rank_label(sorted(set(silent)))
                raise CannotCopy(
                    f"{which} did not respond while modules were reloaded. Run the cell again once %distributed status "
                    "no longer shows 'stopped' or 'out of reach'."
                )
        stop.raise_if_pressed()
        if failed:
            result.not_reloaded = "; ".join(f"{rank_label(which)}: {why}" for why, which in alike(failed).items())
            return
        reloaded = {rank: reply.answer.reloaded for rank, reply in answers.items() if isinstance(reply, Reply)}
        names = dict.fromkeys(name for each in reloaded.values() for name in each)
        by_ranks = alike({name: tuple(rank for rank, each in reloaded.items() if name in each) for name in names})
        result.reloaded = {numbers: tuple(modules) for numbers, modules in by_ranks.items()}
        result.size = self.size
        result.removed = list(dict.fromkeys(name for each in given for name in each.removed))
        self._sources = _sources(result.contents)

    def _undo(self, ranks: Ranks, number: int) -> None:
        """Interrupt modules that are being executed again, and have all ranks restore their old modules."""
        for rank in ranks.monitor.ranks:
            ranks.lifeline.tell(rank.uuid, StopReload(number))
        self._decide(ranks, number, commit=False)

    def _decide(self, ranks: Ranks, number: int, *, commit: bool) -> list[int]:
        """Send the decision to all ranks. Returns ranks that did not respond; they learn of it at the next reload.

        Raises CannotCopy if a rank cannot update its modules.
        """
        if commit:
            self._committed = number
        asked = ranks.ask(range(self.size), DecideReload(reload=number, commit=commit))
        wait(asked.values(), DECIDED_WITHIN)
        silent = [rank for rank, answer in asked.items() if not answer.done()]
        for rank, answer in asked.items():
            if rank in silent:
                continue
            error = answer.exception()
            if isinstance(error, RequestFailed):
                raise CannotCopy(f"rank {rank}: its modules could not be updated: {error.kind}: {error}")
            if error is not None:
                silent.append(rank)
        return silent


def _sources(contents: Contents) -> dict[str, Stamp]:
    """The modules of the folder."""
    return {path: stamp for path, stamp in contents.files.items() if path.endswith(".py")}


def _failures(answers: Mapping[int, Answered[ReloadPrepared]]) -> dict[int, str]:
    """Why ranks could not reload, by rank."""
    failed = dict[int, str]()
    for rank, reply in answers.items():
        if isinstance(reply, RequestFailed):
            failed[rank] = f"{reply.kind}: {reply}"
        elif reply.answer.error:
            failed[rank] = reply.answer.error
    return failed
