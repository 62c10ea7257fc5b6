"""About the notebook's working folder: what a host has of it, what is sent, and the modules that are reloaded."""

from __future__ import annotations

from msgspec import Struct, field

from .base import Answer, Nothing, Question, Request

CHANGED = "it was changed there since it was sent"
NOT_OURS = "another file is there, which was not sent from here"
"""Why a file is not replaced on a host, unless the user wants that."""


class FileEntry(Struct, array_like=True, frozen=True):
    """A file of the working folder, as the notebook's machine has it."""

    path: bytes
    """Relative to the folder, as the file system spells it."""
    size: int
    mtime_ns: int
    mode: int
    """As in git: 0o100644, 0o100755 for a program, 0o120000 for a symbolic link, whose content is its target."""


class FolderOpened(Answer):
    folder: str
    """Its absolute path on the rank's host."""
    same: bool
    """Whether it is the notebook's own folder: on this machine, or on a file system that both hosts mount."""
    made: bool = False
    """Whether it was not there before."""
    identity: str = ""
    """The same on hosts that share the folder."""
    files: list[FileEntry] = field(default_factory=list)
    """What was sent before and is still as it was."""
    changed: list[FileEntry] = field(default_factory=list)
    """What was sent before and was changed on the host since."""
    free: int = 0
    """Bytes free on its disk."""


class OpenFolder(Question[FolderOpened]):
    """Where the rank's host has the notebook's folder, and what of it.

    If `here` is the notebook's folder itself, which a `sample` of its files shows (path, inode, ctime in ns), nothing
    has to be sent. Otherwise `folder` is made; it may begin with ``~``. What is left of transfers whose names begin
    with `forget` is removed.
    """

    runs = "thread"
    here: str
    sample: list[tuple[bytes, int, int]]
    folder: str
    origin: str
    """The notebook's folder that it is a copy of: several may be sent to one folder that the user has named."""
    forget: str = ""


class Piece(Struct, array_like=True, frozen=True):
    """A part of a file; its bytes are in the buffer at the same place."""

    file: int
    """Number of the file in this transfer."""
    offset: int


class BeginFiles(Question[Nothing]):
    """A transfer begins."""

    runs = "thread"
    folder: str
    transfer: str


class PutPieces(Question[Nothing]):
    """Keep parts of files until `CommitFiles`, or `DropFiles`; fails where the transfer has not begun."""

    runs = "thread"
    folder: str
    transfer: str
    pieces: list[Piece]


class FilesCommitted(Answer):
    refused: list[tuple[bytes, str]]
    """Files that were not replaced or removed, and why."""


class CommitFiles(Question[FilesCommitted]):
    """Put files of a transfer in place, each with its number in that, and `remove` others that were sent before.

    A file that something else has written or changed on the host is left as it is, unless `overwrite`.
    """

    runs = "thread"
    folder: str
    origin: str
    transfer: str
    files: list[tuple[int, FileEntry]]
    remove: list[bytes]
    overwrite: bool


class DropFiles(Question[Nothing]):
    """Forget a transfer."""

    runs = "thread"
    folder: str
    transfer: str


class EnterFolder(Question[Nothing]):
    """Make this the working folder of the rank, and of what takes its place."""

    runs = "main"
    folder: str


class ReloadPrepared(Answer):
    reloaded: list[str]
    removed: list[str]
    """Modules whose file is gone."""
    error: str = ""
    """What the source of one raised; then nothing is changed."""


class PrepareReload(Question[ReloadPrepared]):
    """Execute the changed modules of the working folder again; until `DecideReload`, it can be undone.

    An earlier one whose decision was lost is decided first: it holds if its number is at most `committed`.
    """

    runs = "main"
    reload: int
    committed: int


class StopReload(Request):
    """Interrupt what a module does while it is executed again."""

    reload: int


class DecideReload(Question[Nothing]):
    """All ranks could reload their modules (`commit`), or none shall have."""

    runs = "main"
    reload: int
    commit: bool


class FoundFile(Struct, array_like=True, frozen=True):
    """A file on a rank's host."""

    path: bytes
    """Absolute."""
    name: bytes
    """Relative to the rank's working folder, or to what an absolute pattern names before any wildcard."""
    size: int
    mtime_ns: int
    identity: tuple[int, int]
    """Device and inode: ranks of one host may find the same file."""


class FilesFound(Answer):
    folder: bytes
    """The rank's working folder."""
    files: list[FoundFile]
    more: int = 0
    """How many others there are, beyond those that one answer can name."""


class FindFiles(Question[FilesFound]):
    """Files that match a pattern, as of `glob` with ``**``; it may begin with ``~``."""

    runs = "thread"
    pattern: bytes


class Digests(Answer):
    digests: list[bytes]


class DigestFiles(Question[Digests]):
    """A digest of the content of each of these files, by which files of several ranks are compared."""

    runs = "thread"
    paths: list[bytes]


class FilePart(Struct, array_like=True, frozen=True):
    """Bytes of a file."""

    path: bytes
    offset: int
    count: int


class FileState(Struct, array_like=True, frozen=True):
    """What a whole file is like now."""

    size: int
    mtime_ns: int


class PartsRead(Answer):
    files: list[FileState]
    """Of each part's file."""


class ReadParts(Question[PartsRead]):
    """Parts of files, each in a buffer of the answer."""

    runs = "thread"
    parts: list[FilePart]
