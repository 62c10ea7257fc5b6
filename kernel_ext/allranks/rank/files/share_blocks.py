"""Shared files on this host: both ends of a transfer, the one that offers files and the one that receives them.

Received content goes to parts in a separate folder (``.allranks-…``) on the destination's file system. The name of a
part is a hash of the file's path, size and mtime at the source. So a share that was stopped continues where it was, and
a file that has changed since then is sent from its beginning. The content of an existing part is compared with the
source by digests before it counts.

Files that were put in place are recorded in the host's private state. A later share may replace them as long as they
are unchanged.
"""

from __future__ import annotations

import ctypes
import fcntl
import hashlib
import hmac
import os
import re
import secrets
import shutil
import stat
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Literal

import msgspec

from allranks.machine.private_files import folder_identity, make_private, open_private, write_all_at
from allranks.machine.shared_records import PlacedState, look_for, read_records, write_records
from allranks.machine.shared_tree import (
    BLOCK,
    CONTENT,
    DIGEST_ONLY,
    Manifest,
    SharedFile,
    SharedTree,
    TreeEntry,
    block_digest,
    error_text,
    files_of,
    hub_cache,
    listed,
    open_to_read,
    read_block,
    stays_inside,
)
from allranks.messages.requests import (
    AcceptShare,
    FindShare,
    OfferShare,
    ShareAccepted,
    ShareFound,
    ShareOffered,
    ShareState,
)
from allranks.messages.requests.file_requests import CHANGED
from allranks.messages.requests.share_requests import IN_THE_WAY, LINK_LEADS_OUT, NOT_PUT

from .share_link import BlockLink, BlockListener, FromNotebook, ReportedByOther, Stopped

STREAMS = 4
"""Number of connections to the sending host: blocks arrive on some while a block from another is written to disk."""
AT_ONCE = 256
"""Maximum number of blocks of small files in one request."""
TRIES = 2
"""Attempts to receive a block undamaged."""
FORGOTTEN_AFTER = 300.0
"""Seconds without a request after which the notebook counts as lost, and the transfer ends."""

REMEMBERED = 64
FEW = 1000
"""Up to this many files are fsynced one by one; for more, Linux (5.8 and newer) syncs the whole file system."""
LOOKS_EVERY = 1.0
"""Seconds for which the check of a folder stays valid while files are put in place."""


_manifests = msgspec.msgpack.Decoder(Manifest)


class _Part(SharedFile):
    """A file that is being received, or compared with the source's."""

    def __init__(self, key: bytes, number: int, path: bytes, entry: TreeEntry, *, compared: bool) -> None:
        super().__init__(key, number, path, entry.size, entry.mtime_ns)
        self.entry, self.compared = entry, compared
        """With `compared`, `path` is an existing file that no share put there, or that was changed afterwards.

        The share fails if the file differs from the source.
        """
        before = _stat(path)
        self.kept = before.st_size if before is not None else 0
        """Bytes of the file that existed when the transfer began."""

    def block(self, block: int) -> tuple[bytes, bytes]:
        return self.noted(block), self.read(block)

    def read(self, block: int) -> bytes:
        """The block as it is on this host's disk. Raises OSError; ContentChanged if it is not a regular file."""
        return read_block(self.path, block)[0]

    def size_of(self, block: int) -> int:
        return min(BLOCK, self.size - block * BLOCK)

    def keeps(self, block: int) -> bool:
        """Whether the file is long enough to contain the whole block already."""
        return block * BLOCK + self.size_of(block) <= self.kept

    def make(self) -> None:
        """Create the file, or truncate it if it is longer than the source's. Raises OSError."""
        descriptor = open_private(self.path, os.O_CREAT)
        try:
            os.ftruncate(descriptor, min(os.fstat(descriptor).st_size, self.size))
        finally:
            os.close(descriptor)

    def write(self, block: int, data: bytes | memoryview) -> None:
        """Write a block. Raises OSError, also if a file of several blocks is gone: a new file would lack blocks."""
        descriptor = open_private(self.path, os.O_CREAT if self.blocks == 1 else 0)
        try:
            write_all_at(descriptor, data, block * BLOCK)
        except OSError as error:
            error.filename = self.path
            raise
        finally:
            os.close(descriptor)


