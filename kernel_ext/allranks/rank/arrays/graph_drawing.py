"""What ``mx.export_to_dot`` draws of arrays: the operations that are yet to compute them. Drawing evaluates nothing.

A drawing takes 6 ms for 600 operations, so one drawing is made for all arrays in question.
"""

from __future__ import annotations

import io
import os
import re
import threading
from collections import Counter
from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from mlx.core import array as Array

COLLECTIVE_LABEL = re.compile(r'label ="(\w+ )?(AllReduce|AllGather|ReduceScatter|Send|Recv)"')
"""MLX's labels of collectives, such as ``Sum AllReduce``, ``AllGather`` and ``Send`` (mlx 0.32.4)."""
INDEXING_LABEL = re.compile(r'label ="(Gather|Scatter|Dynamic)')
"""Labels of operations that end the process if an index is out of bounds."""
OPERATION_LINE = re.compile(r"\{ (\d+) \[label =")
STACK = 1 << 28
"""Bytes of stack for the drawing, which recurses: 100,000 operations in a row overflow the usual 8 MiB (mlx 0.32.4)."""
WIDEST = 20
"""MLX's default for ``MLX_BFS_MAX_WIDTH``."""

_one_at_a_time = threading.Lock()


class Operation(NamedTuple):
    """A pending operation; inputs and results are the names of arrays in the drawing."""

    address: int
    """MLX's name for the operation. All calls of a compiled function share the operations of the function's trace."""
    is_collective: bool
    inputs: list[str]
    results: list[str]


class Drawing:
    """A drawing of several arrays. Each is identified by its position in the list given to `drawing_of`."""

    def __init__(self, text: str) -> None:
        self._text = text

    @cached_property
    def _operations(self) -> list[Operation]:
        """The pending operations, each after the operations whose results it uses."""
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
        """Whether collectives are among the pending operations."""
        return COLLECTIVE_LABEL.search(self._text) is not None

    @property
    def has_indexing(self) -> bool:
        """Whether any pending operation takes indices."""
        return INDEXING_LABEL.search(self._text) is not None

    def computes(self, position: int) -> bool:
        """Whether the array at `position` is yet to be computed."""
        return self.address(position) is not None

    def address(self, position: int) -> int | None:
        """Address of the operation that is to compute the array at `position`; None if the drawing shows none."""
        return next((each.address for each in self._operations if _name(position) in each.results), None)

    def shows(self, position: int) -> bool:
        """Whether the drawing names the array at `position`. Several Python objects of one MLX array have one name."""
        return f'"{_name(position)}"' in self._text

    def dependent(self, count: int) -> list[int]:
        """The positions of the arrays that are to be computed from collectives; `count` is the number of all arrays."""
        found: set[str] = set()
        for each in self._operations:
            if each.is_collective or not found.isdisjoint(each.inputs):
                found.update(each.results)
        return [position for position in range(count) if _name(position) in found]

    def order(self, addresses: Sequence[int]) -> list[int]:
        """The addresses of the collectives, in the order in which MLX runs them if one call evaluates all arrays.

        `addresses` has the address of the operation that computes each array. Raises KeyError if the drawing does not
        show which operation computes one of the arrays.

        ``eval_impl`` (``mlx/transforms.cpp``) counts the uses of each operation's results. It walks the graph breadth
        first, from the arrays to their inputs, and puts each operation on a tape when it meets the last of its uses.
        Then it runs the tape from its end. Once ``MLX_BFS_MAX_WIDTH`` (20) operations of the tape are yet to be
        visited, it leaves further inputs of the current operation for later. All collectives are on one stream, so they
        run in that order (mlx 0.32.4; a test compares this with what MLX does).
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
        """Index of the operation that computes the array at `position`: by the array's name, else by `address`."""
        if (name := _name(position)) in source:
            return source[name]
        places = [place for place, each in enumerate(self._operations) if each.address == address]
        if len(places) != 1:
            raise KeyError(name)
        return places[0]


def drawing_of(arrays: Sequence[Array]) -> Drawing:
    """MLX's drawing of the graphs from which `arrays` are to be computed."""
    import mlx.core as mx

    text = io.StringIO()
    named = {_name(position): array for position, array in enumerate(arrays)}
    thread = threading.Thread(target=mx.export_to_dot, args=(text,), kwargs=named, name="allranks-drawing")
    with _one_at_a_time:  # the stack size is a setting of the whole process
        before = threading.stack_size(STACK)
        try:
            thread.start()
        finally:
            threading.stack_size(before)
    thread.join()
    return Drawing(text.getvalue())


def _name(position: int) -> str:
    return f"x{position}"  # MLX's own names are capital letters


def _widest() -> int:
    try:
        return int(os.environ["MLX_BFS_MAX_WIDTH"])
    except (KeyError, ValueError):
        return WIDEST
