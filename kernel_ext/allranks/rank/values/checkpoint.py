"""Save the user's variables of this rank to a private file, and load them in another process.

Variables that cannot be pickled, or could not be loaded again, are detected while this process still has them. The file
begins with one pickle for each name, in one stream, in which several names can share objects. The raw buffers of arrays
follow.
"""

from __future__ import annotations

import gc
import io
import os
import pickle
import struct
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, TypeVar

from allranks.machine.private_files import private_file
from allranks.messages.value_types import Namespace
from allranks.pickling import pickle_values
from allranks.rank.collectives.trace import mark

from . import process_state
from .ask_trial_load import SMALL, TrialLoad
from .tolerant_unpickler import SURVIVED, TolerantUnpickler

if TYPE_CHECKING:
    from allranks.messages.wire import Buffer

GIVEN = frozenset({"mx", "world", "rank", "size"})
"""The names that every rank starts with, besides ``log`` and ``mark``."""
OF_IPYTHON = frozenset({"In", "Out", "exit", "quit", "get_ipython", "open"})
RESCUE_WITHIN = 5.0
"""Timeout, in seconds, for packing one variable: packing may wait for the blocked main thread."""
ATTEMPTS_WITHIN = 300.0
"""Total seconds for the attempts to load the saved variables in another process."""
LENGTH = struct.Struct("<Q")
"""The length that precedes each buffer in a file."""

B = TypeVar("B")
Try = Callable[[Path], TrialLoad]
Read = Callable[[IO[bytes], int], object]


@dataclass(frozen=True)
class SavedCheckpoint:
    """The names that are not in the file."""

    left: list[str]
    """Names that cannot be pickled."""
    failed: dict[str, str]
    """Names that can be pickled but not loaded again, and why."""


@dataclass(frozen=True)
class LoadedCheckpoint:
    names: list[str] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)
    """Names that could not be loaded, and why."""
    state: Mapping[str, object] | None = None
    """Other state of the process (see `process_state`), if it was saved."""


def user_variables(
    user_ns: Mapping[str, object], hidden: Mapping[str, object], given: Collection[str] = GIVEN
) -> Namespace:
    """The user's own variables: without underscored, IPython's and `given` names, `mark`, and `hidden` objects."""
    return {
        name: value
        for name, value in list(user_ns.items())
        if not name.startswith("_")
        and name not in OF_IPYTHON
        and name not in given
        and value is not mark
        and not (name in hidden and hidden[name] is value)
    }


def save(
    path: Path, variables: Mapping[str, object], attempt: Try | None = None, aside: Path | None = None
) -> SavedCheckpoint:
    """Write the variables that can be pickled to a file (0600). Objects shared by several names stay shared.

    `attempt` loads a copy of the file without its large arrays in another process. It is repeated without the names
    that fail, until all the others load; names that fail are written to the file `aside` instead. Raises RuntimeError
    if the attempts take longer than `ATTEMPTS_WITHIN`, or if the other process ends before it loads the first name.
    """
    whole, left, failed = dict(variables), list[str](), dict[str, str]()
    until = time.monotonic() + ATTEMPTS_WITHIN
    try:
        buffers = pickle_values.pack_names(whole)
    except pickle_values.NotPicklable:
        left = [name for name, value in variables.items() if not _packs(value)]
        whole = _without(whole, left)
        buffers = pickle_values.pack_names(whole)
    while attempt is not None and (found := _tried(path.with_name(f"{path.name}.trial"), buffers, attempt)):
        failed |= found
        if time.monotonic() > until:
            raise RuntimeError(f"loading them in another process took longer than {ATTEMPTS_WITHIN:g} s")
        whole = _without(whole, found)
        buffers = pickle_values.pack_names(whole)
    _write(path, buffers)
    if failed and aside is not None:
        _write(aside, pickle_values.pack_names({name: variables[name] for name in failed}))
    return SavedCheckpoint(left, failed)


def _packs(value: object) -> bool:
    try:
        pickle_values.pack_names({"": value})
    except pickle_values.NotPicklable:
        return False
    return True


def _without(variables: Mapping[str, object], names: Collection[str]) -> Namespace:
    return {name: value for name, value in variables.items() if name not in names}


def _tried(file: Path, buffers: Iterable[Buffer], attempt: Try) -> dict[str, str]:
    """Names that another process could not load, and why. Raises RuntimeError if it ends before the first name."""
    try:
        _write(file, buffers, largest=SMALL)
        trial = attempt(file)
    finally:
        file.unlink(missing_ok=True)
    if trial.ended and trial.last is None:
        raise RuntimeError(f"they could not be loaded in another process: {trial.ended}")
    return trial.failed if trial.last is None else {trial.last: trial.ended}


def _write(path: Path, buffers: Iterable[Buffer], largest: int | None = None) -> None:
    """Write the buffers. A buffer larger than `largest` bytes, except the first, becomes a hole of the same size."""
    with private_file(path) as file:
        for number, buffer in enumerate(buffers):
            view = memoryview(buffer).cast("B")
            file.write(LENGTH.pack(view.nbytes))
            if largest is None or number == 0 or view.nbytes <= largest:
                file.write(view)
            else:
                file.seek(view.nbytes, os.SEEK_CUR)
        file.truncate()


