"""Arrays that are left pending when a world is left: evaluating one raises, and does nothing else.

MLX closes the sockets of a ring when it forgets it, but such an array still writes to their numbers, which are those of
other sockets by then, the next ring's first of all. Where it holds the last reference to its group, the process crashes
(mlx 0.32.4). So the group is kept and the numbers are taken as long as there are such arrays.
"""

from __future__ import annotations

import fcntl
import gc
import os
import weakref
from collections.abc import Iterable, Iterator
from itertools import compress, filterfalse
from typing import Any

from allranks.rank.collectives.pending import is_pending


class LeftBehind:
    """What arrays may wait for that belongs to worlds before this one."""

    def __init__(self) -> None:
        self._nothing = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
        """Neither sends nor receives."""
        self._groups: list[tuple[Any, list[int], list[weakref.ref[Any]]]] = []

    def keep(self, group: Any, closed: Iterable[int], arrays: list[weakref.ref[Any]]) -> None:
        """Keep `group` for these arrays, and the numbers of its `closed` descriptors; let go of what none waits for."""
        groups, self._groups = self._groups, []
        for each in groups:
            if any(map(_waits, each[2])):
                self._groups.append(each)
            else:
                self._give_back(each[1])
        if arrays:
            self._groups.append((group, self._take(closed), arrays))

    def _take(self, numbers: Iterable[int]) -> list[int]:
        taken = []
        for number in numbers:
            got = fcntl.fcntl(self._nothing, fcntl.F_DUPFD_CLOEXEC, number)  # that one, if nobody has it
            if got == number:
                taken.append(got)
            else:
                os.close(got)
        return taken

    def _give_back(self, numbers: Iterable[int]) -> None:
        for number in numbers:
            os.close(number)


def pending_arrays(user_ns: dict[str, Any]) -> list[weakref.ref[Any]]:
    """The MLX arrays that are yet to be computed, as far as something holds them that the collector knows.

    There may be millions of references: no Python code runs for each.
    """
    import mlx.core as mx

    held = gc.get_referents(user_ns, *gc.get_objects())
    untracked = filterfalse(gc.is_tracked, _of_types(held, dict, tuple))
    held += gc.get_referents(*untracked)
    arrays = {id(each): each for each in _of_types(held, mx.array)}
    return [weakref.ref(array) for array in arrays.values() if is_pending(array)]


def _of_types(objects: list[Any], *types: type) -> Iterator[Any]:
    return compress(objects, map(frozenset(types).__contains__, map(type, objects)))


def _waits(array: weakref.ref[Any]) -> bool:
    return (found := array()) is not None and is_pending(found)
