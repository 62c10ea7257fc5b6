"""Requests that save a state to a folder on the ranks' hosts, and load it.

To save, the head sends in this order: `FindSavable`, `TakeSnapshot`, `CompareArrays`, `OpenState`, `WriteState`,
`CommitState`, `EndSave`. To load: `FindState`, `ReadManifest`, `PrepareLoad`, `DecideLoad`. All ranks get each request,
except that only the first rank on each disk gets `CommitState`, and only rank 0 gets `ReadManifest`.
"""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from .request import Answer, Nothing, Question
from .variable_requests import Loaded


class Savable(Answer):
    names: list[str]
    not_saved: dict[str, str]
    """Names that cannot be saved, and why."""
    missing: list[str]
    """Names that this rank does not have."""
    pending: list[str]
    """The `names` that wait for a collective."""


class FindSavable(Question[Savable]):
    """Find which of the user's variables, or of these `names`, can be saved. Evaluates nothing."""

    runs = "main"
    names: list[str] | None = None


class HeldArray(Struct):
    key: str
    """A readable key, such as ``model.layers.0.weight``."""
    library: str
    """``mlx`` or ``numpy``."""
    dtype: str
    shape: list[int]
    nbytes: int
    sample: str
    """A digest of parts of the array: arrays with different samples are not equal."""


class HeldVariable(Struct):
    name: str
    type: str
    dtype: str | None
    shape: list[int] | None
    arrays: list[str]
    """Keys of the variable's arrays."""
    digest: str
    """Digest of the value without these arrays."""


class SnapshotTaken(Answer):
    variables: list[HeldVariable]
    arrays: list[HeldArray]
    mlx: str
    python: str


class TakeSnapshot(Question[SnapshotTaken]):
    """Take a snapshot of the variables of these `names`, and of the random states; writes nothing.

    The rank keeps it until `EndSave` of this `version`, or until the next snapshot. An array with several names gets
    its key from the first name.
    """

    runs = "main"
    version: str
    names: list[str]


class ArrayDigests(Answer):
    digests: dict[str, str]
    """The digest of each array, by key."""


class CompareArrays(Question[ArrayDigests]):
    """Compute the digests of these arrays of the snapshot."""

    runs = "thread"
    version: str
    keys: list[str]


class StateOpened(Answer):
    path: str
    """The absolute path of the folder."""
    bytes: int
    """Size of the rank's pickle."""
    crc32: int


class OpenState(Question[StateOpened]):
    """Create the folder of this version, and write the snapshot without its arrays."""

    runs = "thread"
    path: str
    version: str


class StateWritten(Answer):
    crc32: dict[str, int]
    """CRC-32 of each array that this rank has written, by key."""
    first: bool
    """Whether no lower rank writes to the same disk."""
    bytes: int
    """Bytes written by this rank."""


class WriteState(Question[StateWritten]):
    """Write the arrays; arrays that are `equal` on all ranks only if this rank is the first on its disk."""

    runs = "thread"
    version: str
    equal: list[str]


class CommitState(Question[Nothing]):
    """Put the manifest in place: from then on, this version is the state in the folder.

    The buffers contain the manifest and ``runs.json``.
    """

    runs = "thread"
    version: str


Removed = Literal["others", "this", "nothing"]
"""Versions whose files are removed at the end of a save; never a version that another save is writing."""


class EndSave(Question[Nothing]):
    """Drop the snapshot of this version, even if it is still being taken, and the files of the versions in `remove`."""

    runs = "thread"
    version: str
    remove: Removed


class StateFound(Answer):
    path: str
    """The absolute path of the folder."""
    current: str
    """The version that the folder's manifest names."""
    versions: dict[str, list[int]]
    """All complete versions, each with the ranks whose pickles exist."""


class FindState(Question[StateFound]):
    """Find the state in a folder. Fails if there is none, or if its manifest cannot be read."""

    runs = "thread"
    path: str


class ReadManifest(Question[Nothing]):
    """Return the manifest and ``runs.json`` of this version in the answer's buffers."""

    runs = "thread"
    path: str
    version: str


class LoadPrepared(Answer):
    failed: dict[str, str]
    """Names that cannot be loaded, and why."""
    nbytes: int
    """Bytes read on this rank."""


class PrepareLoad(Question[LoadPrepared]):
    """Load these `names` of a state, verify the checksums, and hold the values until `DecideLoad`."""

    runs = "main"
    path: str
    version: str
    names: list[str]
    own: bool
    """Whether to load the state that was saved as this rank; otherwise, the state of the lowest rank with a pickle."""


class DecideLoad(Question[Loaded]):
    """Bind the loaded values, or drop them."""

    runs = "main"
    bind: bool
