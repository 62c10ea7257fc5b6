"""The copy of the notebook's working folder on this host.

No state is kept in memory, so another rank of this host can continue if one dies. The folder's own ``.allranks`` lists
the files that were sent, with their size and mtime on this host at that time. A file is replaced or removed only if it
is unchanged since it was sent, or if the user asks to overwrite files. A file that has the new content already is
replaced in any case.

`put` writes files to ``.allranks`` first, and `commit` moves them into place together. So a full disk or a lost
connection leaves the folder unchanged. If this process ends within `commit`, both the old and the new state of each
file count as sent.
"""

from __future__ import annotations

import fcntl
import filecmp
import glob
import os
import shutil
import stat
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec

from allranks.machine.private_files import folder_identity, open_private, write_all_at
from allranks.messages.requests import CommitFiles, FileEntry, FilesCommitted, FolderOpened, OpenFolder, Piece
from allranks.messages.requests.file_requests import CHANGED, NOT_OURS
from allranks.messages.wire import Buffer

OURS = b".allranks"
"""Name of the folder, inside the copy, that holds the list of sent files and the incoming transfers."""
FORGOTTEN_AFTER = 3600.0
"""Seconds after which a transfer that was neither committed nor dropped is removed."""
LOCKED_WITHIN = 20.0
"""Seconds to wait for another notebook that is committing files to the folder."""
LINK = 0o120000
IN_THE_WAY = "a folder or a file of another kind is in its place"


class Sent(msgspec.Struct, array_like=True, frozen=True):
    """A file that was sent."""

    entry: FileEntry
    size: int
    mtime_ns: int
    """mtime of the file on this host, whose file system may round the requested one."""
    origin: str
    """Identifies the notebook's folder from which the file came."""

    def is_intact(self, now: os.stat_result | None) -> bool:
        return now is not None and (now.st_size, now.st_mtime_ns) == (self.size, self.mtime_ns)


_decoder = msgspec.msgpack.Decoder(list[Sent])


def open_folder(request: OpenFolder) -> FolderOpened:
    """See `requests.OpenFolder`. Raises OSError; for the home folder and the root, PermissionError."""
    here, sample = os.fsencode(os.path.expanduser(request.here)), request.sample
    if sample and all(_is_same(os.path.join(here, path), inode, ctime) for path, inode, ctime in sample):
        return FolderOpened(request.here, same=True)
    root = Path(request.folder).expanduser().absolute()
    if root.resolve() in (Path.home().resolve(), Path("/")):
        raise PermissionError(f"{root} is the home folder or the root of the file system, which is never synced to")
    made, ours = not root.exists(), _ours(root)
    (ours / "incoming").mkdir(parents=True, exist_ok=True)
    with suppress(FileExistsError), open(ours / ".gitignore", "x") as file:
        file.write("*\n")
    identity = folder_identity(ours)
    _forget(ours / "incoming", request.forget)
    files, changed = list[FileEntry](), list[FileEntry]()
    for path, states in _read(ours).items():
        now, known = _stat(os.path.join(os.fsencode(root), path)), _from(request.origin, states)
        intact = next((sent.entry for sent in known if sent.is_intact(now)), None)
        if intact is not None:
            files.append(intact)
        elif known and now is not None:
            changed.append(known[-1].entry)
    return FolderOpened(str(root), False, made, identity, files, changed, shutil.disk_usage(root).free)


def begin(folder: str, transfer: str) -> None:
    """See `requests.BeginFiles`. Raises OSError."""
    _incoming(folder, transfer).mkdir()


def put(folder: str, transfer: str, pieces: Sequence[Piece], buffers: Sequence[Buffer]) -> None:
    """See `requests.PutPieces`. Raises OSError."""
    incoming = _incoming(folder, transfer)
    for piece, data in zip(pieces, buffers, strict=True):
        descriptor = open_private(incoming / str(piece.file), os.O_CREAT)
        try:
            write_all_at(descriptor, data, piece.offset)
        finally:
            os.close(descriptor)


def drop(folder: str, transfer: str) -> None:
    """See `requests.DropFiles`."""
    incoming = _incoming(folder, transfer)
    gone = incoming.with_name(f"{transfer}-dropped")
    with suppress(FileNotFoundError):
        incoming.rename(gone)  # a late `put` finds no folder and fails
    shutil.rmtree(gone, ignore_errors=True)


