"""About what the user's variables hold, and their checkpoints."""

from __future__ import annotations

from msgspec import Struct, field

from .base import Answer, Nothing, Question
from .collectives import Names


class Push(Question[Names]):
    """Load variables and hold them until `DecidePush`: the buffers hold a dict. It replaces what was held before."""

    runs = "main"
    push: int = 0
    """Tells it from other pushes."""


class DecidePush(Question[Nothing]):
    """Bind the variables of this `push`, which fails where the rank does not hold them, or drop them."""

    runs = "main"
    push: int
    bind: bool


class Pull(Question[Nothing]):
    """The value of a dotted path, in the answer's buffers; with `computed_only`, only if nothing must be evaluated."""

    runs = "main"
    in_steps = True
    name: str
    computed_only: bool = False


class Described(Struct, kw_only=True):
    """A variable, or a leaf of one, without its value."""

    type: str
    shape: list[int] | None = None
    dtype: str | None = None
    nbytes: int | None = None
    """Of all arrays in it."""
    checksum: int | None = None
    """CRC-32 of its content; None where that cannot be compared."""
    pending: bool = False


class Variable(Described, kw_only=True):
    name: str
    invalid: bool = False
    """Whether an aborted collective was a part of it."""


class Leaf(Described, kw_only=True):
    path: str
    """As in ``['layers'][0]['weight']``."""


class Variables(Answer):
    variables: list[Variable]


class Describe(Question[Variables]):
    """The user's variables, or those of these `names`; evaluates nothing. In a cell, without checksums."""

    runs = "main"
    in_steps = True
    names: list[str]


class Leaves(Answer):
    leaves: list[Leaf]


class DescribeLeaves(Question[Leaves]):
    """The leaves of one variable; evaluates nothing."""

    runs = "main"
    name: str


class PullLeaf(Question[Nothing]):
    """The value of one leaf, in the answer's buffers."""

    runs = "main"
    name: str
    path: str


# Checkpoints


class Saved(Answer):
    left: list[str]
    """Names that cannot be pickled."""
    failed: dict[str, str]
    """Names that can, but could not be loaded again, and why."""
    invalid: list[str]
    unsure: list[str] = field(default_factory=list)
    """Names that a blocked cell has set, and may not have finished with."""


class Save(Question[Saved]):
    """Write the user's variables to a file on the rank's host; without a `path`, into the answer's buffers.

    Names that no other process could load go to the file `aside`, if there is to be one.
    """

    runs = "main"
    path: str | None = None
    aside: str | None = None


class Rescue(Question[Saved]):
    """`Save`, while the main thread is blocked for good; without what the blocked cell has set."""

    runs = "thread"
    path: str
    aside: str | None = None


class Loaded(Answer):
    failed: dict[str, str]
    """Names that could not be loaded, and why."""


class Load(Question[Loaded]):
    """Take the variables over that `Save` wrote to `path`, or that the buffers hold; remove the file unless `keep`."""

    runs = "main"
    path: str | None = None
    keep: bool = False
    invalid: list[str] = field(default_factory=list)
    """Names to be marked as invalid."""


class Drop(Question[Nothing]):
    """Remove a file that `Save` wrote, and its folder with the last one."""

    path: str
