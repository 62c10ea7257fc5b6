"""What ``mx.export_to_dot`` draws of arrays: the operations they are yet to be computed from. It evaluates none.

A drawing takes 6 ms for 600 operations, so one is made for all arrays that are asked about.
"""

from __future__ import annotations

import io
import os
import re
import threading
from collections import Counter
from collections.abc import Sequence
from functools import cached_property
from typing import Any, NamedTuple

COLLECTIVE_LABEL = re.compile(r'label ="(\w+ )?(AllReduce|AllGather|ReduceScatter|Send|Recv)"')
"""As MLX labels them: ``Sum AllReduce``, ``AllGather``, ``Sum ReduceScatter`` (mlx 0.32.4)."""
INDEXING_LABEL = re.compile(r'label ="(Gather|Scatter|Dynamic)')
"""Operations that end the process where an index is out of bounds."""
OPERATION_LINE = re.compile(r"\{ (\d+) \[label =")
STACK = 1 << 28
"""Bytes of stack for the drawing, which recurses: 100,000 operations in a row overflow the usual 8 MiB (mlx 0.32.4)."""
WIDEST = 20
"""MLX's own, where the environment has no other."""

_one_at_a_time = threading.Lock()


class Operation(NamedTuple):
    """One operation that is to be done; arrays are given by the names that the drawing has for them."""

    address: int
    """MLX's number for it. All calls of a compiled function share the operations of its trace, and their addresses."""
    is_collective: bool
    inputs: list[str]
    results: list[str]


class Drawing:
    """A drawing of several arrays, which are known by their positions."""

    def __init__(self, text: str) -> None:
        self._text = text

    @cached_property
    def _operations(self) -> list[Operation]:
        """Each comes after those whose results it works on."""
        operations: list[Operation] = []
        number = ""
        for line in self._text.splitlines():
            left, arrow, right = line.replace('"', "").partition(" -> ")
            if not arrow:
                if match := OPERATION_LINE.match(line):
                    number = match[1]
                    operations.append(Operation(int(number), COLLECTIVE_LABEL.search(line) is not None, [], []))
            elif right == number:
                operations[-1].inputs.append(left)
            else:
                operations[-1].results.append(right)
        return operations

    @property
    def has_collectives(self) -> bool:
        """Whether collectives are among the operations."""
        return COLLECTIVE_LABEL.search(self._text) is not None

    @property
    def has_indexing(self) -> bool:
        """Whether any operation takes indices."""
        return INDEXING_LABEL.search(self._text) is not None

    def computes(self, position: int) -> bool:
        """Whether this array is yet to be computed."""
        return self.address(position) is not None

    def address(self, position: int) -> int | None:
        """MLX's number for the operation that is to compute this array; None where it is computed."""
        return next((each.address for each in self._operations if _name(position) in each.results), None)

    def shows(self, position: int) -> bool:
        """Whether the drawing shows this array under its own name: of several Python objects for one array, one has."""
        return f'"{_name(position)}"' in self._text

    def dependent(self, count: int) -> list[int]:
        """Which of the `count` arrays are computed from collectives."""
        found: set[str] = set()
        for each in self._operations:
            if each.is_collective or not found.isdisjoint(each.inputs):
                found.update(each.results)
        return [position for position in range(count) if _name(position) in found]

    def order(self, addresses: Sequence[int]) -> list[int]:
        """The addresses of the collectives, in the order in which MLX does them if it evaluates all arrays at once.

        `addresses` are those of the operations that compute the arrays. Raises KeyError where the drawing does not say
        which operation computes one of them.

        ``eval_impl`` (``mlx/transforms.cpp``) counts how often each operation's results are used, goes from what is to
        be evaluated to what that is computed from, level by level, where each operation is put on a tape when the last
        of its uses has been met, and then does the operations on the tape from its end. Where a level is wider than
        ``MLX_BFS_MAX_WIDTH`` (20), it goes down at the operation where it is, and comes back later. All collectives are
        on one stream, so that they are done in that order (mlx 0.32.4; a test compares it with what MLX does).
        """
        operations = self._operations
        source = {name: place for place, each in enumerate(operations) for name in each.results}
        needs = [[source[name] for name in each.inputs if name in source] for each in operations]
        needs.append([self._computing(*each, source) for each in enumerate(addresses)])
        uses = Counter(place for needed in needs for place in needed)
        widest = _widest()
        tape, at, later = [len(operations)], 0, list[tuple[int, int]]()
        while at < len(tape) or later:
            if at < len(tape):
                operation, start = tape[at], 0
                at += 1
            else:
                operation, start = later.pop()
            needed = needs[operation]
            for place in range(start, len(needed)):
                if len(tape) - at >= widest:
                    later.append((operation, place))
                    break
                uses[needed[place]] -= 1
                if not uses[needed[place]]:
                    tape.append(needed[place])
        done = [operations[place] for place in reversed(tape[1:])]
        return [operation.address for operation in done if operation.is_collective]

    def _computing(self, position: int, address: int, source: dict[str, int]) -> int:
        """The place of the operation at `address` that computes the array at `position`."""
        if (name := _name(position)) in source:
            return source[name]
        places = [place for place, each in enumerate(self._operations) if each.address == address]
        if len(places) != 1:
            raise KeyError(name)
        return places[0]


def drawing_of(arrays: Sequence[Any]) -> Drawing:
    """MLX's drawing of the graphs that these are to be computed from."""
    import mlx.core as mx

    text = io.StringIO()
    named = {_name(position): array for position, array in enumerate(arrays)}
    thread = threading.Thread(target=mx.export_to_dot, args=(text,), kwargs=named, name="allranks-drawing")
    with _one_at_a_time:  # the size is one for the whole process
        before = threading.stack_size(STACK)
        try:
            thread.start()
        finally:
            threading.stack_size(before)
    thread.join()
    return Drawing(text.getvalue())


def _name(position: int) -> str:
    return f"x{position}"  # MLX's own are capitals


def _widest() -> int:
    try:
        return int(os.environ["MLX_BFS_MAX_WIDTH"])
    except (KeyError, ValueError):
        return WIDEST
