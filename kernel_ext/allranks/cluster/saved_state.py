"""Saves the ranks' variables to a folder, and loads them again."""

from __future__ import annotations

import os
import re
import shlex
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, wait
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from importlib.metadata import version as installed_version
from typing import TypeVar

import msgspec

from allranks.errors import CannotLoad, CannotSave, CellInterrupted, NoAnswer, UsageError, WorldBroken, WouldHang
from allranks.head.world.ranks import A, Ranks
from allranks.lifeline.open_questions import Reply, RequestFailed
from allranks.messages.requests import (
    CommitState,
    CompareArrays,
    DecideLoad,
    EndSave,
    FindSavable,
    FindState,
    LoadPrepared,
    OpenState,
    PrepareLoad,
    Question,
    ReadManifest,
    Removed,
    Savable,
    SnapshotTaken,
    StateFound,
    StateOpened,
    StateWritten,
    TakeSnapshot,
    WriteState,
)
from allranks.messages.state_manifest import (
    MANIFEST,
    RANDOM_STATES,
    SHARED,
    StateManifest,
    StoredArray,
    StoredPickle,
    StoredValue,
    StoredVariable,
    arrays_file,
    decoded_runs,
    new_version,
    pickle_file,
)
from allranks.messages.state_manifest import (
    RUNS as RUNS_FILE,
)
from allranks.messages.wire import Buffer
from allranks.notebook.cell_curves import CellCurves
from allranks.notebook.stop_button import Stop
from allranks.units import count_text, ranks_text, seconds_text
from allranks_backends.plan import alike, rank_label
from allranks_backends.registry import listed
from allranks_widgets import human_bytes

from .live_ranks import LiveRanks
from .run_history import RUNS

RUNS_SAVED = 10
"""The latest runs, at most this many, are saved with the variables; hidden runs among them are left out."""
REMOVED_WITHIN = 30.0
"""Seconds that ranks get to remove files that are no longer needed."""
Grouped = TypeVar("Grouped", StoredArray, StoredValue)
Refusal = Callable[[str], CannotSave | CannotLoad]
FORESEEN = {
    *("OSError", "PermissionError", "FileNotFoundError", "FileExistsError", "NotADirectoryError", "IsADirectoryError"),
    *("Damaged", "ValueError", "LookupError"),
}
"""Names of the error types whose messages are clear without the name."""
REFUSED = (
    "No such file",
    "Permission denied",
    "Read-only file system",
    "Not a directory",
    "File exists",
    "is not replaced",
)
NOTHING_LOADED = "Nothing was loaded."


@dataclass(frozen=True)
class SavedState:
    """What `Cluster.save` wrote."""

    path: str
    """The folder, as it was given."""
    variables: tuple[str, ...]
    equal: tuple[str, ...]
    """The variables that are equal on all ranks."""
    size: int
    """Number of ranks."""
    nbytes: int
    """Bytes that all ranks together wrote."""
    seconds: float
    not_saved: Mapping[str, str] = field(default_factory=dict)
    """Names that cannot be saved, and why."""

    def __str__(self) -> str:
        per_rank = len(self.variables) - len(self.equal)
        said = f"{len(self.equal)} equal on all ranks, {per_rank} per rank"
        how = f"{human_bytes(self.nbytes)}, {seconds_text(self.seconds)}"
        what = f"{count_text(len(self.variables), 'variable')} of {ranks_text(self.size)}"
        text = f"Saved {what} ({how}) in {self.path}: {said}."
        return f"{text}\nNot saved: {_listed(self.not_saved)}." if self.not_saved else text