class RankShare:
    """One transfer on this host. `files` maps numbers in the manifest to files, without links and folders."""

    def __init__(self, key: bytes, addresses: Sequence[str]) -> None:
        self.key = key
        self.files = dict[int, SharedFile]()
        self.state: Literal["receives", "whole", "failed"] = "whole"
        self.moved = self.checked = 0
        self.why = self.elsewhere = ""
        """Why the transfer failed, and the name of the other host that caused the failure, if it was not this one."""
        self._arrived = threading.Condition()
        self._stop = threading.Event()
        self._asked_at = time.monotonic()
        self.listener = BlockListener(addresses, key, self._block, self._tick)

    def asked(self) -> None:
        """Record that the notebook has sent a request."""
        self._asked_at = time.monotonic()

    def progress(self) -> ShareState:
        """See `requests.AskShare`."""
        return ShareState(self.state, self.moved, self.checked, self.why, self.elsewhere)

    def _tick(self) -> None:
        if time.monotonic() - self._asked_at > FORGOTTEN_AFTER:
            self.state, self.why = "failed", "the notebook was out of reach for too long"
            self.end()

    def end(self) -> None:
        """Stop listening and receiving."""
        self._stop.set()
        self.listener.close()
        with self._arrived:
            self._arrived.notify_all()

    def _block(self, number: int, block: int, within: float) -> tuple[bytes, bytes] | None:
        """The digest and content of a block for another host; None if it does not arrive within `within` seconds.

        Raises OSError, LookupError, RuntimeError.
        """
        file = self.files[number]
        if isinstance(file, _Part):
            with self._arrived:
                if not self._arrived.wait_for(lambda: file.knows(block) or self._stop.is_set(), within):
                    return None
            if not file.knows(block):
                raise RuntimeError("the share was stopped")
        return file.block(block)

    def digests(self, numbers: Sequence[int]) -> tuple[list[int], bytes]:
        """See `requests.DigestShare`. Raises ContentChanged, and OSError."""
        numbers = numbers or [number for number, file in self.files.items() if isinstance(file, _Part)]
        return list(numbers), b"".join(self.files[number].digest() for number in numbers)


class ShareOffer(RankShare):
    """The offering end of a transfer, on the source host, which has all files."""

    @classmethod
    def of(cls, request: OfferShare, tree: SharedTree | None = None) -> tuple[ShareOffer, ShareOffered, bytes]:
        """The offer, its answer, and the manifest for the answer's buffer. Raises OSError.

        `tree` is the tree that `Shares.find` found; if it is None, the files are listed now.
        """
        found, manifest = tree or listed(request.path)
        offer = cls(request.key, request.addresses)
        offer.files |= files_of(found, manifest, request.key)
        answer = ShareOffered(found.name, found.parent_elsewhere, found.repo, offer.listener.ports)
        return offer, answer, msgspec.msgpack.encode(manifest)


