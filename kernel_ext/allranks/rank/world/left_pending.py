"""Arrays that are still pending when a world is left: their collectives can no longer run.

The arrays are computed at once, from the data that the placeholders deliver: an array that fails later, while
collectives of the next world run, blocks the rank for good (mlx 0.32.4). An array that cannot be computed must raise
later, and do no harm. But MLX closes a ring's sockets when it forgets the ring, and such an array still writes to their
descriptor numbers, which belong to other sockets by then, most likely to the next ring's. And if the array holds the
last reference to its group, the process crashes. So `LeftBehind` keeps the group and occupies the numbers as long as
there are such arrays.
"""

from __future__ import annotations

import fcntl
import gc
import os
import weakref
from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import compress, filterfalse
from typing import TYPE_CHECKING, Any, TypeAlias

from allranks.messages.value_types import Namespace
from allranks.rank.arrays.pending_arrays import indexes, is_pending, waiting
from allranks.rank.collectives import poison
from allranks.rank.functions.replaced import original

if TYPE_CHECKING:
    from mlx.core import array as Array

Reference: TypeAlias = "weakref.ref[Array]"


class LeftBehind:
    """The groups and descriptor numbers of earlier worlds, kept while arrays wait for them."""

    def __init__(self) -> None:
        self._nothing = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
        """A descriptor of ``/dev/null``, which neither sends nor receives."""
        self._groups: list[tuple[object, list[int], list[Reference]]] = []

    def find(self, user_ns: Namespace) -> list[Reference]:
        """Find the arrays that wait for a collective of the world that is about to be left."""
        known = {id(each()) for _, _, arrays in self._groups for each in arrays}
        pending = [array for array in _arrays(user_ns) if id(array) not in known and is_pending(array)]
        found = waiting(pending)
        return [weakref.ref(array) for array in pending if id(array) in found]

    def keep(self, group: object, closed: Iterable[int], arrays: list[Reference]) -> None:
        """Keep `group` and its `closed` descriptor numbers for these arrays; drop groups that no array waits for."""
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
            got = fcntl.fcntl(self._nothing, fcntl.F_DUPFD_CLOEXEC, number)  # the same number, if it is free
            if got == number:
                yield got
            else:
                os.close(got)


def asked(arrays: Iterable[Reference]) -> list[poison.Asked]:
    """Return operations and dtypes to pass to `poison.pattern`, so that these arrays can be computed.

    If an operation takes indices, int32 is among the dtypes: NaN as an index ends the process.
    """
    held = [array for each in arrays if (array := each()) is not None]
    dtypes = {str(array.dtype).removeprefix("mlx.core.") for array in held}
    return [("all_sum", dtype) for dtype in (dtypes | {"int32"} if indexes(held) else dtypes)]


def compute(arrays: Iterable[Reference]) -> None:
    """Evaluate these arrays with the placeholders' data, and ignore errors. Called in the main thread."""
    import mlx.core as mx

    evaluate = original(mx.eval)
    for each in arrays:
        with suppress(Exception):  # the array may belong to another of the user's threads
            evaluate(each())


def _arrays(user_ns: Namespace) -> Iterable[Array]:
    """The MLX arrays that objects known to the garbage collector hold.

    There may be millions of references, so no Python code runs for each.
    """
    import mlx.core as mx

    held = gc.get_referents(user_ns, *gc.get_objects())
    held += gc.get_referents(*filterfalse(gc.is_tracked, _of_types(held, dict, tuple)))
    return {id(each): each for each in _of_types(held, mx.array)}.values()


def _of_types(objects: list[Any], *types: type) -> Iterator[Any]:
    return compress(objects, map(frozenset(types).__contains__, map(type, objects)))


def _waits(array: Reference) -> bool:
    return (found := array()) is not None and is_pending(found)