@dataclass(frozen=True)
class LoadedState:
    """What `Cluster.load` read."""

    path: str
    """The folder, as it was given."""
    variables: tuple[str, ...]
    size: int
    """Number of ranks that have loaded the state."""
    saved_by: int
    """Number of ranks that saved the state."""
    nbytes: int
    """Bytes that all ranks together read."""
    seconds: float
    notes: tuple[str, ...] = ()

    def __str__(self) -> str:
        of = f" of {ranks_text(self.saved_by)}" if self.saved_by != self.size else ""
        what = f"{count_text(len(self.variables), 'variable')}{of} on {ranks_text(self.size)}"
        text = f"Loaded {what} ({human_bytes(self.nbytes)}, {seconds_text(self.seconds)}) from {self.path}."
        return "\n".join((text, *self.notes))


def _listed(reasons: Mapping[str, str]) -> str:
    """Format names with their reasons; names with the same reason are grouped."""
    return "; ".join(f"{', '.join(names)} ({why})" for why, names in alike(reasons).items())


class SaveAndLoad:
    """Saves the ranks' variables to a folder on their hosts, and loads them."""

    def __init__(self, live: LiveRanks) -> None:
        self._live = live
        self.saves_to: str | None = None
        """The folder to which `begin_save` is still writing; None otherwise."""
        self._saving = threading.Lock()
        """Held during a save or a load: a rank can hold only one snapshot, or the loaded values of one state."""

    def save(self, path: str | os.PathLike[str], names: Sequence[str] | str | None, *, complete: bool) -> SavedState:
        """See `Cluster.save`."""
        with self._saving:
            return self._write(self._take_snapshots(path, names, complete))

    def begin_save(self, path: str | os.PathLike[str], names: Sequence[str] | str | None) -> Future[SavedState]:
        """See `Cluster.begin_save`."""
        saved = Future[SavedState]()
        saved.set_running_or_notify_cancel()
        with ExitStack() as turn:
            turn.enter_context(self._turn_to_save())
            snapshots = self._take_snapshots(path, names)

            def write(its_turn: ExitStack) -> None:
                try:
                    with its_turn:
                        result = self._write(snapshots)
                except BaseException as error:
                    saved.set_exception(error)
                else:
                    saved.set_result(result)

            stop = Stop(in_waits=True)
            with stop.noted():  # Ctrl-C here could make both threads release the lock, or neither
                stop.put_off()
                self.saves_to, its_turn = snapshots.folder, turn.pop_all()
                try:
                    threading.Thread(target=write, args=[its_turn], name="allranks-save", daemon=True).start()
                except BaseException:
                    its_turn.close()
                    raise
        return saved

    def _take_snapshots(
        self, path: str | os.PathLike[str], names: Sequence[str] | str | None, complete: bool = False
    ) -> _Snapshots:
        folder, wanted, began = os.fspath(path), _chosen(names), time.monotonic()
        failed, version = _cannot_save(folder), new_version()
        with self._live.starting:  # a cell of another thread runs on all ranks either before this or after it
            numbers = range(self._live.size)
            ranks = self._live.refuse_if_unable(numbers)
            savable = self._each(ranks, FindSavable(names=wanted), failed, numbers)
            not_saved = _not_saved(savable, wanted, folder, complete)
            _refuse_pending_on_some({rank: set(each.pending) for rank, each in savable.items()})
            everywhere = set.intersection(*(set(each.names) for each in savable.values()))

            def ask() -> dict[int, Future[Reply[SnapshotTaken]]]:
                asked = dict[int, Future[Reply[SnapshotTaken]]]()
                for rank, each in savable.items():
                    # Variables that exist on all ranks come first, so that their arrays have the same keys.
                    chosen = sorted(each.names, key=lambda name: (name not in everywhere, name))
                    asked |= ranks.ask([rank], TakeSnapshot(version=version, names=chosen))
                return asked

            try:
                taken = self._answers(ranks, numbers, ask, failed)
            except BaseException:
                self._end_save(ranks, numbers, version, "nothing")
                raise
        runs = [run.stored() for run in [*RUNS][-RUNS_SAVED:] if not run.hidden]
        return _Snapshots(ranks, folder, version, taken, not_saved, began, msgspec.json.encode(runs))

    def _write(self, snapshots: _Snapshots) -> SavedState:
        ranks, folder, version = snapshots.ranks, snapshots.folder, snapshots.version
        numbers, failed, stop = list(snapshots.by_rank), _cannot_save(folder), Stop(in_waits=True)
        remove: Removed = "this"
        try:
            with _adding(f"If {folder} had a saved state before, it still has it."):
                equal = self._equal(snapshots, failed)
                opened = self._each(ranks, OpenState(path=folder, version=version), failed, numbers)
                written = self._each(ranks, WriteState(version=version, equal=equal), failed, numbers)
            manifest = _manifest(version, snapshots.by_rank, opened, written, set(equal))
            first = [rank for rank, reply in written.items() if reply.first]
            remove = "nothing"  # one host's manifest may name this version already, and another's the previous one
            with _adding(f"{folder} has the new state, or the one before."), stop.noted():
                stop.put_off()
                self._each(ranks, CommitState(version=version), failed, first, [manifest.encoded(), snapshots.runs])
            remove = "others"
        finally:
            self._end_save(ranks, numbers, version, remove)
        if stop.pressed:
            raise CellInterrupted(f"stopped once {folder} had the new state")
        names = [name for name in manifest.variables if name not in RANDOM_STATES]
        nbytes = sum(each.bytes for each in opened.values()) + sum(each.bytes for each in written.values())
        same = tuple(name for name in names if manifest.variables[name].equal)
        seconds = time.monotonic() - snapshots.began
        return SavedState(folder, tuple(names), same, len(opened), nbytes, seconds, snapshots.not_saved)

    def load(self, path: str | os.PathLike[str], names: Sequence[str] | str | None) -> LoadedState:
        """See `Cluster.load`."""
        folder, wanted, began = os.fspath(path), _chosen(names), time.monotonic()
        failed = _cannot_load(folder)
        with self._saving, self._live.starting:
            ranks = self._live.refuse_if_unable(range(self._live.size))
            found = self._each(ranks, FindState(folder), failed, range(self._live.size))
            version = _newest(found, failed)
            manifest, runs = self._read_manifest(ranks, found[0].path, version, failed)
            _refuse_absent(manifest, wanted, folder)
            away = [rank for rank, each in found.items() if rank not in each.versions.get(version, ())]
            own = manifest.world_size == len(found) and not away
            chosen, notes = (
                (wanted or list(manifest.variables), []) if own else _equal_ones(manifest, wanted, len(found), folder)
            )
            paths = {rank: each.path for rank, each in found.items()}
            nbytes, lacking = self._load(ranks, paths, manifest, chosen, own, failed)
        notes += _restored_runs(runs)
        notes += [f"Not restored on {rank_label(numbers)}: {what}." for what, numbers in alike(lacking).items()]
        variables = tuple(name for name in chosen if name not in RANDOM_STATES)
        seconds = time.monotonic() - began
        return LoadedState(folder, variables, self._live.size, manifest.world_size, nbytes, seconds, tuple(notes))

    def _load(
        self,
        ranks: Ranks,
        paths: Mapping[int, str],
        manifest: StateManifest,
        names: Sequence[str],
        own: bool,
        failed: Refusal,
    ) -> tuple[int, dict[int, str]]:
        """Have all ranks load these variables; returns the bytes read, and, by rank, what could not be restored.

        With `own`, each rank loads the files of the rank with its number; otherwise, the values are equal on all ranks.
        """
        stop = Stop(in_waits=True)

        def ask() -> dict[int, Future[Reply[LoadPrepared]]]:
            asked = dict[int, Future[Reply[LoadPrepared]]]()
            for rank, path in paths.items():
                request = PrepareLoad(path=path, version=manifest.version, names=list(names), own=own)
                asked |= ranks.ask([rank], request)
            return asked

        try:
            with _adding(NOTHING_LOADED):
                loaded = self._answers(ranks, list(paths), ask, failed)
                _refuse_unloadable(manifest, {rank: each.failed for rank, each in loaded.items()}, failed)
            with _adding("The other ranks may have loaded it."), stop.noted():
                stop.put_off()
                bound = self._each(ranks, DecideLoad(bind=True), failed, list(paths))
        except BaseException:
            if self._live.ranks is ranks:
                ranks.ask(list(paths), DecideLoad(bind=False))
            raise
        if stop.pressed:
            raise CellInterrupted("stopped once all ranks had loaded it")
        nbytes = sum(each.nbytes for each in loaded.values())
        return nbytes, {rank: _listed(each.failed) for rank, each in bound.items() if each.failed}

    def _each(
        self,
        ranks: Ranks,
        question: Question[A],
        failed: Refusal,
        chosen: Sequence[int],
        buffers: Sequence[Buffer] = (),
    ) -> dict[int, A]:
        """Ask the `chosen` ranks the question; returns their answers. Raises what `_answers` raises."""
        _refuse_removed(ranks, chosen, failed)
        return self._answers(ranks, chosen, lambda: ranks.ask(chosen, question, buffers), failed)

    def _answers(
        self, ranks: Ranks, chosen: Sequence[int], ask: Callable[[], Mapping[int, Future[Reply[A]]]], failed: Refusal
    ) -> dict[int, A]:
        """Ask the `chosen` ranks; returns their answers. If some fail, raises what `failed` returns for the reasons.

        Raises NoAnswer and WorldBroken for ranks that do not answer or die, and CellInterrupted after Ctrl-C.
        """

        def send() -> Mapping[int, Future[Reply[A]]]:
            asked = ask()
            if len(asked) < len(chosen):
                self._live.refuse_if_broken(ranks)
            return asked

        try:
            replies = self._live.all_replies(send, chosen)
        except (UsageError, WorldBroken):
            _refuse_removed(ranks, chosen, failed)
            raise
        reasons = {rank: _reason(each) for rank, each in replies.items() if isinstance(each, RequestFailed)}
        if reasons:
            raise failed(self._by_rank(reasons))
        return {rank: each.answer for rank, each in replies.items() if isinstance(each, Reply)}

    def _by_rank(self, reasons: Mapping[int, str]) -> str:
        """Format reasons as sentences on ranks, with their hosts unless all ranks are on this machine."""
        said = []
        for why, numbers in alike(reasons).items():
            hosts = dict.fromkeys(self._live.snapshot.ranks[rank].host for rank in numbers)
            where = f" on {', '.join(hosts)}" if not self._live.local else ""
            said.append(f"{rank_label(numbers)}{where}: {why}.")
        return " ".join(said)

    def _equal(self, snapshots: _Snapshots, failed: Refusal) -> list[str]:
        """The keys of the arrays that are equal on all ranks."""
        held = {rank: {each.key: each for each in answer.arrays} for rank, answer in snapshots.by_rank.items()}
        if len(held) == 1:
            return list(held[0])
        alike_by_sample = [
            key for key, array in held[0].items() if all(arrays.get(key) == array for arrays in held.values())
        ]
        if not alike_by_sample:
            return []
        question = CompareArrays(version=snapshots.version, keys=alike_by_sample)
        digests = self._each(snapshots.ranks, question, failed, list(held))
        first = digests[0].digests
        return [key for key in alike_by_sample if all(each.digests[key] == first[key] for each in digests.values())]

    def _read_manifest(self, ranks: Ranks, path: str, version: str, failed: Refusal) -> tuple[StateManifest, Buffer]:
        """Read the manifest and ``runs.json`` of this version through rank 0."""
        replies = self._live.all_replies(lambda: ranks.ask([0], ReadManifest(path=path, version=version)), [0])
        if isinstance(reply := replies[0], RequestFailed):
            raise failed(self._by_rank({0: _reason(reply)}))
        try:
            return StateManifest.decoded(reply.buffers[0]), reply.buffers[1]
        except ValueError as error:
            raise failed(f"{path}/{version}/{MANIFEST} {error}.") from None

    @contextmanager
    def _turn_to_save(self) -> Iterator[None]:
        """Hold the lock that allows only one save or load at a time; clear `saves_to` at the end."""
        with self._saving:
            try:
                yield
            finally:
                self.saves_to = None

    def _end_save(self, ranks: Ranks, numbers: Sequence[int], version: str, remove: Removed) -> None:
        """Have ranks drop their snapshots, and remove the files of the versions that `remove` names.

        A rank that does not respond keeps its snapshot until the next save.
        """
        if self._live.ranks is ranks:
            there = [rank for rank in numbers if rank < len(ranks.monitor.ranks)]
            wait(ranks.ask(there, EndSave(version=version, remove=remove)).values(), REMOVED_WITHIN)