class Acceptance(RankShare):
    """The receiving end of a transfer; it also serves blocks that have arrived to the next host."""

    def __init__(self, request: AcceptShare, entries: Sequence[TreeEntry], parent: bytes) -> None:
        self._entries, self._overwrite = entries, request.overwrite
        path = os.path.join(parent, request.name)
        # Follow a link, for example to another disk: the files go to its target.
        self.folder = os.path.realpath(path) if os.path.isdir(path) else path
        self._tree = [entry.path for entry in entries] != [request.name]
        self._known = read_records(self.folder)
        self._pending = deque[tuple[_Part, int]]()
        self._pending_lock = threading.Lock()
        self._links = list[BlockLink | FromNotebook]()
        self.notebook = FromNotebook("")
        self._left = 0
        """Number of blocks neither received nor compared yet."""
        self._placing = threading.Lock()
        self._lock_file: int | None = None
        self._aside = self._choose_aside()
        self.to_make = list[TreeEntry]()
        """Links and empty folders to create."""
        self.refused = list[tuple[bytes, str]]()
        super().__init__(request.key, request.addresses)
        self.state = "receives"

    def _choose_aside(self) -> Path:
        """The folder for parts, on the file system of their destination."""
        beside = os.path.dirname(self.folder)
        try:
            elsewhere = os.stat(self.folder).st_dev != os.stat(beside).st_dev
            inside = os.path.isdir(self.folder) and (elsewhere or not os.access(beside, os.W_OK))
        except OSError:
            inside = False
        name = hashlib.sha256(os.path.basename(self.folder)).hexdigest()[:16]  # hosts may mount `beside` elsewhere
        return Path(os.fsdecode(self.folder if inside else beside), f".allranks-{name}")

    @property
    def parts(self) -> list[_Part]:
        return [file for file in self.files.values() if isinstance(file, _Part)]

    @classmethod
    def of(cls, request: AcceptShare, manifest: bytes) -> tuple[Acceptance | None, ShareAccepted]:
        """An acceptance and its answer. Raises OSError.

        The acceptance is None if the source's own files are here, if a path is in the way, or if another rank writes
        to the folder of parts.
        """
        entries = _manifests.decode(manifest).entries
        for entry in entries:
            _refuse_outside(entry, request.name)
        parent = hub_cache() if request.repo else os.path.abspath(os.path.expanduser(request.parent))
        if _is_same(entries, parent):
            return None, ShareAccepted(os.path.join(parent, request.name), same=True)
        acceptance = cls(request, entries, parent)
        try:
            answer = acceptance._look()
        except BaseException:
            acceptance.end()
            raise
        if answer.refused or answer.taken:
            acceptance.end()
            return None, answer
        return acceptance, answer

    # Find what is missing.

    def _look(self) -> ShareAccepted:
        """Determine what is missing and what is in the way. Raises OSError.

        If something is missing and nothing is in the way, also creates and locks the folder of parts, and removes parts
        that this share does not need.
        """
        if os.path.realpath(self.folder) in (os.path.realpath(os.path.expanduser(b"~")), b"/"):
            raise PermissionError("the home folder and the root of the file system are never written over")
        for number, entry in enumerate(self._entries):
            self._look_at(number, entry)
        folders = dict[bytes, str]()
        for entry in (*(part.entry for part in self.parts if not part.compared), *self.to_make):
            if why := self._in_the_way(entry, folders):
                self.refused.append((entry.path, why))
        answer = ShareAccepted(self.folder, self.listener.ports, refused=self.refused)
        missing = [part for part in self.parts if not part.compared]
        answer.missing, answer.nbytes = len(missing) + len(self.to_make), sum(part.size for part in missing)
        answer.compared = sum(part.size for part in self.parts if part.compared)
        if answer.missing and not self.refused:
            self._aside.parent.mkdir(parents=True, exist_ok=True)
            # The folder's name is predictable: another user could have created it, with links to our files as parts.
            make_private(self._aside)
            answer.identity, answer.taken = folder_identity(self._aside), not self._lock()
            answer.kept = 0 if answer.taken else self._forget_others()
            answer.free = shutil.disk_usage(self._aside).free
        return answer

    def _look_at(self, number: int, entry: TreeEntry) -> None:
        path = self._place(entry)
        now, known = _stat(path), self._known.get(entry.path)
        ours = now is not None and self._is_as_put(entry, now)
        if entry.is_file:
            is_file = now is not None and stat.S_ISREG(now.st_mode)
            as_source = is_file and now is not None and (now.st_size, now.st_mtime_ns) == (entry.size, entry.mtime_ns)
            as_put = ours and known is not None and (known[0], known[2]) == (entry.size, entry.mtime_ns)
            if now is not None and (as_source or as_put):
                self.files[number] = SharedFile(self.key, number, path, now.st_size, now.st_mtime_ns)
            elif now is None or ours or (self._overwrite and not stat.S_ISDIR(now.st_mode)):
                part = os.path.join(os.fsencode(self._aside), _part_name(entry))
                self.files[number] = _Part(self.key, number, part, entry, compared=False)
            elif is_file and now.st_size == entry.size:
                self.files[number] = _Part(self.key, number, path, entry, compared=True)
            else:
                self.refused.append((entry.path, CHANGED if known else NOT_PUT if is_file else IN_THE_WAY))
        elif entry.is_link:
            if now is not None and stat.S_ISLNK(now.st_mode) and os.readlink(path) == entry.target:
                return
            if now is None or ours or (self._overwrite and not stat.S_ISDIR(now.st_mode)):
                self.to_make.append(entry)
            else:
                self.refused.append((entry.path, IN_THE_WAY if stat.S_ISDIR(now.st_mode) else NOT_PUT))
        elif now is None:
            self.to_make.append(entry)
        elif not stat.S_ISDIR(now.st_mode):
            self.refused.append((entry.path, IN_THE_WAY))

    def _place(self, entry: TreeEntry) -> bytes:
        return os.path.join(self.folder, entry.path.partition(b"/")[2]) if self._tree else self.folder

    def _lock(self) -> bool:
        """Lock the folder of parts; False if another rank writes to it: we could put its unfinished parts in place."""
        descriptor = open_private(self._aside / "lock", os.O_CREAT)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return False
        except OSError:  # a file system without locks: another rank may write at the same time
            os.close(descriptor)
            return True
        self._lock_file = descriptor
        return True

    def _forget_others(self) -> int:
        """Remove parts that this share does not need, if the lock is held; return the total size of those it needs."""
        ours, kept = {os.path.basename(part.path) for part in self.parts}, 0
        for name in os.listdir(os.fsencode(self._aside)):
            path = os.path.join(os.fsencode(self._aside), name)
            if name in ours:
                kept += now.st_size if (now := _stat(path)) is not None else 0
            elif name.startswith(b"part-") and self._lock_file is not None:
                with suppress(FileNotFoundError):
                    os.unlink(path)
        return kept

    # Receiving.

    def pull(self, host: str, ports: Sequence[tuple[str, int]]) -> None:
        """Start receiving from `host`, or from the notebook if `ports` is empty. Raises OSError."""
        # Existing files are compared first: a difference makes the share fail.
        parts = sorted(self.parts, key=lambda part: not part.compared)
        for part in parts:
            if not part.compared and (part.blocks != 1 or part.kept):
                part.make()
        self._pending.extend((part, block) for part in parts for block in range(part.blocks))
        self._left = len(self._pending)
        if not self._left:
            self.state = "whole"
        for _ in range(min(STREAMS, self._left)):
            self.notebook.host = host
            link = BlockLink(host, ports, self.key, self._stop) if ports else self.notebook
            self._links.append(link)
            threading.Thread(target=self._work, args=(link,), name="allranks-share-from", daemon=True).start()

    def _work(self, link: BlockLink | FromNotebook) -> None:
        try:
            while self.state == "receives" and not self._stop.is_set():
                if not (blocks := self._next()):
                    return
                self._bring(link, blocks)
        except Stopped:
            pass
        except ReportedByOther as error:
            self._fail(str(error), error.host)
        except Exception as error:  # a file's error, a damaged block, Unreachable; `ask` retries a lost connection
            self._fail(error_text(error))

    def _next(self) -> list[tuple[_Part, int]]:
        """The next blocks to request together: at most `AT_ONCE` blocks and `BLOCK` bytes."""
        blocks, size = list[tuple[_Part, int]](), 0
        with self._pending_lock:
            while self._pending and len(blocks) < AT_ONCE:
                part, block = self._pending[0]
                size += part.size_of(block)
                if blocks and size > BLOCK:
                    break
                blocks.append(self._pending.popleft())
        return blocks

    def _fail(self, why: str, elsewhere: str = "") -> None:
        with self._pending_lock:
            if self.state == "receives":
                self.state, self.why, self.elsewhere = "failed", why, elsewhere

    def _bring(self, link: BlockLink | FromNotebook, blocks: Sequence[tuple[_Part, int]]) -> None:
        """Receive blocks or compare existing ones, noting their digests. Raises RuntimeError, OSError, Stopped."""
        wanted = [(DIGEST_ONLY if part.keeps(block) else CONTENT, part.number, block) for part, block in blocks]
        for (part, block), (kind, *_), (digest, data) in zip(blocks, wanted, link.ask(wanted), strict=True):
            if kind == DIGEST_ONLY:
                own = block_digest(self.key, part.number, block, part.read(block))
                if hmac.compare_digest(own, digest):
                    self._have(part, block, own, checked=part.size_of(block))
                    continue
            if part.compared:
                raise RuntimeError(f"{os.fsdecode(part.entry.path)}: {NOT_PUT}")
            self._write(link, part, block, digest, data if kind == CONTENT else None)

    def _write(
        self, link: BlockLink | FromNotebook, part: _Part, block: int, digest: bytes, data: bytes | memoryview | None
    ) -> None:
        """Write the block; request it if `data` is None, and once more if it is damaged.

        Raises RuntimeError if it stays damaged, and what `ask` and `write` raise.
        """
        for _ in range(TRIES):
            if data is None:
                digest, data = link.ask([(CONTENT, part.number, block)])[0]
            own = block_digest(self.key, part.number, block, data)
            if len(data) == part.size_of(block) and hmac.compare_digest(own, digest):
                part.write(block, data)
                self._have(part, block, own, moved=len(data))
                return
            data = None
        raise RuntimeError(f"block {block} of {os.fsdecode(part.entry.path)} arrived damaged {TRIES} times")

    def _have(self, part: _Part, block: int, digest: bytes, moved: int = 0, checked: int = 0) -> None:
        part.note(block, digest)
        with self._arrived:
            self._arrived.notify_all()
        with self._pending_lock:
            self.moved, self.checked, self._left = self.moved + moved, self.checked + checked, self._left - 1
            if not self._left and self.state == "receives":
                self.state = "whole"

    def end(self) -> None:
        super().end()
        for link in self._links:
            link.close()
        with self._placing:  # wait for a running `put_in_place`, which needs the file lock
            self._unlock()

    def _unlock(self) -> None:
        if self._lock_file is not None:
            descriptor, self._lock_file = self._lock_file, None
            fcntl.flock(descriptor, fcntl.LOCK_UN)  # a process forked by a cell may still have the file open
            os.close(descriptor)

    # Putting in place.

    def put_in_place(self) -> None:
        """Move the received files into place, and create links and folders.

        Raises OSError, and RuntimeError if the share was stopped, parts are missing or changed, or a file may not be
        written. Files that were put in place before the error are recorded even then.
        """
        with self._placing:
            if self._stop.is_set():
                raise RuntimeError("the share was stopped")
            if self.state != "whole":
                raise RuntimeError("not all of it has arrived")
            ready = {part.entry: part for part in self.parts if not part.compared}
            self._refuse_places([*ready, *self.to_make])
            for part in ready.values():
                _refuse_changed(part)
            self._write_to_disk([*ready.values()])
            self._put(ready)
            if self._lock_file is not None:
                shutil.rmtree(self._aside, ignore_errors=True)

    def _write_to_disk(self, parts: Sequence[_Part]) -> None:
        """Flush the parts to disk and set the source's modes and mtimes. Raises OSError."""
        aside = os.fsencode(self._aside)
        if len(parts) > FEW and (syncfs := _syncfs()):
            _sync(aside, syncfs)  # fsync of each takes minutes for 100,000 files
        else:
            for part in parts:
                _sync(part.path)
        for part in parts:
            with suppress(OSError):  # a file system without modes
                os.chmod(part.path, part.entry.mode & 0o777)  # neither setuid nor setgid, since the owner differs
            os.utime(part.path, ns=(part.entry.mtime_ns, part.entry.mtime_ns))
        if parts:
            _sync(aside)

    def _put(self, ready: Mapping[TreeEntry, _Part]) -> None:
        known, looked_at, folders, made = dict(self._known), 0.0, dict[bytes, str](), set[bytes]()
        try:
            for entry in sorted([*ready, *self.to_make], key=_order):
                if time.monotonic() - looked_at > LOOKS_EVERY:  # check folders again
                    looked_at, folders, made = time.monotonic(), {}, set()
                self._refuse_place(entry, folders)
                folder = os.path.dirname(self._place(entry))
                if folder not in made:
                    os.makedirs(folder, exist_ok=True)
                    made.add(folder)
                if entry in ready:
                    os.replace(ready[entry].path, self._place(entry))
                else:
                    self._make(entry)
                self._note(known, entry)
        finally:
            write_records(self.folder, known)

    def _refuse_places(self, entries: Sequence[TreeEntry]) -> None:
        """Raise RuntimeError if any entry may not be written."""
        folders = dict[bytes, str]()
        for entry in entries:
            self._refuse_place(entry, folders)

    def _refuse_place(self, entry: TreeEntry, folders: dict[bytes, str]) -> None:
        if why := self._in_the_way(entry, folders):
            raise RuntimeError(f"{os.fsdecode(entry.path)}: {why}")

    def _in_the_way(self, entry: TreeEntry, folders: dict[bytes, str]) -> str:
        """Why the entry may not be written, or an empty string; `folders` caches the results of `_unfit`."""
        path = self._place(entry)
        folder = os.path.dirname(path)
        if folder not in folders:
            folders[folder] = self._unfit(folder)
        if folders[folder]:
            return folders[folder]
        now = _stat(path)
        if now is None or (stat.S_ISDIR(now.st_mode) and stat.S_ISDIR(entry.mode)):
            return ""
        if stat.S_ISDIR(now.st_mode) or stat.S_ISDIR(entry.mode):
            return IN_THE_WAY
        return "" if self._overwrite or self._is_as_put(entry, now) else NOT_PUT

    def _unfit(self, folder: bytes) -> str:
        """Why files cannot be written to this folder, which may not exist yet; empty if they can."""
        inside = os.path.realpath(self.folder if self._tree else os.path.dirname(self.folder))
        if os.path.commonpath([inside, os.path.realpath(folder)]) != inside:
            return LINK_LEADS_OUT
        while not os.path.lexists(folder):
            folder = os.path.dirname(folder)
        return "" if os.path.isdir(folder) else IN_THE_WAY

    def _is_as_put(self, entry: TreeEntry, now: os.stat_result) -> bool:
        """Whether a share put the file in its place and nothing has changed the file since."""
        known = self._known.get(entry.path)
        return known is not None and (now.st_size, now.st_mtime_ns) == known[:2]

    def _make(self, entry: TreeEntry) -> None:
        """Create a link or a folder."""
        path = self._place(entry)
        if not entry.is_link:
            os.makedirs(path, exist_ok=True)
            return
        new = os.path.join(os.fsencode(self._aside), b"link-" + secrets.token_hex(8).encode())
        os.symlink(entry.target, new)
        with suppress(OSError):
            os.utime(new, ns=(entry.mtime_ns, entry.mtime_ns), follow_symlinks=False)
        os.replace(new, path)

    def _note(self, known: dict[bytes, PlacedState], entry: TreeEntry) -> None:
        if not stat.S_ISDIR(entry.mode) and (now := _stat(self._place(entry))) is not None:
            known[entry.path] = now.st_size, now.st_mtime_ns, entry.mtime_ns


