"""Requests that save a state to a folder on the rank's host, or load it again."""

from __future__ import annotations

import platform
from importlib.metadata import version
from pathlib import Path

from allranks.lifeline.open_questions import Reply
from allranks.messages import requests
from allranks.messages.requests import Nothing
from allranks.messages.state_manifest import MANIFEST, RANDOM_STATES, RUNS
from allranks.messages.value_types import Namespace
from allranks.rank.arrays.pending_arrays import waiting
from allranks.rank.collectives.ledger import Ledger
from allranks.rank.values import process_state, state_files
from allranks.rank.values.state_files import StateReader, StateSnapshot, StateWriter
from allranks.rank.world.given_names import GivenNames

from .handler_table import Buffers, RequestTable

GONE = "its snapshot is gone: the rank was started again, or the save was ended"


class StateHandlers(RequestTable):
    def __init__(self, rank: int, user_ns: Namespace, names: GivenNames, ledger: Ledger) -> None:
        super().__init__()
        self._rank, self._user_ns, self._names, self._ledger = rank, user_ns, names, ledger
        self._version = ""
        """Version of the save that the snapshot belongs to."""
        self._snapshot: StateSnapshot | None = None
        self._writer: StateWriter | None = None
        self._ended = ""
        """Version of the save that ended last."""
        self._loaded: Namespace = {}
        """Values that are bound once all ranks have loaded theirs."""
        self.answer(requests.FindSavable, self._find_savable)
        self.answer(requests.TakeSnapshot, self._take_snapshot)
        self.answer(requests.CompareArrays, self._compare)
        self.answer(requests.OpenState, self._open)
        self.answer(requests.WriteState, self._write)
        self.confirm(requests.CommitState, lambda request, buffers: self._opened(request.version).commit(*buffers))
        self.confirm(requests.EndSave, self._end_save)
        self.answer(requests.FindState, lambda request, _: Reply(state_files.find(request.path)))
        self.answer(requests.ReadManifest, self._read_manifest)
        self.answer(requests.PrepareLoad, self._prepare_load)
        self.answer(requests.DecideLoad, self._decide_load)

    def _find_savable(self, request: requests.FindSavable, _: Buffers) -> Reply[requests.Savable]:
        variables, missing = self._names.user_variables(), list[str]()
        if request.names is not None:
            missing = [name for name in request.names if name not in variables]
            variables = {name: variables[name] for name in request.names if name in variables}
        found, not_saved = state_files.find_savable(variables, self._ledger.invalid.alive())
        pending = waiting(array for arrays in found.values() for array in arrays)
        waits = [name for name, arrays in found.items() if any(id(array) in pending for array in arrays)]
        return Reply(requests.Savable(list(found), not_saved, missing, waits))

    def _take_snapshot(self, request: requests.TakeSnapshot, _: Buffers) -> Reply[requests.SnapshotTaken]:
        self._snapshot = self._writer = None  # frees the snapshot of a notebook that ended before it had saved
        if gone := [name for name in request.names if name not in self._user_ns]:
            raise ValueError(f"{', '.join(gone)} was deleted meanwhile")
        named = {name: self._user_ns[name] for name in request.names}
        states = process_state.random_states()
        random = {name: states[key] for name, key in RANDOM_STATES.items() if key in states}
        taken = StateSnapshot(named | random)
        self._version, self._snapshot = request.version, taken
        if self._ended == request.version:  # Ctrl-C came meanwhile
            self._snapshot = None
        versions = version("mlx"), platform.python_version()
        return Reply(requests.SnapshotTaken(taken.variables, taken.described(), *versions))

    def _compare(self, request: requests.CompareArrays, _: Buffers) -> Reply[requests.ArrayDigests]:
        return Reply(requests.ArrayDigests(self._taken(request.version).digests(request.keys)))

    def _open(self, request: requests.OpenState, _: Buffers) -> Reply[requests.StateOpened]:
        taken = self._taken(request.version)
        self._writer = writer = StateWriter(self._rank, taken, request.path, request.version)
        return Reply(requests.StateOpened(str(writer.folder), *writer.open()))

    def _write(self, request: requests.WriteState, _: Buffers) -> Reply[requests.StateWritten]:
        writer = self._opened(request.version)
        checksums, written = writer.write(request.equal)
        return Reply(requests.StateWritten(checksums, writer.first, written))

    def _end_save(self, request: requests.EndSave, _: Buffers) -> None:
        self._ended = request.version
        if self._version == request.version:
            writer, self._writer, self._snapshot = self._writer, None, None
            if writer is not None:
                writer.end(request.remove)

    def _taken(self, of: str) -> StateSnapshot:
        if self._snapshot is None or self._version != of:
            raise LookupError(GONE)
        return self._snapshot

    def _opened(self, of: str) -> StateWriter:
        if self._writer is None or self._version != of:
            raise LookupError(GONE)
        return self._writer

    def _read_manifest(self, request: requests.ReadManifest, _: Buffers) -> Reply[Nothing]:
        folder = Path(request.path, request.version)
        runs = (folder / RUNS).read_bytes() if (folder / RUNS).exists() else b""
        return Reply(Nothing(), [(folder / MANIFEST).read_bytes(), runs])

    def _prepare_load(self, request: requests.PrepareLoad, _: Buffers) -> Reply[requests.LoadPrepared]:
        self._loaded = {}
        reader = StateReader(Path(request.path), request.version, self._rank if request.own else None)
        self._loaded, failed = reader.load(request.names, self._user_ns)
        return Reply(requests.LoadPrepared(failed, reader.nbytes))

    def _decide_load(self, request: requests.DecideLoad, _: Buffers) -> Reply[requests.Loaded]:
        loaded, self._loaded = self._loaded, {}
        if not request.bind:
            return Reply(requests.Loaded({}))
        random = {key: loaded.pop(name) for name, key in RANDOM_STATES.items() if name in loaded}
        self._user_ns.update(loaded)
        self._names.hand_out()
        return Reply(requests.Loaded(process_state.restore_random(random)))
