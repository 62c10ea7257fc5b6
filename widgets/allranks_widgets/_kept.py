"""The output that a dashboard keeps, so that a page that comes later can be sent all of it."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Sequence
from typing import Any, NamedTuple

KEPT_BYTES = 4_000_000
HEADS_KEPT = 50
"""Cells whose first item is kept when their output no longer is."""

Item = dict[str, Any]


class _Entry(NamedTuple):
    cell: int
    kind: str
    lines: int
    """Lines of text in it, of one of its ranks."""
    ranks: int
    data: bytes


class KeptOutput:
    """The newest items, as JSON, up to ``limit`` bytes. What had to go is counted, cell by cell."""

    def __init__(self, limit: int = KEPT_BYTES) -> None:
        self.limit = limit
        self.live: dict[int, bytes] = {}
        """The unfinished lines of each cell that has some."""
        self._entries: deque[_Entry] = deque()
        self._size = 0
        self._heads: dict[int, bytes] = {}
        self._dropped: dict[int, list[int]] = {}

    def add(self, items: Sequence[Item]) -> list[bytes]:
        """Keep ``items``; each as the JSON to send."""
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
            text = item.get("text", "") if kind == "text" else ""
            lines = text.count("\n") + (not text.endswith("\n") and text != "")
            self._entries.append(_Entry(cell, kind, lines, len(item.get("ranks", ())), data))
            self._size += len(data)
        while self._size > self.limit and len(self._entries) > 1:
            self._drop(self._entries.popleft())
        return sent

    def everything(self) -> list[bytes]:
        """All that is kept, in order. A cell that lost items begins with one that says how many lines those had."""
        kept: list[bytes] = []
        for cell, (items, lines, said) in self._dropped.items():
            if cell in self._heads:
                kept.append(self._heads[cell])
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
        if entry.kind == "end":  # nothing is left of that cell
            self._dropped.pop(entry.cell, None)
            self._heads.pop(entry.cell, None)
        while len(self._heads) > HEADS_KEPT:
            self._heads.pop(next(iter(self._heads)))