def commit(request: CommitFiles) -> FilesCommitted:
    """See `requests.CommitFiles`.

    Raises OSError if a received file is incomplete, before any file is put in place. If a file cannot be put in place
    or removed, it raises OSError only after all other files, which are then listed as sent. Raises TimeoutError if
    another notebook does not release the folder's lock.
    """
    root, ours = os.fsencode(request.folder), _ours(Path(request.folder))
    incoming, origin = _incoming(request.folder, request.transfer), request.origin
    parents = _Parents(root)
    with _locked(ours):
        known, refused, failed = _read(ours), dict[bytes, str](), list[OSError]()
        ready = {number: _prepared(incoming / str(number), entry, origin) for number, entry in request.files}
        states = dict(known)
        for sent in ready.values():
            states[sent.entry.path] = (*known.get(sent.entry.path, ()), sent)
        _write(ours, states)  # wherever `commit` fails, each file is in one of these states
        for path in request.remove:
            before = known.pop(path, ())
            if others := tuple(sent for sent in before if sent.origin != origin):
                known[path] = others
            try:
                why = _removed(parents, path, _from(origin, before), request.overwrite)
            except OSError as error:
                known[path] = before
                failed.append(error)
            else:
                if why:
                    refused[path], known[path] = why, before
        for number, sent in ready.items():
            path, part = sent.entry.path, incoming / str(number)
            try:
                why = _why_not(parents, path, _from(origin, known.get(path, ())), request.overwrite, part)
                if not why:
                    _put_in_place(part, os.path.join(root, path))
                    if sent.entry.mode == LINK:
                        parents.forget()
            except (IsADirectoryError, NotADirectoryError, FileExistsError):
                why = IN_THE_WAY
            except OSError as error:
                failed.append(error)
                continue
            if why:
                refused[path] = why
            else:
                known[path] = (sent,)
        _write(ours, known)
    shutil.rmtree(incoming, ignore_errors=True)
    if failed:
        raise failed[0]
    return FilesCommitted(list(refused.items()))


def _from(origin: str, states: Sequence[Sent]) -> list[Sent]:
    return [sent for sent in states if sent.origin == origin]


class _Parents:
    """Checks that files lie inside the root. Results are cached by folder, since a check for each file takes long."""

    def __init__(self, root: bytes) -> None:
        self.root, self._real, self._inside = root, os.path.realpath(root), dict[bytes, bool]()

    def why_outside(self, path: bytes) -> str:
        """Why the file is in `OURS`, or outside the root by its path or by a symbolic link; empty if neither."""
        parts = path.split(b"/")
        if path.startswith(b"/") or b".." in parts or parts[0] == OURS:
            return "its path leads out of the folder"
        folder = os.path.dirname(os.path.join(self.root, path))
        known = self._inside.get(folder)
        if known is None:
            known = os.path.commonpath([self._real, os.path.realpath(folder)]) == self._real
            self._inside[folder] = known
        return "" if known else "a symbolic link there leads out of the folder"

    def forget(self) -> None:
        """Empty the cache after a link was put in place, since a cached folder may now lead elsewhere."""
        self._inside.clear()


def _why_not(parents: _Parents, path: bytes, known: Sequence[Sent], overwrite: bool, new: Path) -> str:
    """Why `new` must not be moved to `path`; empty if it may."""
    target = os.path.join(parents.root, path)
    if why := parents.why_outside(path):
        return why
    there = _stat(target)
    if there is None or any(sent.is_intact(there) for sent in known):
        return ""
    if stat.S_ISDIR(there.st_mode):
        return ""  # `os.replace` raises for it
    if overwrite or (stat.S_ISREG(there.st_mode) and _is_equal(new, target)):
        return ""
    return CHANGED if known else NOT_OURS


def _put_in_place(part: Path, target: bytes) -> None:
    os.makedirs(os.path.dirname(target), exist_ok=True)
    os.replace(os.fsencode(part), target)


