"""About a state in a folder on the ranks' hosts: saved, and loaded again.

To save, the head asks all ranks in this order: `PrepareSave`, `CompareArrays`, `OpenState`, `WriteState`,
`CommitState`, `EndSave`. To load: `FindState`, `ReadManifest`, `PrepareLoad`, `DecideLoad`.
"""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from .base import Answer, Nothing, Question
from .variables import Loaded


class HeldArray(Struct):
    key: str
    """Readable, as in ``model.layers.0.weight``."""
    library: str
    """``mlx`` or ``numpy``."""
    dtype: str
    shape: list[int]
    nbytes: int
    sample: str
    """A digest of parts of it: arrays whose samples differ are not equal."""


class HeldVariable(Struct):
    name: str
    type: str
    dtype: str | None
    shape: list[int] | None
    arrays: list[str]
    """Keys."""
    digest: str
    """Of all but these arrays."""


class SavePrepared(Answer):
    variables: list[HeldVariable]
    arrays: list[HeldArray]
    left: dict[str, str]
    """Names that cannot be saved, and why."""
    missing: list[str]
    """Names that this rank does not have."""
    mlx: str
    python: str


class PrepareSave(Question[SavePrepared]):
    """Take a snapshot of the user's variables, or of those of these `names`; writes nothing."""

    runs = "main"
    names: list[str] | None = None


class ArrayDigests(Answer):
    digests: dict[str, str]
    """By key."""


class CompareArrays(Question[ArrayDigests]):
    """The digests of these arrays of the snapshot."""

    runs = "thread"
    keys: list[str]


class StateOpened(Answer):
    path: str
    """The absolute path of the folder."""
    bytes: int
    """Of the rank's pickle."""
    crc32: int


class OpenState(Question[StateOpened]):
    """Make the folder of this version, and write all but the arrays of the snapshot."""

    runs = "thread"
    path: str
    version: str


class StateWritten(Answer):
    crc32: dict[str, int]
    """Of the arrays that this rank has written, by key."""
    first: bool
    """Whether no lower rank writes to the same disk."""
    bytes: int
    """Written by this rank."""


class WriteState(Question[StateWritten]):
    """Write the arrays, those that are `equal` on all ranks only where this rank is the first on its disk."""

    runs = "thread"
    equal: list[str]


class CommitState(Question[Nothing]):
    """Put the manifest, which is in the buffers, in place: from then on, this version is the state in the folder."""

    runs = "thread"


Removed = Literal["earlier", "this", "nothing"]
"""Versions whose files are removed at the end of a save."""


class EndSave(Question[Nothing]):
    """Drop the snapshot, and remove files."""

    runs = "thread"
    remove: Removed


class StateFound(Answer):
    path: str
    """The absolute path of the folder."""
    current: str
    """The version that its manifest names."""
    versions: list[str]
    """All versions that are whole."""


class FindState(Question[StateFound]):
    """Raises OSError or ValueError where the folder has no state."""

    runs = "thread"
    path: str


class ReadManifest(Question[Nothing]):
    """The manifest of this version, in the answer's buffers."""

    runs = "thread"
    path: str
    version: str


class LoadPrepared(Answer):
    failed: dict[str, str]
    """Names that cannot be loaded, and why."""
    nbytes: int
    """Read on this rank."""


class PrepareLoad(Question[LoadPrepared]):
    """Load these `names` of a state, verify the checksums, and hold the values until `DecideLoad`."""

    runs = "main"
    path: str
    version: str
    names: list[str]
    own: bool
    """Whether to load what the rank of the same number had; otherwise, what any rank had."""


class DecideLoad(Question[Loaded]):
    """Bind what was loaded, or drop it."""

    runs = "main"
    bind: bool
