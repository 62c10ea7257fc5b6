"""Arrays that are left pending when a world is left: their collectives cannot run any more.

They are computed there and then, of what the placeholders deliver: one that fails later, beside collectives of the next
world, blocks the rank for good (mlx 0.32.4). What cannot be computed raises later, and does no more. For MLX closes the
sockets of a ring when it forgets it, but such an array still writes to their numbers, which are those of other sockets
by then, the next ring's first of all; and where it holds the last reference to its group, the process crashes. So the
group is kept and the numbers are taken as long as there are such arrays.
"""

from __future__ import annotations

import fcntl
import gc
import os
import weakref
from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import compress, filterfalse
from typing import Any, TypeAlias

from allranks.rank.arrays.pending import indexes, is_pending, waiting
from allranks.rank.collectives import poison
from allranks.rank.functions.replaced import original

Array: TypeAlias = "weakref.ref[Any]"


class LeftBehind:
    """What arrays may wait for that belongs to worlds before this one."""

    def __init__(self) -> None:
        self._nothing = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
        """Neither sends nor receives."""
        self._groups: list[tuple[Any, list[int], list[Array]]] = []

    def find(self, user_ns: dict[str, Any]) -> list[Array]:
        """What waits for a collective of the world that is to be left."""
        known = {id(each()) for _, _, arrays in self._groups for each in arrays}
        pending = [array for array in _arrays(user_ns) if id(array) not in known and is_pending(array)]
        found = waiting(pending)
        return [weakref.ref(array) for array in pending if id(array) in found]

    def keep(self, group: Any, closed: Iterable[int], arrays: list[Array]) -> None:
        """Keep `group` for these arrays, and the numbers of its `closed` descriptors; let go of what none waits for."""
        groups, self._groups = self._groups, []
        for each in groups:
            if any(map(_waits, each[2])):
                self._groups.append(each)
            else:
                for number in each[1]:
                    os.close(number)
        if left := [each for each in arrays if _waits(each)]:
            self._groups.append((group, [*self._taken(closed)], left))

    def _taken(self, numbers: Iterable[int]) -> Iterator[int]:
        for number in numbers:
            got = fcntl.fcntl(self._nothing, fcntl.F_DUPFD_CLOEXEC, number)  # that one, if it is free
            if got == number:
                yield got
            else:
                os.close(got)


def asked(arrays: Iterable[Array]) -> list[poison.Asked]:
    """What the placeholders must be safe for while these are computed: an index that is NaN ends the process."""
    held = [array for each in arrays if (array := each()) is not None]
    dtypes = {str(array.dtype).removeprefix("mlx.core.") for array in held}
    return [("all_sum", dtype) for dtype in (dtypes | {"int32"} if indexes(held) else dtypes)]


def compute(arrays: Iterable[Array]) -> None:
    """Evaluate these, of what placeholders deliver. In the main thread."""
    import mlx.core as mx

    evaluate = original(mx.eval)
    for each in arrays:
        with suppress(Exception):  # of another thread of the user's
            evaluate(each())


def _arrays(user_ns: dict[str, Any]) -> Iterable[Any]:
    """The arrays of MLX, as far as something holds them that the collector knows.

    There may be millions of references: no Python code runs for each.
    """
    import mlx.core as mx

    held = gc.get_referents(user_ns, *gc.get_objects())
    held += gc.get_referents(*filterfalse(gc.is_tracked, _of_types(held, dict, tuple)))
    return {id(each): each for each in _of_types(held, mx.array)}.values()


def _of_types(objects: list[Any], *types: type) -> Iterator[Any]:
    return compress(objects, map(frozenset(types).__contains__, map(type, objects)))


def _waits(array: Array) -> bool:
    return (found := array()) is not None and is_pending(found)
