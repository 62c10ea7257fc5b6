"""Requests that copy a file or a folder from one host to all others, from host to host (see `files.share_files`).

The hosts form a chain, in which each pulls from the host before it. The requests themselves contain file content only
if the source is the notebook's machine and no rank runs there (`GiveBlocks`).
"""

from __future__ import annotations

from typing import Literal

from msgspec import field

from .request import Answer, Nothing, Question

NOT_PUT = "another file is there, which no share has put there"
IN_THE_WAY = "a folder or a file of another kind is in its place"
LINK_LEADS_OUT = "a symbolic link there leads out of the folder"
"""Reasons why a file, folder or link on a host is not replaced."""


class ShareFound(Answer):
    path: bytes
    """Absolute path; empty if the host does not have it."""
    working: bytes
    """The rank's working folder, to which a relative path refers."""
    placed: bool = False
    """Whether a share has put all of it in place, and nothing has changed since."""
    state: str = ""
    """A checksum of names, sizes and times: equal on hosts with equal copies; empty if the copy cannot be read."""


class FindShare(Question[ShareFound]):
    """Find `path` on the rank's host: a path, or the id of a repository in the host's Hugging Face cache."""

    runs = "thread"
    transfer: str
    path: bytes


class ShareOffered(Answer):
    """The buffer holds the manifest (`machine.shared_tree.Manifest`)."""

    name: bytes
    parent: bytes
    """The folder that contains it; the path begins with ``~`` if the folder is in the user's home folder."""
    repo: str
    """Its Hugging Face id, if it is in the Hugging Face cache; else empty."""
    ports: list[tuple[str, int]]
    """Addresses and ports from which the next host can pull."""


class OfferShare(Question[ShareOffered]):
    """Let hosts that know the `key` pull what `FindShare` has found, at these addresses, until `EndShare`."""

    runs = "thread"
    transfer: str
    key: bytes
    path: bytes
    addresses: list[str]


class ShareAccepted(Answer):
    folder: bytes
    """The path at the destination, which may exist already."""
    ports: list[tuple[str, int]] = field(default_factory=list)
    """Addresses and ports from which the next host can pull."""
    same: bool = False
    """Whether the source's own files are there, on a file system that both hosts mount."""
    identity: str = ""
    """Identifies the folder; the same on hosts that share it, and empty if nothing has to be written."""
    taken: bool = False
    """Whether another rank is writing there: a rank of a host that shares the folder, or of another cluster."""
    missing: int = 0
    """Number of missing files, links and folders."""
    nbytes: int = 0
    """Bytes of the missing files."""
    compared: int = 0
    """Bytes of existing files that have the source's size, but that no share put there or that were changed since."""
    kept: int = 0
    """Bytes of the missing files that an earlier share has already received."""
    free: int = 0
    """Bytes free on its disk."""
    refused: list[tuple[bytes, str]] = field(default_factory=list)
    """Paths that are in the way, and why they are not replaced."""


class AcceptShare(Question[ShareAccepted]):
    """Find what the rank's host lacks, and prepare to receive it. The buffer holds the manifest.

    The destination is the folder `parent`, or with `repo`, the host's own Hugging Face cache.
    """

    runs = "thread"
    transfer: str
    key: bytes
    name: bytes
    parent: bytes
    repo: str
    addresses: list[str]
    overwrite: bool


class PullShare(Question[Nothing]):
    """Begin to receive from `host`, which listens at these ports; without ports, from the notebook."""

    runs = "thread"
    transfer: str
    host: str
    ports: list[tuple[str, int]]


class BlocksWanted(Answer):
    wanted: list[tuple[int, int, int]]
    """For each block: its kind (content and digest, or digest only), the file and the block number."""


class GiveBlocks(Question[BlocksWanted]):
    """Send the requested blocks from the notebook; answered within a second with the blocks to send next.

    Each buffer holds a digest and a block.
    """

    runs = "thread"
    transfer: str
    given: list[tuple[int, int, int]] = field(default_factory=list)
    failed: str = ""
    """Why the notebook can send no more blocks; empty if it can."""
    again: bool = False
    """Whether to request all missing blocks again, since an answer may have been lost."""


class ShareState(Answer):
    state: Literal["receives", "whole", "failed"]
    moved: int
    """Bytes received from the previous host in the chain, or from the notebook."""
    checked: int
    """Bytes that existed already on this host and are equal to the source's."""
    why: str = ""
    """Why the transfer failed."""
    elsewhere: str = ""
    """The host that caused the failure, if not this host; otherwise empty."""


class AskShare(Question[ShareState]):
    """Ask for the progress of the transfer. A rank that gets no request for 5 minutes ends the transfer."""

    transfer: str


class ShareDigests(Answer):
    """The buffer holds the digests of these files' contents, in the same order."""

    files: list[int]


class DigestShare(Question[ShareDigests]):
    """Compute the digests of these files of the manifest; without `files`, of the files received or compared."""

    runs = "thread"
    transfer: str
    files: list[int] = field(default_factory=list)


class PlaceShare(Question[Nothing]):
    """Put the received files in place."""

    runs = "thread"
    transfer: str


class NameShare(Question[Nothing]):
    """Let cells find the copy by these names (`allranks.shared`)."""

    runs = "thread"
    names: list[bytes]
    folder: bytes
    repo: str


class EndShare(Question[Nothing]):
    """Stop listening. Files that were received but not put in place stay aside for the next share."""

    runs = "thread"
    transfer: str
