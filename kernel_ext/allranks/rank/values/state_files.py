"""Save this rank's variables to a folder on its host, and load them again.

Arrays go to safetensors files under readable keys, all other values to one pickle for each rank. The files of one save
are in a folder of their own (see `messages.state_manifest`). The last step replaces ``manifest.json``, which names that
folder: so whenever a rank is killed, either the old state or the new one is complete.
"""

from __future__ import annotations

import fcntl
import io
import os
import shutil
import sys
import time
import types
from collections.abc import Container, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, TypeAlias

from allranks.messages import requests
from allranks.messages.state_manifest import (
    MANIFEST,
    NO_RUNS,
    RUNS,
    SHARED,
    VERSION,
    StateManifest,
    arrays_file,
    checksum,
    digest,
    pickle_file,
)
from allranks.messages.value_types import Namespace
from allranks.messages.wire import Buffer
from allranks.pickling import pickle_values

from . import checkpoint, safetensors
from .describe_variables import DEEPEST, PLAIN
from .safetensors import ArrayBytes, Damaged, SafetensorsFile

if TYPE_CHECKING:
    from mlx.core import array as Array

LOCK = ".saving"
"""The file that is locked while a save writes to the folder. It contains the version that is being written."""
LOCKED_WITHIN = 2.0
"""Seconds to wait until the rank that holds the lock has written its version to the file."""
LOOK_EVERY = 0.02
SAMPLE_PART = 4096
SAMPLE_PARTS = 64
"""An array's sample has `SAMPLE_PARTS` parts of `SAMPLE_PART` bytes. A smaller array is its own sample."""


INVALID = "its collective was aborted, so it is invalid"
"""Why a variable that holds an invalid array is not saved."""


def find_savable(
    variables: Mapping[str, object], invalid: Container[int]
) -> tuple[dict[str, list[Array]], dict[str, str]]:
    """Return the names that can be saved, each with the MLX arrays in its value, and the others, each with the reason.

    Evaluates no array. `invalid` has the ``id`` of each array that must not be saved. In the main thread.
    """
    found, not_saved = dict[str, list[Any]](), dict[str, str]()
    for name, value in sorted(variables.items()):
        try:
            arrays = pickle_values.arrays_to_pack(value)
        except pickle_values.NotPicklable as error:
            not_saved[name] = error.reason
        else:
            if any(id(array) in invalid for array in arrays):
                not_saved[name] = INVALID
            else:
                found[name] = arrays
    return found, not_saved


class StateSnapshot:
    """The values of variables at one moment; later cells do not change them. Taken in the main thread."""

    def __init__(self, variables: Mapping[str, object]) -> None:
        """An array with several names gets its key from the first name. Raises ValueError for an unsavable variable."""
        keys = _keys(variables)
        self.variables: list[requests.HeldVariable] = []
        stored = dict[str, Any]()
        for name, value in variables.items():
            try:
                described, of_name = _described(name, value, keys)
            except pickle_values.NotPicklable as error:
                raise ValueError(f"{name} can no longer be saved ({error.reason})") from None
            self.variables.append(described)
            stored |= of_name

        def key_of(obj: object) -> str | None:
            return keys[id(obj)][0] if id(obj) in keys else None

        self.pickle = [bytes(each) for each in pickle_values.pack_names(variables, key_of)]
        self.arrays = _snapshot(stored)

    def described(self) -> list[requests.HeldArray]:
        return [
            requests.HeldArray(
                key, each.library, each.dtype, list(each.shape), each.data.nbytes, digest(*_sampled(each.data))
            )
            for key, each in self.arrays.items()
        ]

    def digests(self, keys: Sequence[str]) -> dict[str, str]:
        """The digests of the bytes of these arrays, by key."""
        return {key: digest(self.arrays[key].data) for key in keys}


ArrayKeys: TypeAlias = Mapping[int, tuple[str, Any]]
"""Maps the ``id`` of each array to its key and to the array itself, which keeps the ``id`` from being reused."""


def _described(name: str, value: Any, keys: ArrayKeys) -> tuple[requests.HeldVariable, dict[str, Any]]:
    """The description of a variable, and its arrays that have keys. Raises NotPicklable."""
    arrays = dict[str, Any]()

    def stored(obj: object) -> str | None:
        if id(obj) not in keys:
            return None
        key, _ = keys[id(obj)]
        arrays[key] = obj
        return key

    packed = pickle_values.pack_to_compare(value, stored)
    kind, dtype, shape = type(value), None, None
    if _is_storable(value):
        dtype, shape = str(value.dtype).removeprefix("mlx.core."), list(value.shape)
    typed = f"{kind.__module__}.{kind.__qualname__}"
    return requests.HeldVariable(name, typed, dtype, shape, list(arrays), digest(*packed)), arrays


