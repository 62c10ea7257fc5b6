"""The timeline of one cell as users get it: shown as a picture and text, exported as a table or a file."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from allranks.bench.bus_bandwidth import bandwidths
from allranks.errors import UsageError

from .cell_timeline import CellTimeline

if TYPE_CHECKING:
    import pandas


@dataclass(frozen=True)
class Timeline(CellTimeline):
    """A cell's collectives, waits and marks on every rank: a picture, `frame` for pandas, `save` for Perfetto."""

    def frame(self) -> pandas.DataFrame:
        """A pandas DataFrame with a row for each event: ``start`` in seconds since the cell began, bandwidths in GB/s.

        Raises UsageError without pandas.
        """
        try:
            import pandas
        except ImportError:
            raise UsageError("frame() needs pandas, which is not installed: pip install pandas.") from None
        return pandas.DataFrame(_rows(self), columns=list(_COLUMNS))

    def save(self, path: str | Path) -> None:
        """Write a trace in Chrome's trace event format, which Perfetto opens too; compressed if `path` ends in ``.gz``.

        If `path` ends in ``.svg``, write the picture instead. Raises UsageError if the file cannot be written.
        """
        if str(path).endswith(".svg"):
            from .timeline_text import write_picture as write
        else:
            from .trace_file import write
        write(self, path)

    def __str__(self) -> str:
        from .timeline_text import text

        return text(self)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        from .timeline_text import html

        return html(self)


_COLUMNS = (
    *("rank", "host", "kind", "name", "number", "shape", "dtype", "bytes", "line"),
    *("start", "seconds", "wait", "transfer", "last", "algbw", "busbw"),
)


def _rows(timeline: CellTimeline) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = []
    for each in timeline.ranks:
        where = {"rank": each.rank, "host": each.host}
        rows.append({**where, "kind": "cell", "name": f"In[{timeline.count}]"} | _span(each.began, each.ended))
        for call in each.calls:
            figures = bandwidths(call.op, call.nbytes, call.transfer, timeline.size)
            rows.append(
                {
                    **where,
                    "kind": "collective",
                    "name": call.op,
                    "number": call.number,
                    "dtype": call.dtype,
                    "line": call.line,
                    "shape": call.shape,
                    "bytes": call.nbytes,
                    "last": call.last,
                    "wait": call.wait,
                    "transfer": call.transfer,
                    **figures,
                    **_span(call.asked if call.began is None else call.began, call.ended),
                }
            )
        rows += [{**where, "kind": "eval", "name": "mx.eval", **_span(*span)} for span in each.evaluations]
        rows += [{**where, "kind": "mark", "name": mark.name, **_span(mark.began, mark.ended)} for mark in each.marks]
    return sorted(rows, key=lambda row: (row["rank"], row["start"]))


def _span(began: float, ended: float | None) -> dict[str, float | None]:
    return {"start": began, "seconds": None if ended is None else ended - began}
