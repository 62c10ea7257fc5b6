"""The options of a cell, declared once.

The options of ``%%distributed`` (`magics.parsers`), the keywords of `Cluster.run` and `begin`, and the options sent to
a rank are all made of the fields of `CellOptions`. To add an option, add a field here and the code that acts on it.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Literal, get_type_hints

import msgspec

from allranks.errors import UsageError
from allranks.typed_options import Typed, choices

Check = Literal["off", "warn", "strict"]
CallKind = Literal["function", "coroutine function"]


def megabytes(text: str) -> int:
    """Convert megabytes to bytes: ``4`` is 4,000,000 bytes. Raises ValueError."""
    number = float(text)
    if not (math.isfinite(number) and number >= 0):
        raise ValueError(text)
    return int(number * 1e6)


class CellOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The options of one cell: keywords of `Cluster.run`, `begin` and `options`."""

    ranks: Sequence[int] | int | None = None
    """The ranks that run the cell; None for all ranks."""
    timeout: Annotated[float | None, Typed("stop the cell after S seconds", "S")] = None
    """Seconds after which the cell is stopped and CellTimeout is raised."""
    want_values: bool = True
    """Whether the value of the last expression is sent back."""
    max_output: Annotated[int | None, Typed("text kept per rank (default 4)", "MB", megabytes)] = None
    """Bytes of text kept from each rank; 4 MB for None."""
    check: Annotated[Check | None, Typed("check that ranks' collectives agree")] = None
    """What happens if ranks enter different collectives, as for `Cluster`; None for the cluster's setting."""
    ordered: Annotated[bool | None, Typed("run collectives in call order")] = None
    """Whether the collectives of a rank are chained, as for `Cluster`; None for the cluster's setting."""
    timing: Annotated[bool, Typed("time each collective (slower): transfer and wait")] = False
    """Time each collective by evaluating it at once, which costs overlap (`OpView.transfer`, `wait`)."""
    timeline: bool | Literal["lazy"] = False
    """Do that, and record when each ran (`CellResult.timeline`); ``"lazy"`` records without evaluating at once."""
    breakpoints: bool = False
    """Whether ranks stop at ``breakpoint()``, for `Cluster.debug`; otherwise they skip it and print a line."""


OLD_NAMES = {"profile": "timing"}
"""The option names of 0.1 and their present names; the old names are accepted but not shown anywhere."""


class CellRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A cell without its code; sent to a rank together with the code (`messages.requests.RunCell`)."""

    number: int
    """The number of the cell, counted by the cluster."""
    count: int
    """The number that tracebacks show: the execution count in the notebook's margin or, without one, `number`."""
    options: CellOptions
    widgets: bool = False
    """Whether the cell comes from a page that shows widgets."""
    comms: int = 0
    """Number of messages from the page's widgets that were sent before the cell."""
    sender: str = ""
    """Identifies the notebook's end of the lifeline that sent the cell."""
    calls: CallKind | None = None
    """The kind of function that the cell calls, if a function (`requests.KeepCall`) was sent instead of code."""


class Unreadable(ValueError):
    """The received options of a cell are invalid; the message says why."""


def checked(given: Mapping[str, object]) -> CellOptions:
    """Convert the options that a user has `given`. Raises UsageError for an invalid value."""
    try:
        options = msgspec.convert({name: _plain(value) for name, value in given.items()}, CellOptions, strict=False)
    except msgspec.ValidationError as error:
        what, _, where = str(error).partition(" - at `$.")
        name = where.rstrip("`").partition("[")[0]
        if what.startswith("Invalid enum"):
            *others, last = choices(get_type_hints(CellOptions)[name])
            what = f"must be {', '.join(others)} or {last}"
        raise UsageError(f"{name}={given.get(name)!r}: {what.replace('null', 'None')}.") from None
    if options.timeout is not None and not options.timeout > 0:
        raise UsageError(f"timeout={options.timeout:g}: must be above 0 seconds.")
    if options.max_output is not None and options.max_output < 0:
        raise UsageError(f"max_output={options.max_output}: must be 0 bytes or more.")
    # An infinite timeout is the same as none.
    return msgspec.structs.replace(options, timeout=None) if options.timeout == math.inf else options


def read(sent: object) -> CellRequest:
    """Convert a request that a rank has received. Raises Unreadable."""
    try:
        return msgspec.convert(sent, CellRequest)
    except msgspec.ValidationError as error:
        raise Unreadable(
            f"this rank cannot read the options of the cell: {error}. The notebook and the rank may have different "
            "versions of allranks."
        ) from None


def unknown(name: str, known: Iterable[str]) -> str:
    """The message for an unknown option: the name that was probably meant, or all known names."""
    known = list(known)
    close = difflib.get_close_matches(name, known, 1)
    return f"unknown option {name!r}. " + (f"Did you mean {close[0]!r}?" if close else f"Known: {', '.join(known)}.")


def _plain(value: object) -> object:
    """Turn ranges and sets into sorted lists, and numbers and arrays of numpy and MLX into plain Python values."""
    if isinstance(value, (range, set, frozenset)):
        return sorted(value)
    return value.tolist() if hasattr(value, "tolist") else value