def _refuse_outside(entry: TreeEntry, name: bytes) -> None:
    """Raise PermissionError for a path or link that leads out of the shared folder; no allranks source sends one."""
    parts = entry.path.split(b"/")
    if parts[0] != name or any(part in (b"", b".", b"..") for part in parts) or name.startswith(b".allranks"):
        raise PermissionError(f"{os.fsdecode(entry.path)} leads out of the folder")
    if entry.is_link and not stays_inside(entry.path, entry.target):
        raise PermissionError(f"{os.fsdecode(entry.path)} is a link that leads out of the folder")


def _is_same(entries: Sequence[TreeEntry], parent: bytes) -> bool:
    """Whether the source's own files are here, on a file system that both hosts mount."""
    for entry in entries:
        path = os.path.join(parent, entry.path)
        try:
            now = _opened(path) if entry.is_file else os.lstat(path)
        except OSError:
            return False
        if (now.st_ino, now.st_ctime_ns) != (entry.inode, entry.ctime_ns):
            return False
    return any(entry.is_file for entry in entries)


def _opened(path: bytes) -> os.stat_result:
    """The state of the opened file, since NFS asks its server only on open. Raises OSError."""
    descriptor = open_to_read(path)
    try:
        return os.fstat(descriptor)
    finally:
        os.close(descriptor)


