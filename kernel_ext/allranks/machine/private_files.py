"""Files and folders that only their owner may read, such as settings, logs and saved variables."""

from __future__ import annotations

import os
import secrets
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

SHARED_MEMORY = Path("/dev/shm")
"""The folder for shared memory on Linux."""
LAST_WORDS = 6000
"""Maximum number of characters of a log that are passed on."""


def offered(cluster: str) -> Path:
    """The folder (0700) in which a cluster's ranks find their settings on any of its hosts.

    Raises PermissionError if it is another user's, or open to others.
    """
    folder = Path(tempfile.gettempdir(), f"allranks-{cluster}")
    if folder.exists():
        refuse_open(folder)
    return folder


def make_private(folder: Path) -> None:
    """Create a folder (0700) unless it exists. Raises PermissionError if it is another user's, or open to others."""
    folder.mkdir(mode=0o700, exist_ok=True)
    refuse_open(folder)


def refuse_open(folder: Path) -> None:
    """Raise PermissionError unless only this user has access to the folder (0700)."""
    if folder.lstat().st_uid != os.getuid() or folder.stat().st_mode & 0o077:
        raise PermissionError(f"{folder} is open to others, or theirs")


def redirect_to_log(directory: str) -> None:
    """Point the descriptors 0, 1 and 2 away from the host's protocol; crashes of C code are written to the log."""
    import faulthandler

    log = open_log(Path(directory, "rank.log"))
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.dup2(log, 1)
    os.dup2(log, 2)
    # The engine later captures descriptor 2, but crashes must go to a file that the parent can read.
    faulthandler.enable(os.fdopen(log, "w"))


def open_log(path: Path) -> int:
    """Open a file (0600) for appending; return the descriptor."""
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)


def open_private(path: bytes | Path, flags: int = 0) -> int:
    """Open a file for writing; with `flags` O_CREAT, create it (0600) if necessary. Return the descriptor.

    Raises OSError, also for a symbolic link.
    """
    return os.open(path, os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC | flags, 0o600)


def touch_private(path: Path) -> None:
    """Set the mtime of a file (0600) to now; create it if necessary."""
    os.close(open_log(path))
    os.utime(path)


def write_all(descriptor: int, data: bytes) -> None:
    """Write all of `data`, since a pipe or a socket may accept only a part at a time. Raises OSError."""
    while data:
        data = data[os.write(descriptor, data) :]


MOST_AT_ONCE = 1 << 30
"""Maximum bytes in one write: macOS refuses 2 GiB and more."""


def write_all_at(descriptor: int, data: bytes | bytearray | memoryview, offset: int) -> None:
    """Write all of `data` at this offset, since a nearly full disk may accept only a part. Raises OSError."""
    view = memoryview(data)
    while view:
        written = os.pwrite(descriptor, view[:MOST_AT_ONCE], offset)
        view, offset = view[written:], offset + written


def write_private(path: Path, content: str | bytes | bytearray | memoryview) -> None:
    """Write a file (0600) atomically: readers see all of the new content or none."""
    with private_file(path) as file:
        file.write(content.encode() if isinstance(content, str) else content)


@contextmanager
def private_file(path: Path) -> Iterator[BinaryIO]:
    """Open a file (0600) that replaces `path` once it is written completely; it is removed on failure."""
    # A name that cannot exist yet, since other users may write to the folder.
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with open(descriptor, "wb") as file:
            yield file
        os.replace(name, path)
    except BaseException:
        os.unlink(name)
        raise


def folder_identity(folder: Path) -> str:
    """The folder's identity, from the file ``id`` in it: the same on all hosts that share the folder.

    A missing file is created atomically, since another host may do the same at this moment. Raises OSError.
    """
    if not (folder / "id").exists():
        mine = folder / f"id.{secrets.token_hex(8)}"
        mine.write_text(mine.suffix[1:])
        try:
            os.link(mine, folder / "id")
        except FileExistsError:
            pass
        except OSError:  # a file system without links
            os.replace(mine, folder / "id")
        finally:
            mine.unlink(missing_ok=True)
    return (folder / "id").read_text()


def last_words(directory: Path, name: str, unread: str = "") -> str:
    """The crash report in the log of process `name`; without one, the end of the log, such as errors of mpirun.

    `unread` is output that did not reach the log; it is appended to the log's text.
    """
    kind, _, number = name.partition(" ")
    path = directory / (f"rank-{number}/rank.log" if kind == "rank" else f"{kind}.log")
    try:
        text = path.read_text(errors="replace")
    except OSError:
        text = ""
    text += unread
    crash = text.rfind("Fatal Python error")  # followed by the stacks of all threads
    return (text[-LAST_WORDS:] if crash < 0 else text[crash : crash + LAST_WORDS]).strip()