def _is_storable(value: Any) -> bool:
    """Whether the value goes to a safetensors file: an MLX array, or a plain numpy array.

    Plain means contiguous, writeable, not a view of another array, and of a native dtype that the format has.
    """
    if (mx := sys.modules.get("mlx.core")) is not None and type(value) is mx.array:
        return True
    numpy = sys.modules.get("numpy")
    if numpy is None or type(value) is not numpy.ndarray:
        return False
    whole = value.base is None and value.flags.c_contiguous and value.flags.writeable
    dtype = value.dtype
    # Another library's bfloat16 (kind V) has the same name as MLX's, and no numpy can read it without that library.
    return bool(whole and dtype.kind in "biufc" and dtype.isnative and dtype.name in safetensors.DTYPES)


def _keys(variables: Mapping[str, object]) -> ArrayKeys:
    """The keys of the arrays found in the variables. An array with several names gets its key from the first name."""
    found, taken, seen = dict[int, tuple[str, Any]](), set[str](), dict[int, object]()
    for name, value in variables.items():
        for path, array in _arrays_in(value, name, seen):
            if id(array) not in found:
                key, number = path, 1
                while key in taken:
                    number += 1
                    key = f"{path}#{number}"
                taken.add(key)
                found[id(array)] = (key, array)
    return found


def _arrays_in(value: object, path: str, seen: dict[int, object], depth: int = 0) -> Iterator[tuple[str, Any]]:
    """Yield each array in a value, with its path. Skips values in `seen`, by ``id``, and adds the values it visits."""
    if _is_storable(value):
        yield path, value
    elif type(value) not in PLAIN and depth < DEEPEST and id(value) not in seen:
        seen[id(value)] = value
        try:
            parts = [(f"{path}.{name}", each) for name, each in _parts(value)]
        except Exception:  # raised by the object's own code; its arrays go to the pickle
            parts = []
        for part, each in parts:
            yield from _arrays_in(each, part, seen, depth + 1)


def _parts(value: object) -> Iterator[tuple[object, object]]:
    """Yield the parts of a container, a model, an optimizer or another object, each with its name or number."""
    if isinstance(value, dict):
        yield from list(dict.items(value))
    elif isinstance(value, (list, tuple)):
        yield from enumerate(list(value))
    elif (optimizers := sys.modules.get("mlx.optimizers")) is not None and isinstance(value, optimizers.Optimizer):
        yield from list(value.state.items())
    elif not isinstance(value, (type, types.ModuleType, types.FunctionType)):
        yield from list(getattr(value, "__dict__", {}).items())


def _snapshot(arrays: Mapping[str, Any]) -> dict[str, ArrayBytes]:
    """The bytes of these arrays.

    The bytes of an MLX array may share its memory until an assignment (``x[0] = 1``) copies the array. The bytes of a
    numpy array are a copy.
    """
    mx = sys.modules.get("mlx.core")
    own = {
        # There is no float64 on a GPU.
        key: mx.contiguous(each, stream=mx.cpu if each.dtype == mx.float64 else None)
        for key, each in arrays.items()
        if mx is not None and type(each) is mx.array
    }
    if mx is not None:
        mx.eval(list(own.values()))
    taken = dict[str, ArrayBytes]()
    for key, each in arrays.items():
        if key in own:
            dtype, shape, buffer = pickle_values.array_parts(own[key])
            taken[key] = ArrayBytes("mlx", dtype, shape, buffer.raw())
        else:
            taken[key] = ArrayBytes("numpy", each.dtype.name, each.shape, memoryview(each.tobytes()))
    return taken


def _sampled(data: memoryview) -> Iterator[memoryview]:
    size = data.nbytes
    if size <= SAMPLE_PART * SAMPLE_PARTS:
        yield data
        return
    for number in range(SAMPLE_PARTS):
        start = number * (size - SAMPLE_PART) // (SAMPLE_PARTS - 1)
        yield data[start : start + SAMPLE_PART]


