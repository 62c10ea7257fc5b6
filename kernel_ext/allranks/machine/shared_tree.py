"""A file or a folder of this machine to copy to other hosts: its location, its list of files, and their content.

Content is sent in blocks. The digest of a block is keyed with a key that only the hosts of one transfer have, and also
covers the position of the block. So it detects damage, and proves that the block comes from one of these hosts.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
import struct
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeAlias

import msgspec

BLOCK = 1 << 20
"""Bytes of a block. A host passes a block on once it is complete, so larger blocks would delay the end of a chain."""
DIGEST = 32
"""Bytes of a digest."""
CONTENT, DIGEST_ONLY = 1, 2
"""Kinds of requests for a block: content and digest, or only the digest."""
WantedBlock: TypeAlias = "tuple[int, int, int]"
"""The kind of request, the file number, and the block number."""
REPO = re.compile(rb"(?:[\w.-]+/)?[\w.-]+")
REPO_KINDS = (b"models", b"datasets", b"spaces")
"""Kinds of repositories in the Hugging Face cache. The folder of a repository has a name like ``models--org--name``."""
LEADS_OUT, NO_FILE = "a link that leads out of it", "neither a file nor a folder"
_POSITION = struct.Struct(">IQ")


def error_text(error: Exception) -> str:
    """The error's message with its path as text, since `str` shows a bytes path as ``b'...'``."""
    if isinstance(error, OSError) and error.strerror:
        return f"{error.strerror}: {os.fsdecode(error.filename)}" if error.filename is not None else error.strerror
    return str(error) or type(error).__name__


class ContentChanged(RuntimeError):
    """A file has changed since it was listed."""


class TreeEntry(msgspec.Struct, array_like=True, frozen=True):
    """A file, a symbolic link, or an empty folder."""

    path: bytes
    """Relative to the parent of the shared file or folder, so it begins with the name of that file or folder."""
    mode: int
    """``st_mode`` of `os.stat`."""
    size: int
    mtime_ns: int
    inode: int
    ctime_ns: int
    """`inode` and `ctime_ns` let another host recognise the same file on a shared file system."""
    target: bytes = b""
    """The target of a link."""

    @property
    def is_file(self) -> bool:
        return stat.S_ISREG(self.mode)

    @property
    def is_link(self) -> bool:
        return stat.S_ISLNK(self.mode)


class Manifest(msgspec.Struct):
    entries: list[TreeEntry]
    left_out: list[tuple[bytes, str]]
    """Paths that are not shared, and why."""


@dataclass(frozen=True)
class Found:
    """The location of a file or folder to share."""

    parent: bytes
    """The folder that contains it."""
    name: bytes
    repo: str = ""
    """Its Hugging Face id, if it is in the Hugging Face cache."""

    @property
    def path(self) -> bytes:
        return os.path.join(self.parent, self.name)

    @property
    def parent_elsewhere(self) -> bytes:
        """The folder for the copy on another host; begins with ``~`` if `parent` is in the home folder."""
        home = os.path.expanduser(b"~")
        # The path of the working folder has no links, even if the home folder is a link.
        for parent, base in ((self.parent, home), (os.path.realpath(self.parent), os.path.realpath(home))):
            if parent == base:
                return b"~"
            if below := _below(parent, base):
                return os.path.join(b"~", below)
        return self.parent


SharedTree: TypeAlias = "tuple[Found, Manifest]"
"""The location of a file or folder to share, and the list of its content."""


def hub_cache() -> bytes:
    """The Hugging Face cache of this process, by the rules of `huggingface_hub` 1.0 to 2.4."""
    home = os.environ.get("HF_HOME") or os.path.join(os.environ.get("XDG_CACHE_HOME") or "~/.cache", "huggingface")
    named = os.environ.get("HF_HUB_CACHE") or os.environ.get("HUGGINGFACE_HUB_CACHE") or os.path.join(home, "hub")
    return os.fsencode(os.path.abspath(os.path.expandvars(os.path.expanduser(named))))