def rescue(
    path: Path, variables: Mapping[str, object], attempt: Try | None = None, aside: Path | None = None
) -> SavedCheckpoint:
    """Call `save` from another thread while the main thread is blocked in a collective indefinitely.

    Evaluated arrays can be read from any thread. MLX evaluates pending arrays only in the thread that made them
    (0.32.4). So variables with pending arrays are left out, and variables that take longer than `RESCUE_WITHIN` to
    pack.
    """
    ready = {name: value for name, value in variables.items() if _packs_within(value, RESCUE_WITHIN)}
    saved = save(path, ready, attempt, aside)
    return SavedCheckpoint([name for name in variables if name not in ready] + saved.left, saved.failed)


def _packs_within(value: object, seconds: float) -> bool:
    packed: list[bool] = []
    thread = threading.Thread(target=lambda: packed.append(_packs(value)), daemon=True)
    thread.start()
    thread.join(seconds)
    return packed == [True]


def load(
    path: Path,
    namespace: Namespace,
    *,
    read: Read | None = None,
    begin: Callable[[str], None] = lambda _name: None,
) -> LoadedCheckpoint:
    """Bind, in `namespace`, the variables that `save` wrote; variables that cannot be loaded are left out.

    `read` reads a buffer of the given size from the file; `begin` is called with each name before it is loaded. Raises
    OSError, EOFError, and if the file itself is damaged, what `pickle` raises.
    """
    loaded = _load(path, namespace, read or read_exactly, begin)
    names = [name for name in loaded.names if name != process_state.NAME]
    return LoadedCheckpoint(names, loaded.failed, namespace.pop(process_state.NAME, None))


def _load(path: Path, namespace: Namespace, read: Read, begin: Callable[[str], None]) -> LoadedCheckpoint:
    with open(path, "rb") as file:
        stream = read_exactly(file, _length(file.read(LENGTH.size)))
        start = file.tell()

        def buffers() -> Iterator[object]:
            file.seek(start)
            return frames(file, read)

        return load_stream(stream, buffers, namespace, begin)


def load_stream(
    stream: bytes | bytearray,
    buffers: Callable[[], Iterable[object]],
    namespace: Namespace,
    begin: Callable[[str], None] = lambda _name: None,
    stored: Callable[[str], object] | None = None,
) -> LoadedCheckpoint:
    """Bind, in `namespace`, the variables that `pack_names` packed; variables that cannot be loaded are left out.

    `buffers` returns the stream's out-of-band buffers; `stored` returns an object that is stored elsewhere, by its key.
    """

    def unpickler(kind: Any) -> Any:
        made = kind(io.BytesIO(stream), buffers=buffers())
        if stored is not None:
            made.persistent_load = stored
        return made

    before = dict(namespace)
    try:
        return LoadedCheckpoint(_bind(unpickler(pickle.Unpickler), namespace, begin))
    except SURVIVED:
        put_back(namespace, namespace.keys(), before)
    gc.collect()  # free the arrays before they are loaded a second time
    tolerant = unpickler(TolerantUnpickler)
    names = _bind(tolerant, namespace, begin)
    new = {name: value for name, value in namespace.items() if name not in before or before[name] is not value}
    failed = tolerant.broken(new, namespace)
    put_back(namespace, failed, before)
    return LoadedCheckpoint(
        [name for name in names if name not in failed], {name: failed[name] for name in names if name in failed}
    )


def _bind(
    unpickler: pickle.Unpickler | pickle._Unpickler, namespace: Namespace, begin: Callable[[str], None]
) -> list[str]:
    """Load and bind one name after the other, since restoring an object may use earlier names; return the names."""
    names = []
    for name, value in pickle_values.unpack_names(unpickler):
        begin(name)
        namespace[name] = value()
        names.append(name)
    return names


def put_back(namespace: Namespace, names: Iterable[str], before: Mapping[str, object]) -> None:
    """Restore these names in `namespace` to their values `before`, or delete them if they had none."""
    for name in list(names):
        if name in before:
            namespace[name] = before[name]
        else:
            del namespace[name]


def frames(file: IO[bytes], read: Callable[[IO[bytes], int], B]) -> Iterator[B]:
    """Read the buffers of a file with `read`. In the file, each buffer is preceded by its length."""
    while head := file.read(LENGTH.size):
        yield read(file, _length(head))


def _length(head: bytes) -> int:
    if len(head) < LENGTH.size:
        raise EOFError("the file is incomplete")
    return int(LENGTH.unpack(head)[0])


def read_exactly(file: IO[bytes], size: int) -> bytearray:
    """Read `size` bytes. Raises EOFError if the file has fewer."""
    data = bytearray(size)
    if file.readinto(data) != size:  # type: ignore[attr-defined]
        raise EOFError("the file is incomplete")
    return data


def load_variables(path: str | os.PathLike[str]) -> list[str]:
    """Load variables that `heal`, `resize` or `rewire` saved but could not load. Call it on the rank that had them.

    Returns their names. Raises ValueError, after loading the others, for names that still cannot be loaded. The file
    stays. Like `pickle`, it runs code from the file: load only files that your own ranks have saved.
    """
    loaded = load(Path(path), vars(sys.modules["__main__"]))
    if loaded.failed:
        raise ValueError("; ".join(f"{name} cannot be loaded: {why}" for name, why in loaded.failed.items()))
    return loaded.names
