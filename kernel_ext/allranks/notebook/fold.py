"""Folds the output of many ranks into blocks: equal output of several ranks appears once, with their ranks.

Pure: no input or output, no clock. Callers pass the time as ``now`` (seconds of any one monotonic clock).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import compress, count, islice
from operator import ne
from typing import Any, NamedTuple

from .rank_queue import BlockKind, Item, RankQueue, Rich

GRACE = 0.3
"""Seconds that the output of one rank waits for equal output of the others."""
PATIENCE = 2.0
"""Seconds after a rank's last output for which the output of other ranks waits for it.

The rank probably runs the same code, only slower.
"""


APART_FROM = 8
"""If at least this many consecutive items differ on all ranks, the items of each rank are shown together."""


# A named tuple, since a frozen dataclass takes three times as long to construct: a third of the time for folding lines
# that all differ.
class Block(NamedTuple):
    """Output that is equal on all ``ranks``."""

    kind: BlockKind
    ranks: tuple[int, ...]
    content: Any
    """``text``: str. ``bar``: a `RankBar` by rank. ``clear``: the wait flag. ``error``, ``cut``: a dict. ``display``,
    ``update``, ``result``: a bundle (data, metadata, display_id); with an id, ``content["ids"]`` maps each rank to the
    id it used itself."""
    stream: str = "stdout"
    """For text: ``stdout``, ``stderr``, or ``note`` for a sentence of allranks that is not an error."""
    own: bool = False
    """Whether text that is not a ``note`` is written by allranks: a warning, a debugger's answer, part of a summary."""

    @property
    def is_printed(self) -> bool:
        """Whether the block is text that ranks printed, or stands for such text. A page limits the amount shown."""
        return self.kind in ("text", "cut") and self.stream != "note" and not self.own


class _Blocks:
    """Collects blocks and joins consecutive text of the same ranks and stream."""

    def __init__(self) -> None:
        self._done: list[Block] = []
        self._ranks: tuple[int, ...] = ()
        self._stream = ""
        self._texts: list[str] = []

    def add(self, ranks: tuple[int, ...], item: Item, own: Sequence[Item]) -> None:
        """Add an ``item`` that is equal on ``ranks``; ``own`` has each rank's copy, in which display ids may differ."""
        if isinstance(item, str):
            stream, text = "stdout", item
        elif isinstance(item, Rich):
            self.close().append(_rich_block(ranks, item, own))
            return
        else:
            stream, text = item
        self._texts_of(ranks, stream).append(text)

    def add_run(self, ranks: tuple[int, ...], own: Sequence[Sequence[Item]]) -> None:
        """Add consecutive items that are equal on ``ranks``; ``own`` has each rank's copies."""
        items = own[0]
        if set(map(type, items)) == {str}:
            self._texts_of(ranks, "stdout").extend(items)  # type: ignore[arg-type]
        else:
            for row in zip(*own, strict=True):
                self.add(ranks, row[0], row)

    def _texts_of(self, ranks: tuple[int, ...], stream: str) -> list[str]:
        """The texts of the block that text of ``ranks`` on ``stream`` joins."""
        if ranks != self._ranks or stream != self._stream:
            if self._texts:
                self.close()
            self._ranks, self._stream = ranks, stream
        return self._texts

    def close(self) -> list[Block]:
        texts = self._texts
        if texts:
            self._done.append(Block("text", self._ranks, "".join(texts), self._stream))
            texts.clear()
            self._ranks = ()
        return self._done


def _rich_block(ranks: tuple[int, ...], item: Rich, own: Sequence[Item]) -> Block:
    content = item.content
    if item.kind == "bar":
        bars = {rank: one.content for rank, one in zip(ranks, own, strict=True) if isinstance(one, Rich)}
        return Block("bar", ranks, bars, content.stream)
    if isinstance(content, dict) and content.get("display_id") is not None:
        ids = {rank: one.content["display_id"] for rank, one in zip(ranks, own, strict=True) if isinstance(one, Rich)}
        content = {**content, "ids": ids}
    return Block(item.kind, ranks, content)


