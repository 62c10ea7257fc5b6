"""The items of one rank that wait to be folded with the items of other ranks."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterable, Sequence
from itertools import count, islice
from typing import Any, Literal, TypeAlias

from .finished_bars import RankBar, progress_of

BlockKind = Literal["text", "bar", "display", "update", "result", "clear", "error", "cut"]

LOOK = 64
"""Minimum number of items after a rank's head that are searched to align ranks; up to twice as many may be searched."""


class Rich:
    """An item that is not text, comparable across ranks: ignores display ids, since every rank makes its own.

    Bars are equal if they show the same progress, at whatever speed.
    """

    __slots__ = ("content", "key", "kind")

    def __init__(self, kind: BlockKind, content: Any) -> None:
        self.kind, self.content = kind, content
        same: object = content
        if kind in ("display", "update", "result"):
            same = [content.get("data"), content.get("metadata"), content.get("display_id") is not None]
        elif kind == "bar":
            same = progress_of(content.text)
        self.key = kind + json.dumps(same, sort_keys=True, default=repr)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Rich) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)


# Nearly all items are lines on stdout, so these are bare strings: they hash once, compare in C and need no wrapper.
Item: TypeAlias = "str | tuple[str, str] | Rich"
"""stdout text, (stream, text), or anything else."""


class RankQueue:
    """The items of one rank that wait to be folded."""

    __slots__ = (
        "_arrivals",
        "_fed",
        "_seen_from",
        "_seen_to",
        "fed_at",
        "finished",
        "items",
        "only",
        "rank",
        "seen",
        "taken",
    )

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.only = (rank,)
        self.items: deque[Item] = deque()
        self.finished = False
        self.taken = 0
        """Number of items taken so far. Positions are counted from the first item of all, so they never change."""
        self._fed = 0
        self.fed_at = float("-inf")
        """When items arrived last; minus infinity if none have."""
        self._arrivals: deque[tuple[int, float]] = deque()
        self.seen: dict[Item, int] = {}
        """The items in sight, each with its last position. May still contain items that were taken."""
        self._seen_from = self._seen_to = -2 * LOOK

    def feed(self, raw: Iterable[Sequence[Any]], now: float) -> None:
        before = len(self.items)
        for kind, *rest in raw:
            match kind, rest:
                case "text", ["stdout", prints]:
                    self.items.extend(prints)
                case "text", [stream, prints]:
                    self.items.extend([(stream, text) for text in prints])
                case "bar", [stream, text, seconds]:
                    self.items.append(Rich("bar", RankBar(text, seconds, stream)))
                case _:
                    self.items.append(Rich(kind, rest[0]))
        if len(self.items) > before:
            self._fed += len(self.items) - before
            self._arrivals.append((self._fed, now))
            self.fed_at = now

    def take(self, n: int) -> list[Item]:
        self.taken += n
        while self._arrivals and self._arrivals[0][0] <= self.taken:
            self._arrivals.popleft()
        if n < len(self.items):
            pop = self.items.popleft
            return [pop() for _ in range(n)]
        taken = list(self.items)
        self.items.clear()
        return taken

    def head_time(self) -> float:
        """When the head arrived; only for a queue with items."""
        return self._arrivals[0][1]

    def arrived_by(self, then: float) -> int:
        """Number of waiting items that arrived at ``then`` or before."""
        ends = [end for end, at in self._arrivals if at <= then]
        return ends[-1] - self.taken if ends else 0

    def look(self) -> bool:
        """Update ``seen``; returns whether it changed."""
        grown = self._seen_to < min(self._fed, self._seen_from + 2 * LOOK)
        if not grown and self.taken - self._seen_from < LOOK:
            return False
        self.seen = dict(zip(islice(self.items, 2 * LOOK), count(self.taken)))
        self._seen_from = self.taken
        self._seen_to = self.taken + min(len(self.items), 2 * LOOK)
        return True

    def sight_left(self) -> int:
        """Number of items that may be taken before ``look`` updates ``seen`` again."""
        return self._seen_from + LOOK - self.taken