def find(typed: bytes) -> Found | None:
    """Find what a user typed: a path, or the id of a repository in the Hugging Face cache; None if neither exists.

    For a path inside a cached repository, returns the whole repository.
    """
    path, cache = os.path.abspath(os.path.expanduser(typed)), hub_cache()
    if os.path.exists(path):
        for inside in (path, os.path.realpath(path)):
            below = _below(inside, cache) or _below(inside, os.path.realpath(cache))
            kind, _, repo = (below or b"").split(b"/")[0].partition(b"--")
            if repo and kind in REPO_KINDS:
                return _in_cache(cache, kind, repo)
        return Found(os.path.dirname(path), os.path.basename(path))
    if REPO.fullmatch(typed):
        repo = typed.replace(b"/", b"--")
        for kind in REPO_KINDS:
            if os.path.isdir(os.path.join(cache, kind + b"--" + repo)):
                return _in_cache(cache, kind, repo)
    return None


def _in_cache(cache: bytes, kind: bytes, repo: bytes) -> Found:
    return Found(cache, kind + b"--" + repo, os.fsdecode(repo.replace(b"--", b"/", 1)))


def _below(path: bytes, folder: bytes) -> bytes:
    return path[len(folder) + 1 :] if path.startswith(folder.rstrip(b"/") + b"/") else b""


def scan(found: Found) -> Manifest:
    """List the content. Raises OSError if something cannot be read, and for the home folder and the root."""
    if os.path.realpath(found.path) in (os.path.realpath(os.path.expanduser(b"~")), b"/"):
        raise PermissionError("the home folder and the root of the file system are never shared")
    manifest = Manifest([], [])
    if os.path.isdir(found.path):
        for path, entry in _walk(found, found.name):
            if isinstance(entry, str):
                manifest.left_out.append((path, entry))
            else:
                manifest.entries.append(entry)
        return manifest
    now = os.stat(found.path)
    if not stat.S_ISREG(now.st_mode):
        manifest.left_out.append((found.name, NO_FILE))
    else:
        manifest.entries.append(_file(found, found.name, now))
    return manifest


def listed(path: bytes) -> SharedTree:
    """Find and scan a path that was found before. Raises OSError, also if it no longer exists."""
    found = find(path)
    if found is None:
        raise FileNotFoundError(f"{os.fsdecode(path)} is no longer there")
    return found, scan(found)


def _walk(found: Found, folder: bytes) -> Iterator[tuple[bytes, TreeEntry | str]]:
    """Yield each path with its entry, or the reason for leaving it out. Skips unfinished transfers and downloads."""
    with os.scandir(os.path.join(found.parent, folder)) as listing:
        entries = sorted(listing, key=lambda each: each.name)
    if not entries:
        yield folder, _entry(folder, os.stat(os.path.join(found.parent, folder)))
    for each in entries:
        path = folder + b"/" + each.name
        if each.name.startswith(b".allranks") or (found.repo and each.name.endswith((b".incomplete", b".lock"))):
            continue
        now = each.stat(follow_symlinks=False)
        if stat.S_ISDIR(now.st_mode):
            yield from _walk(found, path)
        elif stat.S_ISLNK(now.st_mode):
            target = os.readlink(each.path)
            inside = stays_inside(path, target) and _is_within(
                os.path.realpath(each.path), os.path.realpath(found.path)
            )
            yield path, _entry(path, now, target) if inside else LEADS_OUT
        elif stat.S_ISREG(now.st_mode):
            yield path, _file(found, path, now)
        else:
            yield path, NO_FILE


def _file(found: Found, path: bytes, now: os.stat_result) -> TreeEntry:
    """The entry of a file. Raises OSError, before anything is sent, if the file cannot be read."""
    os.close(open_to_read(os.path.join(found.parent, path)))
    return _entry(path, now)


