"""Records, in the user's private state, of the files that shares have put in place on this host.

A later share may replace a recorded file that is unchanged. As its source, it prefers a copy that no share has
put in place.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import msgspec

from .private_files import make_private, write_private
from .shared_tree import Found, Manifest, SharedTree, find, scan
from .state_folder import state_folder

PlacedState: TypeAlias = "tuple[int, int, int]"
"""Size, mtime on this host (whose file system may round it), and mtime at the source; both mtimes in ns."""


class _Placed(msgspec.Struct, array_like=True, frozen=True):
    """A file or a link that a share has put in place."""

    path: bytes
    size: int
    mtime_ns: int
    source_mtime_ns: int


_placed = msgspec.msgpack.Decoder(list[_Placed])


@dataclass(frozen=True)
class HeldCopy:
    """This host's copy of the file, folder or repository that the user typed."""

    path: bytes
    """Absolute path; empty if this host does not have it."""
    working: bytes
    """The process's working folder, to which a relative path refers."""
    placed: bool = False
    """Whether a share has put all of the copy in place, and nothing has changed since."""
    state: str = ""
    """A checksum, equal on hosts whose copies have equal names, sizes and times; empty if the copy cannot be read."""


def look_for(typed: bytes) -> tuple[HeldCopy, SharedTree | None]:
    """Find a path, or the id of a repository in the Hugging Face cache, on this host.

    The tree is None if the path or the repository does not exist or cannot be read.
    """
    found, working = find(typed), os.getcwdb()
    if found is None:
        return HeldCopy(b"", working), None
    try:
        manifest = scan(found)
    except OSError:  # an offer then fails with the reason
        return HeldCopy(found.path, working), None
    copy = HeldCopy(found.path, working, _is_placed(found, manifest), _state(found, manifest))
    return copy, (found, manifest)


def _is_placed(found: Found, manifest: Manifest) -> bool:
    known = read_records(os.path.realpath(found.path) if os.path.isdir(found.path) else found.path)
    content = [entry for entry in manifest.entries if not stat.S_ISDIR(entry.mode)]
    return bool(content) and all(
        entry.path in known and known[entry.path][:2] == (entry.size, entry.mtime_ns) for entry in content
    )


def _state(found: Found, manifest: Manifest) -> str:
    """Checksum of names, sizes, link targets and mtimes.

    Leaves out mtimes in the Hugging Face cache, where names depend on content.
    """
    looks = [
        (entry.path, entry.size, entry.mtime_ns if entry.is_file and not found.repo else 0, entry.target)
        for entry in manifest.entries
        if not stat.S_ISDIR(entry.mode)
    ]
    return hashlib.sha256(msgspec.msgpack.encode(sorted(looks))).hexdigest()


def read_records(folder: bytes) -> dict[bytes, PlacedState]:
    """The states of the files that were put in place in this folder, or as this file, by path."""
    try:
        records = _placed.decode(_file(folder).read_bytes())
    except (OSError, msgspec.MsgspecError):  # missing or damaged: then nothing is replaced
        return {}
    return {each.path: (each.size, each.mtime_ns, each.source_mtime_ns) for each in records}


def write_records(folder: bytes, known: Mapping[bytes, PlacedState]) -> None:
    records = [_Placed(path, *state) for path, state in known.items()]
    with suppress(OSError):  # without a record, a later share may need --overwrite
        _file(folder).parent.parent.mkdir(parents=True, exist_ok=True)
        make_private(_file(folder).parent)
        write_private(_file(folder), msgspec.msgpack.encode(records))


def _file(folder: bytes) -> Path:
    return state_folder() / "placed" / hashlib.sha256(folder).hexdigest()[:32]
