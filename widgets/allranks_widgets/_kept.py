"""The output that a dashboard stores, to send it to pages that are opened later."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

KEPT_BYTES = 4_000_000
HEADS_KEPT = 50
"""For at most this many cells, the ``begin`` item is still stored once it no longer fits into the limit."""

Json: TypeAlias = dict[str, Any]
"""A JSON object."""


class _Entry(NamedTuple):
    cell: int
    kind: str
    lines: int
    """Lines of text in the item, counted once for all its ranks."""
    ranks: int
    data: bytes


class KeptOutput:
    """The newest items, as JSON, up to ``limit`` bytes. Dropped items are counted for each cell."""

    def __init__(self, limit: int = KEPT_BYTES) -> None:
        self.limit = limit
        self.live: dict[int, bytes] = {}
        """The ``live`` item (unfinished lines) of each cell that has one."""
        self._entries: deque[_Entry] = deque()
        self._size = 0
        self._heads: dict[int, bytes] = {}
        self._dropped: dict[int, list[int]] = {}

    def add(self, items: Sequence[Json]) -> list[bytes]:
        """Store ``items``, and return each as the JSON to send."""
        sent = []
        for item in items:
            data = json.dumps(item, separators=(",", ":"), ensure_ascii=False).encode(errors="replace")
            sent.append(data)
            cell, kind = item["cell"], item["kind"]
            if kind == "live":
                self.live[cell] = data
                continue
            if kind == "end":
                self.live.pop(cell, None)
            text = item.get("text", "") if kind == "text" and item.get("stream") != "note" else ""
            lines = text.count("\n") + (not text.endswith("\n") and text != "")
            self._entries.append(_Entry(cell, kind, lines, len(item.get("ranks", ())), data))
            self._size += len(data)
        while self._size > self.limit and len(self._entries) > 1:
            self._drop(self._entries.popleft())
        return sent

    def everything(self) -> list[bytes]:
        """Return all stored items, in order.

        For a cell that lost items, a ``dropped`` item says how many items and lines were lost.
        """
        kept: list[bytes] = []
        for cell in dict.fromkeys([*self._heads, *self._dropped]):
            if cell in self._heads:
                kept.append(self._heads[cell])
            if cell in self._dropped:
                items, lines, said = self._dropped[cell]
                lost = {"cell": cell, "kind": "dropped", "items": items, "lines": lines, "said": said}
                kept.append(json.dumps(lost).encode())
        kept += [entry.data for entry in self._entries]
        return kept + list(self.live.values())

    def _drop(self, entry: _Entry) -> None:
        self._size -= len(entry.data)
        if entry.kind == "begin":
            self._heads[entry.cell] = entry.data
            return
        lost = self._dropped.setdefault(entry.cell, [0, 0, 0])
        lost[0] += 1
        lost[1] += entry.lines
        lost[2] += entry.lines * entry.ranks
        if entry.kind == "end":  # no item of the cell is left
            self._dropped.pop(entry.cell, None)
            self._heads.pop(entry.cell, None)
        while len(self._heads) > HEADS_KEPT:
            self._heads.pop(next(iter(self._heads)))