def _entry(path: bytes, now: os.stat_result, target: bytes = b"") -> TreeEntry:
    return TreeEntry(path, now.st_mode, now.st_size, now.st_mtime_ns, now.st_ino, now.st_ctime_ns, target)


def stays_inside(path: bytes, target: bytes) -> bool:
    """Whether a link at `path` leads to a path inside the shared folder, judged by the text of its `target`."""
    leads_to = os.path.normpath(os.path.join(os.path.dirname(path), target))
    return not os.path.isabs(target) and _is_within(leads_to, path.split(b"/")[0])


def _is_within(path: bytes, folder: bytes) -> bool:
    return path == folder or path.startswith(folder.rstrip(b"/") + b"/")


def block_count(size: int) -> int:
    return -(-size // BLOCK)


def block_digest(key: bytes, file: int, block: int, data: bytes | bytearray | memoryview) -> bytes:
    """The digest of block number `block` of file number `file`."""
    digest = hashlib.blake2b(_POSITION.pack(file, block), key=key, digest_size=DIGEST, person=b"allranks block")
    digest.update(data)
    return digest.digest()


def open_to_read(path: bytes) -> int:
    """Open a file without blocking, even if a pipe has replaced it; return the descriptor. Raises OSError."""
    return os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)


def read_block(path: bytes, block: int) -> tuple[bytes, os.stat_result]:
    """Read a block (shorter at the end of the file) and the file's state. Raises OSError, and ContentChanged."""
    descriptor = open_to_read(path)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise ContentChanged(f"{os.fsdecode(path)} is no file any more. Run the share again")
        data = os.pread(descriptor, BLOCK, block * BLOCK)
        while len(data) < BLOCK and (more := os.pread(descriptor, BLOCK - len(data), block * BLOCK + len(data))):
            data += more
        return data, os.fstat(descriptor)
    finally:
        os.close(descriptor)


class SharedFile:
    """A file to share that is complete on this host; keeps the digests of its blocks."""

    def __init__(self, key: bytes, number: int, path: bytes, size: int, mtime_ns: int) -> None:
        self.key, self.number, self.path, self.size, self.mtime_ns = key, number, path, size, mtime_ns
        self._digests = bytearray(DIGEST * block_count(size))
        self._known = bytearray(block_count(size))
        self._lock = threading.Lock()

    @property
    def blocks(self) -> int:
        return len(self._known)

    def knows(self, block: int) -> bool:
        """Whether the digest of the block is known."""
        return bool(self._known[block])

    def note(self, block: int, digest: bytes) -> None:
        with self._lock:
            self._digests[block * DIGEST : (block + 1) * DIGEST] = digest
            self._known[block] = 1

    def noted(self, block: int) -> bytes:
        return bytes(self._digests[block * DIGEST : (block + 1) * DIGEST])

    def block(self, block: int) -> tuple[bytes, bytes]:
        """Return the digest and the content of a block. Raises ContentChanged, and OSError."""
        data, now = read_block(self.path, block)
        if (now.st_size, now.st_mtime_ns) != (self.size, self.mtime_ns):
            raise ContentChanged(f"{os.fsdecode(self.path)} was changed while it was shared. Run the share again")
        if not self.knows(block):
            self.note(block, block_digest(self.key, self.number, block, data))
        return self.noted(block), data

    def digest(self) -> bytes:
        """The digest of all block digests. Raises the same errors as `block`."""
        for block in range(self.blocks):
            if not self.knows(block):
                self.block(block)
        return hashlib.blake2b(self._digests, digest_size=DIGEST).digest()


def files_of(found: Found, manifest: Manifest, key: bytes) -> dict[int, SharedFile]:
    """The files of the manifest, by their number in it."""
    return {
        number: SharedFile(key, number, os.path.join(found.parent, entry.path), entry.size, entry.mtime_ns)
        for number, entry in enumerate(manifest.entries)
        if entry.is_file
    }