def _part_name(entry: TreeEntry) -> bytes:
    state = b"%s %d %d" % (entry.path, entry.size, entry.mtime_ns)
    return b"part-" + hashlib.sha256(state).hexdigest()[:32].encode()


def _order(entry: TreeEntry) -> int:
    """Sort key: files, then links and folders, then refs, which in the Hugging Face cache refer to snapshots."""
    return 2 if b"/refs/" in entry.path else 0 if entry.is_file else 1


def _refuse_changed(part: _Part) -> None:
    """Raise RuntimeError if the part is no longer a regular file of the source's size."""
    now = _stat(part.path)
    if now is None or not stat.S_ISREG(now.st_mode) or now.st_size != part.size:
        raise RuntimeError(f"{os.fsdecode(part.path)} was changed by something else. Run the share again")


def _syncfs() -> Callable[[int], int] | None:
    """The C function `syncfs` on Linux 5.8 and newer, else None: older kernels return 0 even if writing failed."""
    version = re.match(r"(\d+)\.(\d+)", os.uname().release)
    if sys.platform != "linux" or version is None or (int(version[1]), int(version[2])) < (5, 8):
        return None
    syncfs: Callable[[int], int] | None = getattr(ctypes.CDLL(None, use_errno=True), "syncfs", None)
    return syncfs


