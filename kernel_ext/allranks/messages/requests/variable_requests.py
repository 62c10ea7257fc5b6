"""Requests about the values of the user's variables, and their checkpoints."""

from __future__ import annotations

from msgspec import Struct, field

from .request import Answer, Nothing, Question


class Push(Question[Nothing]):
    """Load the dict in the buffers, and hold its variables until `DecidePush`. Replaces an earlier undecided push."""

    runs = "main"
    push: int = 0
    """Identifies the push."""


class DecidePush(Question[Nothing]):
    """Bind or drop the variables of this `push`. Fails if they are to be bound and the rank no longer holds them."""

    runs = "main"
    push: int
    bind: bool


class Pull(Question[Nothing]):
    """Return, in the answer's buffers, the value of the dotted path `name`.

    With `computed_only`, this fails if an array in the value is not evaluated.
    """

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
    """Total bytes of all arrays in it."""
    checksum: int | None = None
    """CRC-32 of its content; None if the content cannot be compared."""
    pending: bool = False


class DescribedVariable(Described, kw_only=True):
    name: str
    invalid: bool = False
    """Whether its value depends on an aborted collective."""


class Leaf(Described, kw_only=True):
    path: str
    """The path of the leaf, such as ``['layers'][0]['weight']``."""


class DescribedVariables(Answer):
    variables: list[DescribedVariable]


class Describe(Question[DescribedVariables]):
    """Describe the user's variables, or only `names`; evaluates nothing. While a cell runs, without checksums."""

    runs = "main"
    in_steps = True
    names: list[str]


class Leaves(Answer):
    leaves: list[Leaf]


class DescribeLeaves(Question[Leaves]):
    """Describe the leaves of one variable; evaluates nothing."""

    runs = "main"
    name: str


class PullLeaf(Question[Nothing]):
    """Return the value of one leaf in the answer's buffers."""

    runs = "main"
    name: str
    path: str


# Checkpoints


class Saved(Answer):
    left: list[str]
    """Names that cannot be pickled."""
    failed: dict[str, str]
    """Names that can be pickled but could not be loaded again, and why."""
    invalid: list[str]
    unsure: list[str] = field(default_factory=list)
    """Names that the blocked cell has set. They are not saved, since their values may be incomplete."""


class Save(Question[Saved]):
    """Write the user's variables to a file on the rank's host; without a `path`, to the answer's buffers.

    Variables that no other process could load are written to the file `aside`, if given.
    """

    runs = "main"
    path: str | None = None
    aside: str | None = None


class Rescue(Question[Saved]):
    """Same as `Save` while the main thread is blocked indefinitely; without variables that the blocked cell has set."""

    runs = "thread"
    path: str
    aside: str | None = None


class Loaded(Answer):
    failed: dict[str, str]
    """Names that could not be loaded, and why."""


class Load(Question[Loaded]):
    """Load the variables that `Save` wrote: from the buffers if there are any, otherwise from the file `path`.

    Removes the file if all variables were loaded, unless `keep` is set.
    """

    runs = "main"
    path: str | None = None
    keep: bool = False
    invalid: list[str] = field(default_factory=list)
    """Names to mark as invalid."""


class Drop(Question[Nothing]):
    """Remove a file that `Save` wrote, and its folder if that is then empty."""

    path: str