@dataclass(frozen=True)
class _Snapshots:
    """The snapshots that ranks hold until they have written them."""

    ranks: Ranks
    folder: str
    version: str
    by_rank: Mapping[int, SnapshotTaken]
    not_saved: Mapping[str, str]
    began: float
    runs: bytes
    """The content of ``runs.json``."""


def _refuse_removed(ranks: Ranks, chosen: Sequence[int], failed: Refusal) -> None:
    """Raise the error that `failed` makes if `resize` has removed some of these ranks."""
    if removed := [rank for rank in chosen if rank >= len(ranks.monitor.ranks)]:
        raise failed(f"{rank_label(removed)} {'was' if len(removed) == 1 else 'were'} removed in the meantime.")


def _cannot_save(folder: str) -> Refusal:
    return lambda text: CannotSave(f"cannot save in {folder}: {text} {_advice(text)}".rstrip())


def _cannot_load(folder: str) -> Refusal:
    return lambda text: CannotLoad(f"cannot load {folder}: {text}")


def _chosen(names: Sequence[str] | str | None) -> list[str] | None:
    """The names without repetition; None for all. Raises UsageError for an invalid name, or if there are no names."""
    if names is None:
        return None
    chosen = [names] if isinstance(names, str) else list(dict.fromkeys(names))
    if bad := [name for name in chosen if not name.isidentifier()]:
        raise UsageError(f"{bad[0]!r} is not a variable name.")
    if not chosen:
        raise UsageError("no names given.")
    return chosen


