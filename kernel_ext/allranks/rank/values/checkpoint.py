"""Save the user's variables of this rank to a private file, and load them in another process.

What cannot be pickled, and what could not be loaded again, is found out while this process still has it. The file is
one stream of pickles, a name after the other, that share what they have in common, and the raw buffers of arrays.
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
from typing import IO, Any

from allranks.machine.files import private_file
from allranks.messages import values
from allranks.rank.collectives.trace import mark

from . import process_state
from .tolerant_unpickler import SURVIVED, TolerantUnpickler
from .trial import SMALL, Trial

GIVEN = frozenset({"mx", "world", "rank", "size"})
"""The names every rank starts with."""
OF_IPYTHON = frozenset({"In", "Out", "exit", "quit", "get_ipython", "open"})
RESCUE_WITHIN = 5.0
"""Seconds one variable may take to be packed: it may wait for the blocked main thread."""
ATTEMPTS_WITHIN = 300.0
"""Seconds that attempts to load what is saved may take together."""
LENGTH = struct.Struct("<Q")
"""Before each buffer in a file."""

Try = Callable[[Path], Trial]
Read = Callable[[IO[bytes], int], Any]


@dataclass(frozen=True)
class Saved:
    """Names that are not in the file."""

    left: list[str]
    """They cannot be pickled."""
    failed: dict[str, str]
    """They can, but not be loaded again, and why."""


@dataclass(frozen=True)
class Loaded:
    names: list[str] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)
    """Names that could not be loaded, and why."""
    state: Mapping[str, Any] | None = None
    """What else the process held (see `process_state`), where that was saved."""


def user_variables(
    user_ns: Mapping[str, Any], hidden: Mapping[str, Any], given: Collection[str] = GIVEN
) -> dict[str, Any]:
    """What the user made: no underscored names, nothing IPython put there, not what the rank was `given`."""
    return {
        name: value
        for name, value in list(user_ns.items())
        if not name.startswith("_")
        and name not in OF_IPYTHON
        and name not in given
        and value is not mark
        and not (name in hidden and hidden[name] is value)
    }


def save(path: Path, variables: Mapping[str, Any], attempt: Try | None = None, aside: Path | None = None) -> Saved:
    """Write what can travel (0600). Objects shared by several names stay shared.

    With `attempt`, a copy of the file without its large arrays is loaded first, until all that is left in it loads;
    names that fail are written to the file `aside` instead. Raises RuntimeError where that comes to no end.
    """
    whole, left, failed = dict(variables), list[str](), dict[str, str]()
    until = time.monotonic() + ATTEMPTS_WITHIN
    try:
        buffers = values.pack_names(whole)
    except values.CannotTravel:
        left = [name for name, value in variables.items() if not _packs(value)]
        whole = _without(whole, left)
        buffers = values.pack_names(whole)
    while attempt is not None and (found := _tried(path.with_name(f"{path.name}.trial"), buffers, attempt)):
        failed |= found
        if time.monotonic() > until:
            raise RuntimeError(f"loading them in another process took longer than {ATTEMPTS_WITHIN:g} s")
        whole = _without(whole, found)
        buffers = values.pack_names(whole)
    _write(path, buffers)
    if failed and aside is not None:
        _write(aside, values.pack_names({name: variables[name] for name in failed}))
    return Saved(left, failed)


def _packs(value: Any) -> bool:
    try:
        values.pack_names({"": value})
    except values.CannotTravel:
        return False
    return True


def _without(variables: Mapping[str, Any], names: Collection[str]) -> dict[str, Any]:
    return {name: value for name, value in variables.items() if name not in names}


def _tried(file: Path, buffers: Iterable[Any], attempt: Try) -> dict[str, str]:
    """Names that another process could not load, and why. Raises RuntimeError where it could not even begin."""
    try:
        _write(file, buffers, largest=SMALL)
        trial = attempt(file)
    finally:
        file.unlink(missing_ok=True)
    if trial.ended and trial.last is None:
        raise RuntimeError(f"they could not be loaded in another process: {trial.ended}")
    return trial.failed if trial.last is None else {trial.last: trial.ended}


def _write(path: Path, buffers: Iterable[Any], largest: int | None = None) -> None:
    """Buffers above the `largest` size are left out: the file is as long, with holes."""
    with private_file(path) as file:
        for number, buffer in enumerate(buffers):
            view = memoryview(buffer).cast("B")
            file.write(LENGTH.pack(view.nbytes))
            if largest is None or number == 0 or view.nbytes <= largest:
                file.write(view)
            else:
                file.seek(view.nbytes, os.SEEK_CUR)
        file.truncate()


def rescue(path: Path, variables: Mapping[str, Any], attempt: Try | None = None, aside: Path | None = None) -> Saved:
    """`save` from another thread while the main one is blocked in a collective for good.

    Arrays that are evaluated can be read from any thread. MLX evaluates pending ones only in the thread that made them
    (0.32.4), so they are left out, as is what does not come to an end.
    """
    ready = {name: value for name, value in variables.items() if _packs_within(value, RESCUE_WITHIN)}
    saved = save(path, ready, attempt, aside)
    return Saved([name for name in variables if name not in ready] + saved.left, saved.failed)


def _packs_within(value: Any, seconds: float) -> bool:
    packed: list[bool] = []
    thread = threading.Thread(target=lambda: packed.append(_packs(value)), daemon=True)
    thread.start()
    thread.join(seconds)
    return packed == [True]


def load(
    path: Path,
    namespace: dict[str, Any],
    *,
    read: Read | None = None,
    begin: Callable[[str], None] = lambda _name: None,
) -> Loaded:
    """Bind in `namespace` what `save` wrote; what cannot be loaded is left out.

    `read` takes a buffer of so many bytes from the file, `begin` is told each name before it is loaded. Raises OSError,
    EOFError and what `pickle` raises where the file itself is damaged.
    """
    loaded = _load(path, namespace, read or read_exactly, begin)
    names = [name for name in loaded.names if name != process_state.NAME]
    return Loaded(names, loaded.failed, namespace.pop(process_state.NAME, None))


def _load(path: Path, namespace: dict[str, Any], read: Read, begin: Callable[[str], None]) -> Loaded:
    with open(path, "rb") as file:
        stream = read_exactly(file, _length(file.read(LENGTH.size)))
        start = file.tell()

        def buffers() -> Iterator[Any]:
            file.seek(start)
            return frames(file, read)

        return load_stream(stream, buffers, namespace, begin)


def load_stream(
    stream: bytes | bytearray,
    buffers: Callable[[], Iterable[Any]],
    namespace: dict[str, Any],
    begin: Callable[[str], None] = lambda _name: None,
    stored: Callable[[str], Any] | None = None,
) -> Loaded:
    """Bind in `namespace` what `values.pack_names` made; what cannot be loaded is left out.

    `buffers` returns the stream's out-of-band buffers, `stored` what is stored elsewhere by its key.
    """

    def unpickler(kind: Any) -> Any:
        made = kind(io.BytesIO(stream), buffers=buffers())
        if stored is not None:
            made.persistent_load = stored
        return made

    before = dict(namespace)
    try:
        return Loaded(_bind(unpickler(pickle.Unpickler), namespace, begin))
    except SURVIVED:
        put_back(namespace, namespace.keys(), before)
    gc.collect()  # arrays must not be there twice
    tolerant = unpickler(TolerantUnpickler)
    names = _bind(tolerant, namespace, begin)
    new = {name: value for name, value in namespace.items() if name not in before or before[name] is not value}
    failed = tolerant.broken(new, namespace)
    put_back(namespace, failed, before)
    return Loaded(
        [name for name in names if name not in failed], {name: failed[name] for name in names if name in failed}
    )


def _bind(unpickler: Any, namespace: dict[str, Any], begin: Callable[[str], None]) -> list[str]:
    """Each name as it comes: what restores an object may use the names before it."""
    names = []
    for name, value in values.unpack_names(unpickler):
        begin(name)
        namespace[name] = value()
        names.append(name)
    return names


def put_back(namespace: dict[str, Any], names: Iterable[str], before: Mapping[str, Any]) -> None:
    """Give these names in `namespace` what they had `before`."""
    for name in list(names):
        if name in before:
            namespace[name] = before[name]
        else:
            del namespace[name]


def frames(file: IO[bytes], read: Read) -> Iterator[Any]:
    """Each buffer of a file in which they stand one after the other, each after its length."""
    while head := file.read(LENGTH.size):
        yield read(file, _length(head))


def _length(head: bytes) -> int:
    if len(head) < LENGTH.size:
        raise EOFError("the file is incomplete")
    return int(LENGTH.unpack(head)[0])


def read_exactly(file: IO[bytes], size: int) -> bytearray:
    """Raises EOFError."""
    data = bytearray(size)
    if file.readinto(data) != size:  # type: ignore[attr-defined]
        raise EOFError("the file is incomplete")
    return data


def load_variables(path: str | os.PathLike[str]) -> list[str]:
    """Load variables that `heal`, `resize` or `rewire` saved and could not load, in a cell on the rank that had them.

    Returns their names. Raises ValueError, after it has loaded the others, for names that cannot be loaded this time
    either. The file stays. Like `pickle`, it runs what the file says: load only what ranks of yours have saved.
    """
    loaded = load(Path(path), vars(sys.modules["__main__"]))
    if loaded.failed:
        raise ValueError("; ".join(f"{name} cannot be loaded: {why}" for name, why in loaded.failed.items()))
    return loaded.names