def _sync(path: bytes, syncfs: Callable[[int], int] | None = None) -> None:
    """Flush the file or folder to disk, or with `syncfs` its whole file system. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        if syncfs is None:
            os.fsync(descriptor)
        elif syncfs(descriptor):
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), path)
    finally:
        os.close(descriptor)


def _stat(path: bytes) -> os.stat_result | None:
    try:
        return os.lstat(path)
    except OSError:
        return None


@contextmanager
def in_words() -> Iterator[None]:
    """Turn an OSError into a RuntimeError with a complete message, including the path."""
    try:
        yield
    except OSError as error:
        raise RuntimeError(error_text(error)) from None


class Shares:
    """The transfers in which this rank takes part."""

    def __init__(self) -> None:
        self._open = dict[str, RankShare]()
        self._found: tuple[str, SharedTree | None] = ("", None)
        """The transfer of the last `find`, and the tree that it found."""
        self._ended = deque[str](maxlen=REMEMBERED)
        """The last transfers that ended; an `offer` or `accept` of them may still be running."""
        self._lock = threading.Lock()

    def find(self, request: FindShare) -> ShareFound:
        copy, tree = look_for(request.path)
        self._found = request.transfer, tree
        return ShareFound(**asdict(copy))

    def offer(self, request: OfferShare) -> tuple[ShareOffered, bytes]:
        transfer, tree = self._found
        offer, answer, manifest = ShareOffer.of(request, tree if transfer == request.transfer else None)
        self._keep(request.transfer, offer)
        return answer, manifest

    def accept(self, request: AcceptShare, manifest: bytes) -> ShareAccepted:
        for transfer in [name for name, share in list(self._open.items()) if isinstance(share, Acceptance)]:
            self.end(transfer)  # left by an earlier notebook, which is gone
        acceptance, answer = Acceptance.of(request, manifest)
        if acceptance is not None:
            self._keep(request.transfer, acceptance)
        return answer

    def _keep(self, transfer: str, share: RankShare) -> None:
        """Register the share. Raises RuntimeError if the transfer has ended meanwhile."""
        with self._lock:
            ended = transfer in self._ended
            if not ended:
                self._open[transfer] = share
        if ended:
            share.end()
            raise RuntimeError("the share was stopped")

    def of(self, transfer: str) -> RankShare:
        """The share of this transfer. Raises RuntimeError if this rank has none, for example since it has ended."""
        with self._lock:
            share = self._open.get(transfer)
        if share is None:
            raise RuntimeError("the rank takes no part in this share any more")
        share.asked()
        return share

    def accepted(self, transfer: str) -> Acceptance:
        """Same as `of`, but raises RuntimeError also if this host is the source."""
        share = self.of(transfer)
        if not isinstance(share, Acceptance):
            raise RuntimeError("this host is the source")
        return share

    def end(self, transfer: str) -> None:
        with self._lock:
            self._found = ("", None)
            share = self._open.pop(transfer, None)
            self._ended.append(transfer)
        if share is not None:
            share.end()