class Fold:
    """Takes each rank's items in order and returns them as blocks: every item once, and each rank's items in order.

    Equal items at the heads of all queues make one block. Heads that differ are taken in rank order, one per rank,
    with equal heads together; of a long run of items that all differ, up to `LOOK` per rank are taken together. But if
    most ranks agree on an item that another rank has further on, the extra items of that rank come first, so that a
    header printed by one rank does not put the rest out of step. A rank with no items is waited for until the oldest
    waiting head is ``grace`` seconds old and ``patience`` seconds have passed since the rank's last output (or since
    the head arrived, if that was earlier).
    """

    def __init__(self, ranks: Sequence[int], grace: float | None = None, patience: float | None = None) -> None:
        self.grace = GRACE if grace is None else grace
        self.patience = max(self.grace, PATIENCE if patience is None else patience)
        self._queues = {rank: RankQueue(rank) for rank in sorted(ranks)}
        self._before: Fold | None = None
        """What ranks printed before the cell; None if nothing came."""
        self._heard = set[int]()
        """Ranks of which items came, or their end: nothing from before the cell follows."""
        self._compared: list[RankQueue] = []
        self._common: set[Item] = set()
        """Items in sight of at least two of the queues that were compared last."""

    def feed(self, rank: int, items: Iterable[Sequence[object]], now: float) -> None:
        """Add items of ``rank``, as `messages.events.unpacked` makes them, after its earlier items."""
        self._hear(rank)
        self._queues[rank].feed(items, now)

    def feed_before(self, rank: int, items: Iterable[Sequence[object]], now: float) -> None:
        """Add what ``rank`` printed before the cell, ahead of its other items.

        These items are compared with such items of other ranks only, and come before all else.
        """
        if self._before is None:
            self._before = Fold([*self._queues], self.grace, self.patience)
            for other in self._heard:
                self._before.finish(other)
        self._before.feed(rank, items, now)
        self._hear(rank)

    def _hear(self, rank: int) -> None:
        self._heard.add(rank)
        if self._before is not None:
            self._before.finish(rank)

    def finish(self, rank: int) -> None:
        """Mark ``rank`` as finished: it sends no more items, so others do not wait for it."""
        self._hear(rank)
        self._queues[rank].finished = True

    @property
    def _waits(self) -> bool:
        return any(queue.items for queue in self._queues.values())

    def next_deadline(self) -> float | None:
        """When ``drain`` returns blocks even if no more items arrive; None while no items wait."""
        if self._before is not None and self._before._waits:
            return self._before.next_deadline()
        heads = [queue.head_time() for queue in self._queues.values() if queue.items]
        return self._due(min(heads), self._missing_since()) if heads else None

    def _missing_since(self) -> float:
        """The last time that an unfinished rank without waiting items sent one; minus infinity if none did."""
        missing = [queue.fed_at for queue in self._queues.values() if not queue.items and not queue.finished]
        return max(missing, default=float("-inf"))

    def _due(self, head: float, missing_since: float) -> float:
        """The time until which a head that arrived at ``head`` waits for other ranks."""
        return max(head + self.grace, min(head, missing_since) + self.patience)

    def drain(self, now: float, flush: bool = False) -> list[Block]:
        """Return the blocks that can be shown now; with ``flush``, without waiting for any rank."""
        before = self._before.drain(now, flush) if self._before is not None else []
        if self._before is not None and self._before._waits:
            return before
        out = _Blocks()
        while present := [queue for queue in self._queues.values() if queue.items]:
            rows = min(len(queue.items) for queue in present)
            missing = any(not queue.items and not queue.finished for queue in self._queues.values())
            if missing and not flush:
                # the same formula as in next_deadline, so that a drain at exactly that time finds its head due
                since = self._missing_since()
                overdue = (queue.head_time() for queue in present if self._due(queue.head_time(), since) <= now)
                due = max(overdue, default=None)
                if due is None:
                    break
                rows = min(rows, max(queue.arrived_by(due) for queue in present))
            self._advance(present, rows, out)
        return before + out.close()

    def _advance(self, present: list[RankQueue], rows: int, out: _Blocks) -> None:
        """Take at least one and at most ``rows`` items off some of the queues, none of which is empty."""
        if same := _equal_rows(present, rows):
            out.add_run(tuple([queue.rank for queue in present]), [queue.take(same) for queue in present])
        elif step := self._rows_in_step(present, rows):
            _emit_rows(present, [queue.take(step) for queue in present], bool(self._common), out)
        else:
            going = _extra(present) or present
            _emit_row(going, [queue.take(1)[0] for queue in going], out)

    def _rows_in_step(self, queues: list[RankQueue], rows: int) -> int:
        """How many of the next ``rows`` items need no aligning, since no other rank has any of them further on."""
        if [queue for queue in queues if queue.look()] or queues != self._compared:
            self._compared = queues
            self._common = _in_common([queue.seen for queue in queues])
        common, size, step = self._common, len(queues), 0
        rows = min(rows, *[queue.sight_left() for queue in queues])
        if not common:
            return rows
        heads = zip(*[queue.items for queue in queues], strict=False)
        for row in islice(heads, rows):
            if row.count(row[0]) != size and not common.isdisjoint(row) and _further_on(queues, row, step, common):
                break
            step += 1
        return step


