"""What can be set for a cell, declared once.

`CellOptions` is what a user may set: the options of ``%%distributed`` (`magics.parsers`), the keywords of `Cluster.run`
and `begin`, and what a rank is sent are all made of its fields. A new option is a field here, and what acts on it.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, Literal, get_type_hints

import msgspec

from allranks.errors import UsageError
from allranks.typed_options import Typed, choices

Check = Literal["off", "warn", "strict"]
CallKind = Literal["function", "coroutine function"]


def megabytes(text: str) -> int:
    """``4`` is 4,000,000 bytes. Raises ValueError."""
    number = float(text)
    if not (math.isfinite(number) and number >= 0):
        raise ValueError(text)
    return int(number * 1e6)


class CellOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What can be set for one cell: keywords of `Cluster.run`, `begin` and `options`."""

    ranks: Sequence[int] | int | None = None
    """The ranks that run it; all for None."""
    timeout: Annotated[float | None, Typed("stop the cell after S seconds", "S")] = None
    """Seconds after which it is stopped, which raises CellTimeout."""
    want_values: bool = True
    """Whether the value of its last expression is sent back."""
    max_output: Annotated[int | None, Typed("text kept per rank (default 4)", "MB", megabytes)] = None
    """Bytes of text kept of each rank (4 MB)."""
    check: Annotated[Check | None, Typed("check that ranks' collectives agree")] = None
    """What happens if ranks enter different collectives, as for `Cluster`; the cluster's own setting for None."""
    ordered: Annotated[bool | None, Typed("run collectives in call order")] = None
    """Whether the collectives of a rank are chained, as for `Cluster`; the cluster's own setting for None."""
    timing: Annotated[bool, Typed("time each collective (slower): transfer and wait")] = False
    """Time each collective by evaluating it at once, which costs overlap (`OpView.transfer`, `wait`)."""
    timeline: bool | Literal["lazy"] = False
    """Do the same, and record when (`CellResult.timeline`); ``"lazy"`` records without evaluating."""
    breakpoints: bool = False
    """Whether a rank stops at ``breakpoint()``, for `Cluster.debug`; otherwise it skips it and prints a line."""


OLD_NAMES = {"profile": "timing"}
"""As options were called in 0.1; they are understood, and shown nowhere."""


class CellRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A cell as a rank is sent it, beside its code (`messages.requests.RunCell`)."""

    number: int
    """Of the cell, counted by the cluster."""
    count: int
    """Its number in tracebacks: that in the notebook's margin."""
    options: CellOptions
    widgets: bool = False
    """Whether it comes from a page that shows widgets."""
    comms: int = 0
    """How many messages of the page's widgets were sent before it."""
    sender: str = ""
    """The notebook's end of the lifeline that sent it."""
    calls: CallKind | None = None
    """What the cell calls, if it was sent a function (`requests.KeepCall`) in place of code."""


class Unreadable(ValueError):
    """What came as a cell's options cannot be; the message says why."""


def checked(given: Mapping[str, Any]) -> CellOptions:
    """The options that a user has `given`. Raises UsageError for a value that cannot be."""
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
    # Cells are sent as JSON, which has no infinity.
    return msgspec.structs.replace(options, timeout=None) if options.timeout == math.inf else options


def read(sent: object) -> CellRequest:
    """What a rank was sent. Raises Unreadable."""
    try:
        return msgspec.convert(sent, CellRequest)
    except msgspec.ValidationError as error:
        raise Unreadable(
            f"this rank cannot read the options of the cell: {error}. The notebook and the rank may have different "
            "versions of allranks."
        ) from None


def unknown(name: str, known: Iterable[str]) -> str:
    """Which option was probably meant."""
    known = list(known)
    close = difflib.get_close_matches(name, known, 1)
    return f"unknown option {name!r}. " + (f"Did you mean {close[0]!r}?" if close else f"Known: {', '.join(known)}.")


def _plain(value: Any) -> Any:
    """Numbers and arrays of numpy and MLX, ranges and sets as what they stand for."""
    if isinstance(value, (range, set, frozenset)):
        return sorted(value)
    return value.tolist() if hasattr(value, "tolist") else value
