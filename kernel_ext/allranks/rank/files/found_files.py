"""Files on this host that the notebook fetches."""

from __future__ import annotations

import glob
import hashlib
import os
import stat

from allranks.messages.requests import FilePart, FilesFound, FileState, FoundFile

MOST = 50_000
"""Maximum number of files in one answer."""


def find(pattern: bytes) -> FilesFound:
    """See `requests.FindFiles`. Only regular files are returned."""
    folder, pattern = os.getcwdb(), os.path.expanduser(pattern)
    base, found, more = _base(folder, pattern), list[FoundFile](), 0
    for each in sorted(glob.iglob(pattern, recursive=True)):
        path = os.path.normpath(os.path.join(folder, each))
        try:
            now = os.stat(path)
        except OSError:  # just removed, or a dangling link
            continue
        if not stat.S_ISREG(now.st_mode):
            continue
        if len(found) == MOST:
            more += 1
            continue
        name = os.path.relpath(path, base)
        found.append(FoundFile(path, name, now.st_size, now.st_mtime_ns, (now.st_dev, now.st_ino)))
    return FilesFound(folder, found, more)


def _base(folder: bytes, pattern: bytes) -> bytes:
    """The folder to which `FoundFile.name` is relative."""
    if not os.path.isabs(pattern) and b".." not in pattern.split(b"/"):
        return folder
    fixed = os.path.dirname(pattern)
    while glob.has_magic(fixed):
        fixed = os.path.dirname(fixed)
    return os.path.join(folder, fixed)


def digest(path: bytes) -> bytes:
    """See `requests.DigestFiles`. Raises OSError."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "blake2b").digest()


def read(part: FilePart) -> tuple[FileState, bytes]:
    """See `requests.ReadParts`. Raises OSError."""
    with open(part.path, "rb") as file:
        file.seek(part.offset)
        data = file.read(part.count)
        now = os.fstat(file.fileno())
    return FileState(now.st_size, now.st_mtime_ns), data