class StateWriter:
    """Writes one snapshot. Raises OSError.

    One of the ranks on each disk locks the folder until `end`, so that only one save writes to the folder at a time.
    """

    def __init__(self, rank: int, snapshot: StateSnapshot, path: str, version: str) -> None:
        self._rank, self._snapshot = rank, snapshot
        self.folder = resolved(path)
        self._files = self.folder / version
        self._lock: IO[str] | None = None
        """The lock file, if this rank has locked the folder."""
        self._replaced: str | None = None
        """The version that the folder's manifest named before `commit`."""
        self.first = False
        """Whether no lower rank writes to the same disk; set by `write`, once all ranks have called `open`."""

    def open(self) -> tuple[int, int]:
        """Create the folder and write the pickle; return the pickle's size in bytes and its checksum.

        Locks the folder, unless another rank of this save has. Raises BlockingIOError if another save has.
        """
        _refuse_others(self.folder)
        self._files.mkdir(parents=True, exist_ok=True)
        self._lock = _locked(self.folder, self._files.name)
        if self._lock is not None:
            self._remove_others(incomplete=True)
        lengths = [checkpoint.LENGTH.pack(len(each)) for each in self._snapshot.pickle]
        parts = [part for pair in zip(lengths, self._snapshot.pickle, strict=True) for part in pair]
        with open(self._files / pickle_file(self._rank), "xb") as file:
            file.writelines(parts)
            file.flush()
            os.fsync(file.fileno())
        return sum(map(len, parts)), checksum(*parts)

    def write(self, equal: Sequence[str]) -> tuple[dict[str, int], int]:
        """Write the arrays; arrays that are `equal` on all ranks only if this rank is the first on its disk.

        Returns the checksums of the arrays that this rank has written, and the number of bytes written.
        """
        arrays, shared = self._snapshot.arrays, set(equal)
        self.first = not any((self._files / pickle_file(rank)).exists() for rank in range(self._rank))
        files = {arrays_file(self._rank): [key for key in arrays if key not in shared]}
        if self.first:
            files[SHARED] = list(equal)
        checksums, written = dict[str, int](), 0
        for name, keys in files.items():
            if keys:
                size, made = safetensors.write(self._files / name, {key: arrays[key] for key in keys})
                checksums, written = checksums | made, written + size
        _sync_folder(self._files)
        _sync_folder(self.folder)
        return checksums, written

    def commit(self, manifest: Buffer, runs: Buffer) -> None:
        """Write the runs, and put the manifest in place: the last step, done by one rank for each disk."""
        self._replaced = _current(self.folder)
        if runs == NO_RUNS and self._replaced is not None:  # for example a save from a shell: keep the previous runs
            with suppress(OSError):
                runs = (self.folder / self._replaced / RUNS).read_bytes()
        for folder, name, data in (
            (self._files, RUNS, runs),
            (self._files, MANIFEST, manifest),
            (self.folder, MANIFEST, manifest),
        ):
            new = folder / f".{MANIFEST}.{self._files.name}"
            with open(new, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.replace(new, folder / name)
            _sync_folder(folder)
        _sync_folder(self.folder.parent)

    def end(self, remove: requests.Removed) -> None:
        """Remove the files of this version or of the versions that it replaces, or no files; unlock the folder."""
        if remove == "this":
            shutil.rmtree(self._files, ignore_errors=True)
        elif remove == "others":
            if self._lock is not None:
                self._remove_others()
            elif self._replaced is not None:
                shutil.rmtree(self.folder / self._replaced, ignore_errors=True)
        if self._lock is not None:
            fcntl.flock(self._lock, fcntl.LOCK_UN)  # a forked child may have the file open, too
            self._lock.close()

    def _remove_others(self, incomplete: bool = False) -> None:
        """Remove all other versions, or only the `incomplete` ones that killed saves have left."""
        for each in self.folder.glob("state-*"):
            keep = each == self._files or (incomplete and (each / MANIFEST).exists())
            if VERSION.fullmatch(each.name) and not keep:
                shutil.rmtree(each, ignore_errors=True)
        for each in self.folder.glob(f".{MANIFEST}.state-*"):
            each.unlink(missing_ok=True)


def _locked(folder: Path, version: str) -> IO[str] | None:
    """The locked file; None if another rank of the same save has the lock, or the file system has no locks.

    Raises BlockingIOError if another save has the lock.
    """
    file = open(folder / LOCK, "a+")
    until = time.monotonic() + LOCKED_WITHIN
    try:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                file.seek(0)
                if file.read() == version:
                    break
                if time.monotonic() > until:
                    raise BlockingIOError(f"another save to {folder} is under way") from None
                time.sleep(LOOK_EVERY)
            except OSError:
                break
            else:
                file.truncate(0)
                file.write(version)
                file.flush()
                return file
    except BaseException:
        file.close()
        raise
    file.close()
    return None


def _current(folder: Path) -> str | None:
    """The version that the folder's manifest names; None if no manifest can be read."""
    try:
        return read_manifest(folder).version
    except (OSError, ValueError):
        return None


def resolved(path: str) -> Path:
    """The absolute path; a relative `path` starts at the working folder."""
    return Path(path).expanduser().absolute()


def _refuse_others(folder: Path) -> None:
    """Raise FileExistsError if a manifest that this version of allranks cannot read would be replaced."""
    if (folder / MANIFEST).exists():
        try:
            StateManifest.decoded((folder / MANIFEST).read_bytes())
        except ValueError as error:
            raise FileExistsError(f"{folder / MANIFEST} {error}, and is not replaced") from None


def _sync_folder(folder: Path) -> None:
    """Flush the folder's entries to disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def find(path: str) -> requests.StateFound:
    """The state in a folder. Raises OSError if there is none, and ValueError if its manifest cannot be decoded."""
    folder = resolved(path)
    if not (folder / MANIFEST).exists():
        raise FileNotFoundError(f"no saved state in {folder}" if folder.is_dir() else f"there is no folder {folder}")
    current = read_manifest(folder)
    versions = dict[str, list[int]]()
    for each in folder.glob("state-*"):
        with suppress(OSError, ValueError):  # if this version is loaded, the error is raised then
            versions[each.name] = _pickles_in(folder, read_manifest(each))
    return requests.StateFound(str(folder), current.version, versions)


def _pickles_in(folder: Path, manifest: StateManifest) -> list[int]:
    """The ranks whose pickles are in the folder."""
    return [rank for rank, each in manifest.pickles.items() if (folder / each.file).exists()]


def read_manifest(folder: Path) -> StateManifest:
    """The folder's manifest. Raises OSError, and ValueError as `StateManifest.decoded` does."""
    try:
        return StateManifest.decoded((folder / MANIFEST).read_bytes())
    except ValueError as error:
        raise ValueError(f"{folder / MANIFEST} {error}") from None


class StateReader:
    """Reads the variables that one rank has saved. Used in the main thread."""

    def __init__(self, folder: Path, version: str, rank: int | None) -> None:
        """`rank` is the rank that saved; None means the lowest whose pickle is here. Raises OSError and ValueError."""
        self._folder = folder
        self._manifest = read_manifest(folder / version)
        self._rank = rank if rank is not None else min(_pickles_in(folder, self._manifest), default=0)
        self._files = dict[str, SafetensorsFile]()
        self._loaded = Namespace()
        self.nbytes = 0
        """Bytes read so far."""

    def load(self, names: Sequence[str], namespace: Namespace) -> tuple[Namespace, dict[str, str]]:
        """The values of these names, and the reasons for names that cannot be loaded. Does not change the namespace."""
        held = {name: value for name in names if (value := self._manifest.value(name, self._rank)) is not None}
        wanted = {key for value in held.values() for key in value.arrays}
        for key in sorted(wanted):
            self._load_array(key)
        stream, *buffers = self._read_pickle()
        before = dict(namespace)
        try:
            # Restoring an object may use earlier names, so the names are bound while loading.
            loaded = checkpoint.load_stream(stream, lambda: map(bytearray, buffers), namespace, stored=self._loaded.get)
            found = {name: namespace[name] for name in loaded.names if name in held}
            # Functions bring the underscored names that they use.
            found |= {name: namespace[name] for name in namespace if name.startswith("_") and name not in before}
        finally:
            checkpoint.put_back(namespace, namespace.keys(), before)
            for file in self._files.values():
                file.close()
        return found, {name: why for name, why in loaded.failed.items() if name in held}

    def _load_array(self, key: str) -> None:
        stored = self._manifest.array(key, self._rank)
        path = self._folder / stored.file
        if stored.file not in self._files:
            self._files[stored.file] = SafetensorsFile(path)
        data = self._files[stored.file].read(key, stored.dtype, stored.shape, stored.bytes)
        if checksum(data) != stored.crc32:
            raise Damaged(f"{path} was changed: {key} does not match its checksum")
        self.nbytes += len(data)
        if stored.library == "numpy":
            import numpy

            self._loaded[key] = numpy.frombuffer(data, stored.dtype).reshape(stored.shape).copy()
        else:
            self._loaded[key] = pickle_values.array_from_buffer(stored.dtype, stored.shape, data)

    def _read_pickle(self) -> list[bytearray]:
        stored = self._manifest.pickles[self._rank]
        path = self._folder / stored.file
        data = path.read_bytes()
        if len(data) < stored.bytes:
            raise Damaged(f"{path} is incomplete")
        if checksum(data) != stored.crc32:
            raise Damaged(f"{path} was changed: it does not match its checksum")
        self.nbytes += len(data)
        return list(checkpoint.frames(io.BytesIO(data), checkpoint.read_exactly))
