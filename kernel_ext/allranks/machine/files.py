"""Files of a host's ranks that their owner alone may read: settings on their way in, and what they wrote to logs."""

from __future__ import annotations

import os
import secrets
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

SHARED_MEMORY = Path("/dev/shm")
"""Where Linux has files in memory."""
LAST_WORDS = 6000
"""Characters of a crash report passed on."""


def offered(cluster: str) -> Path:
    """The folder (0700) in which a cluster's ranks find their settings on any of its hosts.

    Raises PermissionError where it is another user's.
    """
    folder = Path(tempfile.gettempdir(), f"allranks-{cluster}")
    if folder.exists():
        refuse_open(folder)
    return folder


def make_private(folder: Path) -> None:
    """Make a folder (0700), or use the one that is there. Raises PermissionError where that is another user's."""
    folder.mkdir(mode=0o700, exist_ok=True)
    refuse_open(folder)


def refuse_open(folder: Path) -> None:
    """Raises PermissionError unless it is this user's alone (0700)."""
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
    # The engine later captures descriptor 2; a crash must be written where its parent can read it.
    faulthandler.enable(os.fdopen(log, "w"))


def open_log(path: Path) -> int:
    """A descriptor that appends to the file (0600)."""
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)


def open_private(path: bytes | Path, flags: int = 0) -> int:
    """A descriptor that writes at any place of the file (0600). Raises OSError, also for a symbolic link."""
    return os.open(path, os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC | flags, 0o600)


def touch_private(path: Path) -> None:
    """Give the file (0600), which is made where there is none, the present time."""
    os.close(open_log(path))
    os.utime(path)


def write_all(descriptor: int, data: bytes) -> None:
    """Write all of it, however little a pipe or a socket takes at a time. Raises OSError."""
    while data:
        data = data[os.write(descriptor, data) :]


MOST_AT_ONCE = 1 << 30
"""Bytes in one write: macOS refuses 2 GiB and more."""


def write_all_at(descriptor: int, data: bytes | bytearray | memoryview, offset: int) -> None:
    """Write all of it at this offset: a disk that is nearly full takes a part at a time. Raises OSError."""
    view = memoryview(data)
    while view:
        written = os.pwrite(descriptor, view[:MOST_AT_ONCE], offset)
        view, offset = view[written:], offset + written


def write_private(path: Path, content: str | bytes | bytearray | memoryview) -> None:
    """Write a file (0600) that readers see whole, or not at all."""
    with private_file(path) as file:
        file.write(content.encode() if isinstance(content, str) else content)


@contextmanager
def private_file(path: Path) -> Iterator[BinaryIO]:
    """A file (0600) to write, which takes `path`'s place when it is whole; nothing is left of one that fails."""
    # A name that cannot exist yet, in a folder that others may write in.
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

    A folder that has none gets one, whole or not at all: another host may do the same at this moment. Raises OSError.
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
    """The end of what the process `name` wrote outside any cell: a crash report, mpirun's complaint."""
    kind, _, number = name.partition(" ")
    path = directory / (f"rank-{number}/rank.log" if kind == "rank" else f"{kind}.log")
    try:
        text = path.read_text(errors="replace")
    except OSError:
        text = ""
    text += unread
    crash = text.rfind("Fatal Python error")  # all threads' stacks follow it
    return (text[-LAST_WORDS:] if crash < 0 else text[crash : crash + LAST_WORDS]).strip()