@contextmanager
def _adding(text: str) -> Iterator[None]:
    """Add a sentence to the message of an error that is raised in the ``with`` block."""
    try:
        yield
    except (CannotSave, CannotLoad, NoAnswer, WorldBroken, CellInterrupted) as error:
        said = str(error).rstrip(".")
        error.args = (f"{said}. {text}" if said else text,)
        raise


def _advice(text: str) -> str:
    """What to do about an error of a file system; empty if unknown."""
    if any(cause in text for cause in ("No space left", "quota exceeded", "File too large")):
        return "Free space there, or save in another folder."
    return "Save in another folder." if any(cause in text for cause in REFUSED) else ""


def _reason(error: RequestFailed) -> str:
    """The reason why a rank failed, without a full stop."""
    text = re.sub(r"^\[Errno \d+\] ", "", str(error)).rstrip(".")
    return text if error.kind in FORESEEN else f"{error.kind}: {text}"


def _not_saved(
    savable: Mapping[int, Savable], wanted: Sequence[str] | None, folder: str, complete: bool
) -> dict[str, str]:
    """Names that cannot be saved, and why.

    Raises CannotSave if one is `wanted`, or with `complete` if there is any; UsageError if no rank has a wanted name.
    """
    absent = [name for name in wanted or () if all(name in each.missing for each in savable.values())]
    if absent:
        raise UsageError(f"no rank has a variable {', '.join(absent)} (%distributed vars lists them).")
    found = dict[str, str]()
    for name in dict.fromkeys(name for each in savable.values() for name in each.not_saved):
        reasons = alike({rank: each.not_saved[name] for rank, each in savable.items() if name in each.not_saved})
        where = {
            why: "" if len(numbers) == len(savable) else f" on {rank_label(numbers)}"
            for why, numbers in reasons.items()
        }
        found[name] = "; ".join(f"{why}{on}" for why, on in where.items())
    if not found or (wanted is None and not complete):
        return found
    others, command = [name for name in wanted or () if name not in found], f"%distributed save {shlex.quote(folder)}"
    if wanted is None:
        advice = f" {command} saves the others."
    else:
        advice = f" For the others: {command} {' '.join(others)}" if others else ""
    raise CannotSave(f"cannot save {_listed(found)}. Nothing was written.{advice}")