def _equal_rows(queues: list[RankQueue], rows: int) -> int:
    """How many of the next ``rows`` items are the same on all queues.

    Items are compared as lists, in C, and one by one only where the lists differ.
    """
    same, size = 0, 1
    waiting = [iter(queue.items) for queue in queues]
    while same < rows:
        first, *others = [list(islice(items, min(size, rows - same))) for items in waiting]
        if any(map(first.__ne__, others)):
            return same + min(next(compress(count(), map(ne, first, other)), len(first)) for other in others)
        same += len(first)
        size *= 4
    return same


def _in_common(seen: Sequence[dict[Item, int]]) -> set[Item]:
    """The items that are in at least two of the dicts."""
    common, once = set[Item](), set[Item]()
    if len(once.union(*seen)) < sum(map(len, seen)):
        for each in seen:
            common |= once & each.keys()
            once |= each.keys()
    return common


def _further_on(queues: list[RankQueue], row: Sequence[Item], step: int, common: set[Item]) -> bool:
    """Whether a queue has, after its own item in ``row`` (at ``step``), an item that another queue has in ``row``."""
    for item in common.intersection(row):
        for queue, own in zip(queues, row, strict=True):
            if item != own and queue.seen.get(item, -1) > queue.taken + step:
                return True
    return False


def _emit_rows(queues: Sequence[RankQueue], items: Sequence[Sequence[Item]], have_common: bool, out: _Blocks) -> None:
    """Emit an equal number of items per queue, row by row; a long run that differs on all ranks comes rank by rank.

    ``have_common``: whether any item may be in two of the queues.
    """
    if not have_common and len(items[0]) >= APART_FROM:
        for queue, own in zip(queues, items, strict=True):
            out.add_run(queue.only, [own])
        return
    rows = list(zip(*items, strict=True))
    size, begin = len(queues), 0
    while begin < len(rows):
        end = begin
        while end < len(rows) and len(set(rows[end])) == size:
            end += 1
        if end - begin < APART_FROM:
            end = max(end, begin + 1)
            for row in rows[begin:end]:
                _emit_row(queues, row, out)
        else:
            for queue, own in zip(queues, items, strict=True):
                out.add_run(queue.only, [own[begin:end]])
        begin = end


def _emit_row(queues: Sequence[RankQueue], row: Sequence[Item], out: _Blocks) -> None:
    """Emit one item of each of ``queues``, in rank order with equal items together."""
    if len(set(row)) == len(row):
        for queue, item in zip(queues, row, strict=True):
            out.add(queue.only, item, (item,))
        return
    groups: dict[Item, list[int]] = {}
    for queue, item in zip(queues, row, strict=True):
        groups.setdefault(item, []).append(queue.rank)
    for item, group in groups.items():
        out.add(tuple(group), item, [one for one in row if one == item] if isinstance(item, Rich) else ())


def _extra(queues: list[RankQueue]) -> list[RankQueue]:
    """The queues with extra items at their heads, which go first; empty if taking one of each queue is as good."""
    best: tuple[int, int, list[RankQueue]] | None = None
    heads = Counter(queue.items[0] for queue in queues)
    for head, have in heads.items():
        behind = [queue for queue in queues if queue.seen.get(head, -1) > queue.taken and queue.items[0] != head]
        support = have + len(behind)
        if behind and 2 * support >= len(queues):
            choice = (-support, max(queue.items.index(head) for queue in behind), behind)
            best = choice if best is None or choice[:2] < best[:2] else best
    if best is None or _meet_in_step(queues, before=best[1], size=-best[0]):
        return []
    return best[2]


def _meet_in_step(queues: list[RankQueue], before: int, size: int) -> bool:
    """Whether ``size`` queues reach an equal item if fewer than ``before`` items are taken of each queue.

    Then an equal item further on is a coincidence: two ranks may print the same loss fifty steps apart.
    """
    rows = zip(*(islice(queue.items, 1, before) for queue in queues), strict=False)
    return any(max(Counter(row).values()) >= size for row in rows)
