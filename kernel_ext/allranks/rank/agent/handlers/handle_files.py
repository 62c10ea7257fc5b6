"""Requests about the working folder, its modules, and files to fetch."""

from __future__ import annotations

from allranks.lifeline.open_questions import Reply
from allranks.messages import requests
from allranks.rank.collectives.ledger import Ledger
from allranks.rank.files import found_files, synced_folder
from allranks.rank.main_thread.main_thread_calls import MainThread
from allranks.rank.main_thread.running_cell import RunningCell
from allranks.rank.modules.reload import Reloader
from allranks.rank.values.ask_trial_load import Beginning

from .handler_table import Buffers, RequestTable

RELOADING = "a module that is reloaded cannot call collectives: call them in a cell"


class FileHandlers(RequestTable):
    def __init__(self, beginning: Beginning) -> None:
        super().__init__()
        folder = synced_folder
        self.answer(requests.OpenFolder, lambda request, _: Reply(folder.open_folder(request)))
        self.confirm(requests.BeginFiles, lambda request, _: folder.begin(request.folder, request.transfer))
        self.confirm(
            requests.PutPieces,
            lambda request, buffers: folder.put(request.folder, request.transfer, request.pieces, buffers),
        )
        self.answer(requests.CommitFiles, lambda request, _: Reply(folder.commit(request)))
        self.confirm(requests.DropFiles, lambda request, _: folder.drop(request.folder, request.transfer))
        self.confirm(requests.EnterFolder, lambda request, _: beginning.enter(request.folder))
        self.answer(requests.FindFiles, lambda request, _: Reply(found_files.find(request.pattern)))
        self.answer(requests.DigestFiles, self._digest)
        self.answer(requests.ReadParts, self._read_parts)

    def _digest(self, request: requests.DigestFiles, _: Buffers) -> Reply[requests.Digests]:
        return Reply(requests.Digests([found_files.digest(path) for path in request.paths]))

    def _read_parts(self, request: requests.ReadParts, _: Buffers) -> Reply[requests.PartsRead]:
        read = [found_files.read(part) for part in request.parts]
        return Reply(requests.PartsRead([state for state, _ in read]), [data for _, data in read])


class ReloadHandlers(RequestTable):
    def __init__(
        self, reloader: Reloader, beginning: Beginning, main: MainThread, cell: RunningCell, ledger: Ledger
    ) -> None:
        super().__init__()
        self._reloader, self._beginning, self._main = reloader, beginning, main
        self._cell, self._ledger = cell, ledger
        self._reloading: int | None = None
        """Number of the reload that the main thread is carrying out; None outside of one."""
        self.answer(requests.PrepareReload, self._prepare)
        self.accept(requests.StopReload, self._stop)
        self.confirm(requests.DecideReload, lambda request, _: reloader.decide(request.reload, request.commit))

    def _prepare(self, request: requests.PrepareReload, _: Buffers) -> Reply[requests.ReloadPrepared]:
        folder, allowed = self._beginning.directory, self._cell.interrupt.allowed
        self._ledger.refuse_in_cell(RELOADING)  # a rank whose module fails earlier would never enter one
        self._reloading = request.reload
        try:
            prepared = self._reloader.prepare(request.reload, request.committed, folder, allowed)
        finally:
            self._reloading = None
            self._ledger.refuse_in_cell(None)
        return Reply(requests.ReloadPrepared(prepared.reloaded, prepared.removed, prepared.error))

    def _stop(self, request: requests.StopReload, _: Buffers) -> None:
        if self._reloading == request.reload:
            self._main.interrupt()