def _refuse_pending_on_some(pending: Mapping[int, set[str]]) -> None:
    """Raise WouldHang if a variable waits for a collective on some ranks but not on others."""
    everywhere = set.intersection(*pending.values())
    for rank, names in pending.items():
        if some := sorted(names - everywhere):
            waits = "waits" if len(some) == 1 else "wait"
            raise WouldHang(
                f"{', '.join(some)} on rank {rank} {waits} for a collective that not all ranks would enter. Nothing "
                "was saved. Delete it there, or name the variables to save."
            )


def _manifest(
    version: str,
    taken: Mapping[int, SnapshotTaken],
    opened: Mapping[int, StateOpened],
    written: Mapping[int, StateWritten],
    equal: set[str],
) -> StateManifest:
    """The manifest of what all ranks have written; `equal` has the keys of arrays that are equal on all ranks."""
    shared = next(each.crc32 for each in written.values() if each.first)
    arrays, variables = dict[str, dict[int, StoredArray]](), dict[str, dict[int, StoredValue]]()
    for rank, answer in taken.items():
        for each in answer.arrays:
            arrays.setdefault(each.key, {})[rank] = StoredArray(
                ranks=[],
                library=each.library,
                dtype=each.dtype,
                shape=each.shape,
                bytes=each.nbytes,
                crc32=shared[each.key] if each.key in equal else written[rank].crc32[each.key],
                file=f"{version}/{SHARED if each.key in equal else arrays_file(rank)}",
            )
        for held in answer.variables:
            variables.setdefault(held.name, {})[rank] = StoredValue(
                ranks=[], type=held.type, digest=held.digest, dtype=held.dtype, shape=held.shape, arrays=held.arrays
            )
    grouped = {name: _grouped(values) for name, values in sorted(variables.items())}
    return StateManifest(
        version=version,
        world_size=len(taken),
        allranks=installed_version("allranks"),
        mlx=taken[0].mlx,
        python=taken[0].python,
        variables={
            name: StoredVariable(
                equal=len(values) == 1 and len(values[0].ranks) == len(taken) and equal.issuperset(values[0].arrays),
                values=values,
            )
            for name, values in grouped.items()
        },
        arrays={key: _grouped(each) for key, each in sorted(arrays.items())},
        pickles={
            rank: StoredPickle(file=f"{version}/{pickle_file(rank)}", bytes=each.bytes, crc32=each.crc32)
            for rank, each in opened.items()
        },
    )


