"""What a cell did to names: it rebound them, reassigned given names, left arrays pending, or made arrays invalid."""

from __future__ import annotations

import linecache
import re
import sys
import time
import weakref
from collections.abc import Mapping
from typing import TYPE_CHECKING

from allranks.messages.events import CellError
from allranks.messages.value_types import Namespace
from allranks.rank.arrays.invalid_arrays import arrays_in, may_hold
from allranks.rank.arrays.pending_arrays import names_in, pending_names
from allranks.rank.collectives.ledger import Ledger
from allranks.rank.values.describe_variables import is_pending
from allranks.rank.world.given_names import GivenNames

if TYPE_CHECKING:
    from mlx.core import array as Array

PENDING_WITHIN = 0.02
"""Maximum processor time, in seconds, for finding the arrays that a cell left pending."""
LEFT_WITHIN = 0.5
"""Maximum processor time, in seconds, for checking which arrays a cell left pending when a collective was aborted."""
NO_REFERENCES = frozenset({int, float, bool, str, list, tuple, dict, type(None)})
"""Common types of values that allow no weak references."""
INSTEAD = {
    "mx": "`import mlx.core as mx` restores MLX.",
    "world": "`world = mx.distributed.init()` restores the group of all ranks.",
    "rank": "world.rank() is this rank's number.",
    "size": "world.size() is the number of ranks.",
}
"""How to get back the value of a given name that the user has reassigned."""


class CellNames:
    """Compares the user's names at the start of a cell with those at its end."""

    def __init__(self, user_ns: Namespace, given: GivenNames, ledger: Ledger) -> None:
        self._user_ns, self._given, self._ledger = user_ns, given, ledger
        self.pending: list[str] = []
        """Names of variables whose arrays the last cell left waiting for a collective."""
        self._before: dict[str, tuple[int, weakref.ref[object] | None]] = {}
        """By name, the ``id`` of the object as the cell began, and a weak reference to it (None if it allows none)."""
        self._arrays: dict[int, weakref.ref[Array]] = {}
        """Weak references, by ``id``, to the arrays in the user's variables (in containers too) when the cell began."""
        self._said: set[str] = set()
        self._own: set[str] = set()
        self._numbered: set[str] = set()
        """The names seen so far, without and with a number that IPython gives: there are two more for each cell."""

    def begin(self) -> None:
        """Bind ``log`` if the name is free, and note the user's names and arrays as a cell begins."""
        user_ns = self._user_ns
        user_ns.setdefault("log", self._given.log)
        new = user_ns.keys() - self._own - self._numbered
        # With each cell, IPython adds names (`_i7`, `_7`) that it never rebinds.
        self._numbered.update(filter(_is_numbered, new))
        self._own |= new - self._numbered
        own = {name: user_ns.get(name) for name in self._own & user_ns.keys()}
        self._before = {name: (id(value), _reference(value)) for name, value in own.items()}
        # Not only at the cell's first collective, though that would cost cells without one nothing: an array that the
        # cell made before it may depend on it later, since `total += ...` and `x[i] = ...` keep MLX's object (0.32.4).
        self._arrays = {}
        if "mlx.core" in sys.modules:
            inputs = user_ns.get("_ih")  # `In`: the text of all cells
            holders = [
                value for name, value in own.items() if name[:1] != "_" and value is not inputs and may_hold(value)
            ]
            self._arrays = {id(array): weakref.ref(array) for value in holders for array in arrays_in(value)}

    def was_bound(self, name: str) -> bool:
        """Whether `name` is bound to the same object as when the cell began.

        IPython's numbered names only have to be bound, since IPython never rebinds them.
        """
        if _is_numbered(name):
            return name in self._user_ns
        number, reference = self._before.get(name, (0, None))
        value = self._user_ns.get(name)
        # A new object may have the address of one that is gone.
        return number == id(value) and (reference is None or reference() is value)

    def taken(self) -> str:
        """Return a line for each given name that the user has reassigned; each name is reported only once."""
        taken = self._given.taken() - self._said
        self._said |= taken
        return "".join(f"{name} is now your own variable: {INSTEAD[name]}\n" for name in sorted(taken))

    def shadowed(self, error: CellError | None, file: str | None) -> str:
        """Return a hint if a call like `log(loss=1)` failed because `log` is not ours but, say, math's; else ""."""
        if error is None or error.ename != "TypeError" or not error.line:
            return ""
        own, line = self._user_ns.get("log"), linecache.getline(file or "", error.line)
        if own is None or own is self._given.log or not re.search(r"(?<![.\w])log\(.*\b\w+ *=(?!=)", line):
            return ""
        whose = f"the log of {own.__module__}" if getattr(own, "__module__", None) else "your own"
        return f"log is {whose} here, not that of allranks: `del log` brings that back in the next cell.\n"

    def left_pending(self, *, entered: bool, failed: bool) -> list[str]:
        """Names whose arrays wait for a collective; none if the cell `failed`.

        `entered` says whether the cell called collectives that may not have been evaluated.
        """
        user_ns = self._user_ns
        if failed:  # the cell's arrays belong to a world whose collectives may have been aborted
            self.pending = pending_names(user_ns, set(self.pending), PENDING_WITHIN) if self.pending else []
            return []
        self.pending = pending_names(user_ns, within=PENDING_WITHIN) if entered or self.pending else []
        return self.pending

    def spoiled(self, error: CellError | None, file: str | None) -> list[str]:
        """Names of variables that an aborted collective of this cell may have made invalid.

        `error` is what the cell raised, and `file` the file name of the cell's code.
        """
        user_ns, ledger = self._user_ns, self._ledger
        line = error.line if error is not None else None
        named = names_in(linecache.getline(file or "", line)) if line else set()
        # Variables from before this cell are valid, unless they were left pending.
        looked_at = [
            user_ns[name] for name in named & user_ns.keys() if name in self.pending or not self.was_bound(name)
        ]
        variables = self._given.user_variables()
        found = ledger.invalid.break_off(self._made_and_left(variables), ledger.order.last_entered(), *looked_at)
        return ledger.invalid.names(variables, found)

    def _made_and_left(self, variables: Mapping[str, object]) -> list[Array]:
        """Arrays that this cell made and left pending: the aborted collective may be among their inputs."""
        until, found = time.thread_time() + LEFT_WITHIN, []
        for value in variables.values():
            for array in arrays_in(value):
                before = self._arrays.get(id(array))
                new = before is None or before() is not array
                # An array that there is no time to check counts as pending: a needless warning is better than none.
                if new and (time.thread_time() > until or is_pending(array)):
                    found.append(array)
        return found


def _is_numbered(name: str) -> bool:
    """Whether IPython gives this name to the code (``_i7``) or to the value (``_7``) of a cell."""
    return name[:1] == "_" and name[1:].removeprefix("i").isdecimal()


def _reference(value: object) -> weakref.ref[object] | None:
    if type(value) in NO_REFERENCES:  # an exception takes longer
        return None
    try:
        return weakref.ref(value)
    except TypeError:
        return None