def _prepared(incoming: Path, entry: FileEntry, origin: str) -> Sent:
    """Give the received file its mode and mtime, or make it a link; return its entry for the list. Raises OSError."""
    if not incoming.exists():
        incoming.touch()  # an empty file has no pieces
    if incoming.stat().st_size != entry.size:
        raise OSError(f"{os.fsdecode(entry.path)} was changed while it was sent")
    if entry.mode == LINK:
        target = incoming.read_bytes()
        incoming.unlink()
        os.symlink(target, os.fsencode(incoming))
    else:
        incoming.chmod(0o755 if entry.mode & 0o100 else 0o644)
    os.utime(incoming, ns=(entry.mtime_ns, entry.mtime_ns), follow_symlinks=False)
    now = incoming.lstat()
    return Sent(entry, now.st_size, now.st_mtime_ns, origin)


def _removed(parents: _Parents, path: bytes, known: Sequence[Sent], overwrite: bool) -> str:
    """Remove a sent file and the folders that become empty; return why the file stays, or an empty string.

    Raises OSError.
    """
    target = os.path.join(parents.root, path)
    there = _stat(target)
    if there is None or not known:
        return ""
    if why := parents.why_outside(path):
        return why
    if not overwrite and not any(sent.is_intact(there) for sent in known):
        return CHANGED
    os.unlink(target)
    _remove_compiled(target)
    folder = os.path.dirname(path)
    with suppress(OSError):
        while folder:
            os.rmdir(os.path.join(parents.root, folder))
            folder = os.path.dirname(folder)
    return ""


def _remove_compiled(source: bytes) -> None:
    """Remove the source's ``.pyc`` files: with them, its folder would stay and be imported as a namespace package."""
    folder, name = os.path.split(source)
    stem, extension = os.path.splitext(name)
    if extension != b".py":
        return
    with suppress(OSError):
        for each in glob.glob(os.path.join(glob.escape(folder), b"__pycache__", glob.escape(stem) + b".*.pyc")):
            os.unlink(each)
        os.rmdir(os.path.join(folder, b"__pycache__"))


def _is_same(path: bytes, inode: int, ctime_ns: int) -> bool:
    try:
        # Open the file, since NFS asks its server for the current state only then.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
    except OSError:
        return False
    try:
        now = os.fstat(descriptor)
    finally:
        os.close(descriptor)
    return (now.st_ino, now.st_ctime_ns) == (inode, ctime_ns)


def _is_equal(new: Path, there: bytes) -> bool:
    return new.exists() and filecmp.cmp(os.fsencode(new), there, shallow=False)


def _stat(path: bytes) -> os.stat_result | None:
    try:
        return os.lstat(path)
    except OSError:
        return None


def _ours(root: Path) -> Path:
    return root / os.fsdecode(OURS)


def _incoming(folder: str, transfer: str) -> Path:
    return _ours(Path(folder)) / "incoming" / Path(transfer).name


def _forget(incoming: Path, named: str) -> None:
    """Remove old transfers; if `named` is not empty, also remove transfers whose names begin with `named`."""
    for each in incoming.iterdir():
        with suppress(OSError):  # another host that shares the folder may do the same
            if (named and each.name.startswith(named)) or time.time() - each.stat().st_mtime > FORGOTTEN_AFTER:
                shutil.rmtree(each)


@contextmanager
def _locked(ours: Path) -> Iterator[None]:
    """Hold the folder's lock, since two notebooks may sync to one folder. Raises TimeoutError."""
    deadline = time.monotonic() + LOCKED_WITHIN
    with open(ours / "lock", "w") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise TimeoutError(
                        "another notebook is syncing to this folder: try again when it is done"
                    ) from None
            time.sleep(0.05)
        yield


def _read(ours: Path) -> dict[bytes, tuple[Sent, ...]]:
    """The list of sent files: for each path, the states that the file may be in."""
    known = dict[bytes, tuple[Sent, ...]]()
    try:
        content = _decoder.decode((ours / "sent").read_bytes())
    except FileNotFoundError:
        return known
    except msgspec.MsgspecError:  # damaged, or from another version: no file counts as sent, so none is replaced
        return known
    for sent in content:
        known[sent.entry.path] = (*known.get(sent.entry.path, ()), sent)
    return known


def _write(ours: Path, known: Mapping[bytes, Sequence[Sent]]) -> None:
    new = ours / "sent.new"
    new.write_bytes(msgspec.msgpack.encode([sent for states in known.values() for sent in states]))
    os.replace(new, ours / "sent")