def _grouped(by_rank: Mapping[int, Grouped]) -> list[Grouped]:
    """Merge equal entries of ranks into one that lists these ranks; the given entries list none yet."""
    found = dict[bytes, Grouped]()
    for rank, each in by_rank.items():
        key = msgspec.json.encode(each)
        found.setdefault(key, each).ranks.append(rank)
    return list(found.values())


def _newest(found: Mapping[int, StateFound], failed: Refusal) -> str:
    """The version to load: the current one if it is the same on all hosts, else the newest complete on all hosts.

    Raises the error that `failed` makes if no version is complete on all hosts.
    """
    current = {each.current for each in found.values()}
    if len(current) == 1:
        return current.pop()
    common = set.intersection(*(set(each.versions) for each in found.values()))
    if not common:
        held = alike({rank: each.current for rank, each in found.items()})
        said = "; ".join(f"{rank_label(numbers)} {version}" for version, numbers in held.items())
        raise failed(f"the hosts have states of different saves ({said}).")
    return max(common)


def _refuse_absent(manifest: StateManifest, wanted: Sequence[str] | None, folder: str) -> None:
    """Raise UsageError for names that were not saved."""
    if absent := [name for name in wanted or () if name not in manifest.variables]:
        has = ", ".join(name for name in manifest.variables if name not in RANDOM_STATES)
        raise UsageError(f"{folder} has no variable {', '.join(absent)}. It has {has}.")


