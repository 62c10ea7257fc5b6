"""Requests about copies of the notebook's working folder, modules to reload, and files to fetch."""

from __future__ import annotations

from msgspec import Struct, field

from .request import Answer, Nothing, Question, Request

CHANGED = "it was changed there since it was sent"
NOT_OURS = "another file is there, which was not sent from here"
"""Reasons why a file on a host is not replaced, unless the user asks to overwrite it."""


class FileEntry(Struct, array_like=True, frozen=True):
    """A file of the working folder on the notebook's machine."""

    path: bytes
    """Path relative to the folder, in the file system's spelling."""
    size: int
    mtime_ns: int
    mode: int
    """As in git: 0o100644, 0o100755 for a program, 0o120000 for a symbolic link, whose content is its target."""


class FolderOpened(Answer):
    folder: str
    """The absolute path of the folder on the rank's host."""
    same: bool
    """Whether it is the notebook's own folder, on the same machine or on a file system that both hosts mount."""
    made: bool = False
    """Whether the folder did not exist before."""
    identity: str = ""
    """Identifies the folder; the same on hosts that share it."""
    files: list[FileEntry] = field(default_factory=list)
    """Files that were sent before and are unchanged."""
    changed: list[FileEntry] = field(default_factory=list)
    """Files that were sent before and were changed on the host since."""
    free: int = 0
    """Bytes free on the disk of the folder."""


class OpenFolder(Question[FolderOpened]):
    """Find or create the copy of the notebook's folder on the rank's host, and list its files.

    If `here` is the notebook's folder itself, which a `sample` of its files shows (path, inode, ctime in ns), nothing
    has to be sent. Otherwise `folder`, which may begin with ``~``, is created. Remains of old transfers, and of
    transfers whose names begin with `forget`, are removed.
    """

    runs = "thread"
    here: str
    sample: list[tuple[bytes, int, int]]
    folder: str
    origin: str
    """Identifies the notebook's folder: if the user named `folder`, several such folders may be copied to it."""
    forget: str = ""


class Piece(Struct, array_like=True, frozen=True):
    """A part of a file; its bytes are in the buffer with the same index."""

    file: int
    """Number of the file in this transfer."""
    offset: int


class BeginFiles(Question[Nothing]):
    """Begin a transfer."""

    runs = "thread"
    folder: str
    transfer: str


class PutPieces(Question[Nothing]):
    """Keep parts of files until `CommitFiles` or `DropFiles`; fails if the transfer has not begun."""

    runs = "thread"
    folder: str
    transfer: str
    pieces: list[Piece]


class FilesCommitted(Answer):
    refused: list[tuple[bytes, str]]
    """Files that were not replaced or removed, and why."""


class CommitFiles(Question[FilesCommitted]):
    """Put `files`, each with its number in the transfer, in place, and `remove` files that were sent before.

    A file that something else has written or changed on the host is left unchanged, unless `overwrite` is set.
    """

    runs = "thread"
    folder: str
    origin: str
    transfer: str
    files: list[tuple[int, FileEntry]]
    remove: list[bytes]
    overwrite: bool


class DropFiles(Question[Nothing]):
    """Drop a transfer and its received files."""

    runs = "thread"
    folder: str
    transfer: str


class EnterFolder(Question[Nothing]):
    """Make this the working folder of the rank, and of the processes in which it tries to load saved variables."""

    runs = "main"
    folder: str


class ReloadPrepared(Answer):
    reloaded: list[str]
    removed: list[str]
    """Modules whose file is gone."""
    error: str = ""
    """The error of a module that failed; nothing is changed then."""


class PrepareReload(Question[ReloadPrepared]):
    """Execute the changed modules of the working folder again, in a way that `DecideReload` can undo.

    An earlier reload whose decision was lost is decided first: committed if its number is at most `committed`, or else
    undone.
    """

    runs = "main"
    reload: int
    committed: int


class StopReload(Request):
    """Interrupt the module that a reload is executing."""

    reload: int


class DecideReload(Question[Nothing]):
    """Commit the prepared reload, or undo it because a rank could not prepare it."""

    runs = "main"
    reload: int
    commit: bool


class FoundFile(Struct, array_like=True, frozen=True):
    """A file on a rank's host."""

    path: bytes
    """Absolute path."""
    name: bytes
    """Path relative to the rank's working folder; for a pattern that is absolute or contains ``..``, relative to the
    pattern's last folder before any wildcard."""
    size: int
    mtime_ns: int
    identity: tuple[int, int]
    """Device and inode: equal if ranks of one host have found the same file."""


class FilesFound(Answer):
    folder: bytes
    """The rank's working folder."""
    files: list[FoundFile]
    more: int = 0
    """Number of further files, beyond the maximum of one answer."""


class FindFiles(Question[FilesFound]):
    """Find files that match a `glob` pattern, which may contain ``**`` and begin with ``~``."""

    runs = "thread"
    pattern: bytes


class Digests(Answer):
    digests: list[bytes]


class DigestFiles(Question[Digests]):
    """Compute a digest of the content of each of these files, to compare files of several ranks."""

    runs = "thread"
    paths: list[bytes]


class FilePart(Struct, array_like=True, frozen=True):
    """Bytes of a file."""

    path: bytes
    offset: int
    count: int


class FileState(Struct, array_like=True, frozen=True):
    """The present state of a whole file."""

    size: int
    mtime_ns: int


class PartsRead(Answer):
    files: list[FileState]
    """The state of each part's file."""


class ReadParts(Question[PartsRead]):
    """Read parts of files, each into a buffer of the answer."""

    runs = "thread"
    parts: list[FilePart]
