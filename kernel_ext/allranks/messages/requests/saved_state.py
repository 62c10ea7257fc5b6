"""About a state in a folder on the ranks' hosts: saved, and loaded again.

To save, the head asks all ranks in this order: `FindSavable`, `TakeSnapshot`, `CompareArrays`, `OpenState`,
`WriteState`, `CommitState`, `EndSave`. To load: `FindState`, `ReadManifest`, `PrepareLoad`, `DecideLoad`.
"""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from .base import Answer, Nothing, Question
from .variables import Loaded


class Savable(Answer):
    names: list[str]
    not_saved: dict[str, str]
    """Names that cannot be saved, and why."""
    missing: list[str]
    """Names that this rank does not have."""
    pending: list[str]
    """Those of the `names` that wait for a collective."""


class FindSavable(Question[Savable]):
    """Which of the user's variables, or of these `names`, can be saved. Evaluates nothing."""

    runs = "main"
    names: list[str] | None = None


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


class SnapshotTaken(Answer):
    variables: list[HeldVariable]
    arrays: list[HeldArray]
    mlx: str
    python: str


class TakeSnapshot(Question[SnapshotTaken]):
    """Take a snapshot of the variables of these `names`, and of the random states; writes nothing.

    The rank keeps it until `EndSave` of this `version`, or until the next one. An array that several names have gets
    its key from the first of them.
    """

    runs = "main"
    version: str
    names: list[str]


class ArrayDigests(Answer):
    digests: dict[str, str]
    """By key."""


class CompareArrays(Question[ArrayDigests]):
    """The digests of these arrays of the snapshot."""

    runs = "thread"
    version: str
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
    version: str
    equal: list[str]


class CommitState(Question[Nothing]):
    """Put the manifest in place: from then on, this version is the state in the folder.

    The buffers have the manifest and ``runs.json``.
    """

    runs = "thread"
    version: str


Removed = Literal["others", "this", "nothing"]
"""Versions whose files are removed at the end of a save; never those that another save is writing."""


class EndSave(Question[Nothing]):
    """Drop the snapshot of this version, also where it is still being taken, and remove files."""

    runs = "thread"
    version: str
    remove: Removed


class StateFound(Answer):
    path: str
    """The absolute path of the folder."""
    current: str
    """The version that its manifest names."""
    versions: dict[str, list[int]]
    """All versions that are complete, each with the ranks whose pickles are there."""


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
