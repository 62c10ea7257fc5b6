"""The output of a cell on one rank, as a sequence of items."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain, groupby
from typing import Literal, TypeAlias

from msgspec import Struct, structs

from allranks.messages.wire import dict_from_json, to_json

from .measures import LedgerEntry

Stream = Literal["stdout", "stderr", "note"]
"""``note``: a message from allranks itself that is not an error."""
BundleKind = Literal["display", "update", "result"]
Item: TypeAlias = "tuple[object, ...]"
"""An item of output outside of messages: its kind, then its content (see `unpacked`)."""


class OverwrittenLine(str):
    """The last state of a line that was written over itself, as programs draw progress bars."""

    seconds: float
    """Seconds from the first write of the line to its end."""


class CellError(Struct, frozen=True):
    """The error that a cell raised on one rank."""

    ename: str
    evalue: str
    traceback: list[str]
    """The lines as IPython shows them, with colours."""
    line: int | None = None
    place: str = ""
    """The file of an applied function, to which `line` refers; empty if `line` is a line of the cell."""
    collective: LedgerEntry | None = None
    """The collective in which the rank may have been waiting; None if there is none."""
    aborted: bool = False
    """Whether the error only followed from an aborted collective."""


class Text(Struct, array_like=True, tag="text", frozen=True):
    """Consecutive prints on one stream."""

    stream: Stream
    prints: list[str]


class FinishedBar(Struct, array_like=True, tag="bar", frozen=True):
    """The last state of a line that was written over itself, such as a progress bar."""

    stream: Stream
    text: str
    seconds: float
    """Seconds from the first write of the line to its end."""


class Bundle(Struct, array_like=True, tag="bundle", frozen=True):
    """A MIME bundle: JSON of ``data``, ``metadata`` and ``display_id``."""

    kind: BundleKind
    content: bytes


class Raised(Struct, array_like=True, tag="raised", frozen=True):
    """The cell's error, at its position in the output."""

    error: CellError


class Clear(Struct, array_like=True, tag="clear", frozen=True):
    """A call of ``clear_output``."""

    wait: bool


class Cut(Struct, array_like=True, tag="cut", frozen=True):
    """How much printed text was not kept."""

    lines: int
    nbytes: int


OutputItem = Text | FinishedBar | Bundle | Raised | Clear | Cut


def packed(items: Iterable[Sequence[object]]) -> tuple[OutputItem, ...]:
    """Convert items of a rank's output buffer to their message types."""
    return tuple(chain.from_iterable(map(_packed, items)))


def _packed(item: Sequence[object]) -> Iterable[OutputItem]:
    match item:
        case ["text", "stdout" | "stderr" as stream, list(prints)] if OverwrittenLine in set(map(type, prints)):
            for kind, run in groupby(prints, type):
                if kind is OverwrittenLine:
                    yield from (FinishedBar(stream, str(bar), bar.seconds) for bar in run)
                else:
                    yield Text(stream, list(run))
        case ["text", "stdout" | "stderr" | "note" as stream, list(prints)]:
            yield Text(stream, prints)
        case ["error", CellError() as error]:
            yield Raised(error)
        case ["clear", bool(wait)]:
            yield Clear(wait)
        case ["cut", {"lines": int(lines), "bytes": int(nbytes)}]:
            yield Cut(lines, nbytes)
        case ["display" | "update" | "result" as kind, content]:
            yield Bundle(kind, to_json(content))
        case _:
            raise TypeError(f"no item of output: {item!r:.80}")


def unpacked(items: Iterable[OutputItem]) -> list[Item]:
    """Convert messages to the items that a fold accepts, such as ``("text", stream, prints)``.

    A MIME bundle becomes ``(kind, bundle)``, an error ``("error", dict, CellError)``, and a bar
    ``("bar", stream, text, seconds)``. Raises NotUnderstood.
    """
    return [_unpacked(item) for item in items]


def _unpacked(item: OutputItem) -> Item:
    match item:
        case Text(stream, prints):
            return "text", stream, prints
        case FinishedBar(stream, text, seconds):
            return "bar", stream, text, seconds
        case Bundle(kind, content):
            return kind, dict_from_json(content)
        case Raised(error):
            shown = structs.asdict(error)
            del shown["place"], shown["collective"], shown["aborted"]
            return "error", shown, error
        case Clear(wait):
            return "clear", wait
        case Cut(lines, nbytes):
            return "cut", {"lines": lines, "bytes": nbytes}