def _equal_ones(
    manifest: StateManifest, wanted: Sequence[str] | None, size: int, folder: str
) -> tuple[list[str], list[str]]:
    """The names to load if not every rank can load the files of the rank with its number, and notes for the user.

    Only variables that were equal on all ranks can be loaded then. Raises CannotLoad if `wanted` (None: all variables)
    has others.
    """
    names, notes = list(manifest.variables if wanted is None else wanted), list[str]()
    if random := [name for name in names if name in RANDOM_STATES and not manifest.variables[name].equal]:
        names = [name for name in names if name not in random]
        states = listed([name.strip("()").removeprefix("state of ") for name in random], "and")
        notes.append(
            f"Not loaded: the state{'s' if len(random) > 1 else ''} of {states}, which differed between ranks."
        )
    if differ := [name for name in names if not manifest.variables[name].equal]:
        same = [name for name in names if name not in differ and name not in RANDOM_STATES]
        advice = f"%distributed load {shlex.quote(folder)} {' '.join(same)} loads the others. " if same else ""
        if size == manifest.world_size:
            why = "the files of some ranks are not on the hosts where these ranks are now."
            for_all = "have the ranks on the same hosts as before, or copy the folders between hosts"
        else:
            why = f"{ranks_text(manifest.world_size)} saved it, and this world has {size}."
            for_all = f"%distributed resize {manifest.world_size}, then load again"
        raise CannotLoad(
            f"cannot load {folder}: {why} {', '.join(differ)} {'was' if len(differ) == 1 else 'were'} not equal on all "
            f"ranks. {NOTHING_LOADED} {advice}For all: {for_all}."
        )
    return names, notes


def _restored_runs(data: Buffer) -> list[str]:
    """Restore the runs that were saved with the variables; returns notes for the user."""
    try:
        runs, added = RUNS.restore(decoded_runs(data))
    except ValueError as error:
        return [f"No runs were loaded: {RUNS_FILE} {error}."]
    for run in runs:  # the last of them is the one that the loaded variables come from
        CellCurves.remember(run)
    return [f"{count_text(added, 'run')} came with it: %distributed runs"] if added else []


def _refuse_unloadable(manifest: StateManifest, failed: Mapping[int, Mapping[str, str]], refused: Refusal) -> None:
    """Raise CannotLoad if ranks could not restore variables."""
    lacking = {rank: _listed(each) for rank, each in failed.items() if each}
    if not lacking:
        return
    said = "; ".join(f"{what} on {rank_label(numbers)}" for what, numbers in alike(lacking).items())
    names = {name for each in failed.values() for name in each}
    others = [name for name in manifest.variables if name not in names and name not in RANDOM_STATES]
    advice = f" To load the others, name them: {' '.join(others)}." if others else ""
    versions = f" allranks {manifest.allranks}, mlx {manifest.mlx} and Python {manifest.python} saved it."
    raise refused(f"{said}.{versions}{advice}")
