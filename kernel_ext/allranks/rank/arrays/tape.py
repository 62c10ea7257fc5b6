"""In which order MLX will do the operations of an evaluation, known before it does any.

``eval_impl`` (``mlx/transforms.cpp``) counts how often each operation's results are used, goes from what is to be
evaluated to what that is computed from, level by level, where each operation is put on a tape when the last of its uses
has been met, and then does the operations on the tape from its end. Where a level is wider than ``MLX_BFS_MAX_WIDTH``
(20), it goes down at the operation where it is, and comes back later. All collectives are on one stream, so that they
are done in that order (mlx 0.32.4; a test compares it with what MLX does).
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence

from .pending import OPERATION, PRIMITIVE

WIDEST = 20
"""MLX's own, where the environment has no other."""


class Graph:
    """What MLX draws: operations, by the numbers the drawing has for them, and what each works on."""

    def __init__(self, drawing: str) -> None:
        self._inputs: dict[int, list[str]] = {}
        self._source: dict[str, int] = {}
        self.collectives: set[int] = set()
        operation = 0
        for line in drawing.splitlines():
            left, arrow, right = line.replace('"', "").partition(" -> ")
            if not arrow:
                if match := OPERATION.match(line):
                    operation = int(match[1])
                    self._inputs[operation] = []
                    if PRIMITIVE.search(line) is not None:
                        self.collectives.add(operation)
            elif right == str(operation):
                self._inputs[operation].append(left)
            else:
                self._source[right] = operation

    def order(self, roots: Sequence[int]) -> list[int]:
        """The collectives, in the order in which an evaluation of what the operations `roots` compute does them."""
        needs = {operation: self._needs(operation) for operation in self._inputs}
        uses = Counter(roots)
        for needed in needs.values():
            uses.update(needed)
        widest = _widest()
        needs[0] = list(roots)
        tape, at, later = [0], 0, list[tuple[int, int]]()
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
        return [operation for operation in reversed(tape) if operation in self.collectives]

    def _needs(self, operation: int) -> list[int]:
        """The operations whose results this one works on; what is computed already comes from none."""
        return [self._source[each] for each in self._inputs[operation] if each in self._source]


def _widest() -> int:
    try:
        return int(os.environ["MLX_BFS_MAX_WIDTH"])
    except (KeyError, ValueError):
        return WIDEST
