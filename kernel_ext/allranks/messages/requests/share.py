"""About a file or a folder that one host has and the others get from each other: see `files.share`.

Each host but the source pulls from the host before it in a chain. Content comes this way only from a notebook on whose
machine no rank runs.
"""

from __future__ import annotations

from typing import Literal

from msgspec import field

from .base import Answer, Nothing, Question

NOT_PUT = "another file is there, which no share has put there"
IN_THE_WAY = "a folder or a file of another kind is in its place"
LINK_LEADS_OUT = "a symbolic link there leads out of the folder"
"""Why something is not replaced on a host."""


class ShareFound(Answer):
    path: bytes
    """Absolute; empty where the host has no such thing."""
    working: bytes
    """The rank's working folder, which a relative path begins at."""
    placed: bool = False
    """Whether a share has put all of it there, and nothing has changed it since."""
    state: str = ""
    """Equal on hosts whose copies look alike; empty where it cannot be read."""


class FindShare(Question[ShareFound]):
    """Whether the rank's host has what the user means: a path, or a repository in its Hugging Face cache."""

    runs = "thread"
    transfer: str
    path: bytes


class ShareOffered(Answer):
    """The buffer has the manifest (`machine.shared_tree.Manifest`)."""

    name: bytes
    parent: bytes
    """The folder that holds it, which begins with ``~`` where that is below the user's home folder."""
    repo: str
    """Its id on Hugging Face, where it is in the cache of that."""
    ports: list[tuple[str, int]]
    """Where the next host gets it."""


class OfferShare(Question[ShareOffered]):
    """Let hosts that know the `key` get what `FindShare` has found, at these addresses, until `EndShare`."""

    runs = "thread"
    transfer: str
    key: bytes
    path: bytes
    addresses: list[str]


class ShareAccepted(Answer):
    folder: bytes
    """Where it is to lie, or lies."""
    ports: list[tuple[str, int]] = field(default_factory=list)
    """Where the next host gets it."""
    same: bool = False
    """Whether it lies there as the source has it: on a file system that both mount."""
    identity: str = ""
    """The same on hosts that share the folder; empty where nothing has to be written."""
    taken: bool = False
    """Whether another rank writes there: one of another host that shares the folder, or of another cluster."""
    missing: int = 0
    """Files that are not there yet."""
    nbytes: int = 0
    """Bytes of these."""
    compared: int = 0
    """Bytes of files that others have made there, and that may be equal."""
    kept: int = 0
    """Bytes of the missing files that an earlier share has left."""
    free: int = 0
    """Bytes free on its disk."""
    refused: list[tuple[bytes, str]] = field(default_factory=list)
    """What is in the way, and why it is not replaced."""


class AcceptShare(Question[ShareAccepted]):
    """See what of it is on the rank's host, and be ready to receive the rest. The buffer has the manifest.

    It is to lie in the folder `parent`, or where `repo` is named, in the host's own Hugging Face cache.
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
    """Begin to receive from the host named `host`, which listens at these ports; where there are none, the notebook."""

    runs = "thread"
    transfer: str
    host: str
    ports: list[tuple[str, int]]


class BlocksWanted(Answer):
    wanted: list[tuple[int, int, int]]
    """Of each block the kind (its content, or its digest alone), the file and the number."""


class GiveBlocks(Question[BlocksWanted]):
    """Blocks that were wanted from the notebook; answered with those that are wanted next, after a second at most.

    Each buffer has a digest and a block.
    """

    runs = "thread"
    transfer: str
    given: list[tuple[int, int, int]] = field(default_factory=list)
    failed: str = ""
    """Why no more can come."""
    again: bool = False
    """Whether to name all that is wanted: an answer may have been lost."""


class ShareState(Answer):
    state: Literal["receives", "whole", "failed"]
    moved: int
    """Bytes that have come from the other host."""
    checked: int
    """Bytes that were there, and are equal to those of the source."""
    why: str = ""
    """Why it failed."""
    elsewhere: str = ""
    """The host that this is about, where it is another one."""


class AskShare(Question[ShareState]):
    """The progress of the transfer. A rank that is not asked for minutes gives the transfer up."""

    transfer: str


class ShareDigests(Answer):
    """The buffer has the digests of the files' contents, in their order."""

    files: list[int]


class DigestShare(Question[ShareDigests]):
    """Of these files of the manifest; where none are named, of those that were received or compared."""

    runs = "thread"
    transfer: str
    files: list[int] = field(default_factory=list)


class PlaceShare(Question[Nothing]):
    """Put what was received in place."""

    runs = "thread"
    transfer: str


class NameShare(Question[Nothing]):
    """Let cells find it by these names (`allranks.shared`)."""

    runs = "thread"
    names: list[bytes]
    folder: bytes
    repo: str


class EndShare(Question[Nothing]):
    """Listen no more. What has been received and not put in place stays aside, for the next share."""

    runs = "thread"
    transfer: str
