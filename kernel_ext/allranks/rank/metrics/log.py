"""``log(loss=..., step=...)``: sends named values from the code on a rank to the notebook.

A call costs a few microseconds and never waits for other ranks. Calls are numbered and kept for a notebook that
connects later; it drops, by number, the calls that it already has.
"""

from __future__ import annotations

import itertools
import math
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from allranks.lifeline.rank_end import RankLifeline
from allranks.messages.events import LogCall, LogCalls
from allranks.rank.arrays import array_status
from allranks.rank.arrays.pending_arrays import is_pending, waiting, waits_for_collective
from allranks.rank.collectives.ledger import Ledger
from allranks.rank.functions import transforms
from allranks.rank.main_thread.running_cell import RunningCell

if TYPE_CHECKING:
    from mlx.core import array as Array
    from mlx.core.distributed import Group

KEEP = 20_000
"""Maximum number of calls kept, a few megabytes."""
AT_ONCE = 2_000
"""Maximum number of calls in one message."""
EVERY = 0.1
"""Seconds between two messages while a cell runs, so that up to 20,000 calls a second reach the notebook."""
MOST_HELD = 16
"""Maximum number of held values that still wait for a collective."""

LogFunction = Callable[..., None]


class Log:
    """Collects the calls of `function`, which every rank has as ``log``."""

    def __init__(
        self,
        cell: RunningCell,
        ledger: Ledger,
        group: Callable[[], Group | None],
        broken: Callable[[], bool],
        end_step: Callable[[], None],
        lifeline: RankLifeline,
    ) -> None:
        """`group` returns the world's group, and `broken` whether collectives of the world were aborted.

        `end_step` is called at the end of each call.
        """
        self._end_step = end_step
        self._cell, self._ledger, self._group, self._broken, self._lifeline = cell, ledger, group, broken, lifeline
        self._lock = threading.Lock()
        self._calls: deque[LogCall] = deque(maxlen=KEEP)
        self._count = self._told = 0
        """Number of calls so far, and number of calls that were sent to a notebook."""
        self._told_at = 0.0
        self._next_step = 0.0
        self._of: float | None = None
        """Total number of steps, as passed to the last call."""
        self._held: list[tuple[float, float, str, Array]] = []
        self._failed: dict[str, str] = {}
        """The first error of each name whose value MLX could not compute in this cell."""
        self._left = Counter[str]()
        """By name, how many values still waited for a collective when they were given up."""
        self._aborted = Counter[str]()
        """By name, how many values were held when a collective was aborted."""
        self.function = self._make()

    def _make(self) -> LogFunction:
        def log(*nameless: object, step: float | None = None, of: float | None = None, **values: object) -> None:
            """Send values to the notebook: ``log(loss=0.31, accuracy=0.9, step=100, of=1000)``.

            Values are numbers, or arrays of one element, which are evaluated as by ``.item()``. An array that waits
            for a collective is not evaluated, since all ranks must enter the collective and ``log`` may be called on
            one rank only. Its value is logged once the code has evaluated it; a value still pending at the end of the
            cell is lost, and its name is printed. `step` defaults to the previous step of the cell plus 1, starting
            at 0. `of` is the total number of steps, from which the chart estimates the remaining time.

            `%distributed watch log` draws the values; `cluster.logged()` returns them as a DataFrame. Raises TypeError
            for a value that is not a number, and RuntimeError inside a function traced by mx.compile, mx.grad or
            mx.vmap.
            """
            __tracebackhide__ = True
            if nameless:
                raise TypeError("log takes named values: log(loss=0.31, step=100)")
            self._take(step, of, values)

        return log

    def _take(self, step: float | None, of: float | None, values: Mapping[str, Any]) -> None:
        __tracebackhide__ = True
        now = time.time()
        step = self._next_step if step is None else self._finite("step", step)
        self._of = None if of is None else self._finite("of", of)
        self._next_step = step + 1
        if self._held:
            self._settle()
        plain: dict[str, float] = {}
        for name, value in values.items():
            if type(value) is float and math.isfinite(value):
                plain[name] = value
            elif self._waits(name, value):
                self._hold(step, now, name, value)
            else:
                plain[name] = _number(name, value)
        if plain:
            self._put(step, now, plain)
        self._end_step()

    def _finite(self, name: str, given: object) -> float:
        __tracebackhide__ = True
        if self._waits(name, given):
            raise TypeError(f"log({name}=...) needs a collective, which all ranks must enter: evaluate it first.")
        number = _number(name, given)
        if not math.isfinite(number):
            raise TypeError(f"log({name}=...) takes a finite number, not {number}.")
        return number

    def _waits(self, name: str, value: Any) -> bool:
        """Whether the value is an array that waits for a collective.

        Raises RuntimeError inside a traced function, and TypeError for a complex array that waits.
        """
        __tracebackhide__ = True
        if not hasattr(value, "shape") or not type(value).__module__.startswith("mlx"):
            return False
        if transforms.inside():
            raise RuntimeError(
                f"log({name}=...) does not work inside a function traced by mx.compile, mx.grad or mx.vmap: return the "
                "array from it and log it outside."
            )
        world = self._group()
        alone = world is None or world.size() == 1 or self._ledger.seq == 0
        waits = value.size == 1 and not alone and waits_for_collective(value)
        if waits and str(value.dtype).startswith("mlx.core.complex"):
            raise TypeError(
                f"log({name}=...) takes a real number, not a complex one: log its absolute value, for example."
            )
        return waits

    def _hold(self, step: float, at: float, name: str, array: Array) -> None:
        self._held.append((step, at, name, array))
        if len(self._held) > MOST_HELD:
            self._left[self._held.pop(0)[2]] += 1

    def _settle(self, *, over: bool = False) -> None:
        """Log held values that the code has evaluated; if the cell is `over`, all that do not wait for a collective.

        Without `array_status.reader`, the latter are always logged. In a broken world, all held values are dropped.
        """
        held, self._held = self._held, []
        if self._broken():  # values that were evaluated after the abort are invalid
            self._aborted.update(name for _, _, name, _ in held)
            return
        arrays = [array for *_, array in held]
        # `waiting` may draw the graph, which takes too long for each call.
        waits = waiting(arrays) if over or array_status.reader is None else set(map(id, filter(is_pending, arrays)))
        for entry in held:
            step, at, name, array = entry
            if id(array) in waits:
                self._held.append(entry)
                continue
            try:
                self._put(step, at, {name: _number(name, array)})
            except RuntimeError as error:  # MLX could not compute it
                self._failed.setdefault(name, str(error))

    def _put(self, step: float, at: float, values: dict[str, float]) -> None:
        with self._lock:
            self._calls.append(LogCall(self._cell.number, step, at, values, self._of))
            self._count += 1
            first = self._count == self._told + 1
        if first:  # for later calls, `tick` has returned when the next message is due
            self._lifeline.wake()

    def end_cell(self, *, failed: bool) -> str:
        """Finish a cell, in the main thread; return a message about values that were not logged, else empty.

        If the cell has `failed`, only values of aborted collectives are named: the code did not come to the others.
        """
        self._next_step, self._of = 0.0, None  # all ranks start the next cell at step 0
        self._settle(over=True)
        self._left.update(name for _, _, name, _ in self._held)
        self._held.clear()
        left, self._left = self._left, Counter()
        aborted, self._aborted = self._aborted, Counter()
        wrong, self._failed = self._failed, {}
        told = f"not logged: {_named(aborted)}. A collective was aborted before it was evaluated.\n" if aborted else ""
        if failed:
            return told
        told += "".join(f"not logged: {name}. MLX could not compute it: {why}\n" for name, why in wrong.items())
        if not left:
            return told
        return (
            f"{told}not logged: {_named(left)}. It needs a collective, which all ranks must enter: evaluate it on all "
            "ranks (mx.eval or .item()) before the cell ends.\n"
        )

    def forget_told(self) -> None:
        """Let `tick` send all kept calls again, since a notebook has connected."""
        self._told = 0

    def tick(self, now: float) -> float:
        """Send calls that are due, in the agent's thread; return the seconds until the next message, or infinity."""
        if self._told == self._count or not self._lifeline.connected:
            return float("inf")
        due = self._told_at + EVERY
        if now < due:
            return max(0.001, due - now)
        self._send()
        self._told_at = now
        return EVERY if self._told < self._count else float("inf")

    def send_rest(self) -> None:
        """Send all remaining calls, in the agent's thread, before the end of the cell is reported."""
        while self._lifeline.connected and self._send():
            pass

    def _send(self) -> bool:
        with self._lock:
            oldest = self._count - len(self._calls)
            first = max(self._told, oldest)
            calls = list(itertools.islice(self._calls, first - oldest, first - oldest + AT_ONCE))
            self._told = first + len(calls)
        if calls:
            self._lifeline.send(LogCalls(first, tuple(calls)))
        return bool(calls)


def _named(counts: Mapping[str, int]) -> str:
    """``loss, total (3 times)``."""
    return ", ".join(name if count == 1 else f"{name} ({count} times)" for name, count in counts.items())


def _number(name: str, value: Any) -> float:
    """The value as a float. Raises TypeError with the type or shape of a value that is not a number."""
    __tracebackhide__ = True
    shape = getattr(value, "shape", ())
    if math.prod(shape) != 1:
        raise TypeError(
            f"log({name}=...) takes a number, not an array of shape {tuple(shape)}: log its mean, for example."
        )
    try:
        if isinstance(value, (str, bytes)):
            raise TypeError
        return float(value.item() if hasattr(value, "item") else value)
    except (TypeError, ValueError):
        raise TypeError(f"log({name}=...) takes a number, not a {type(value).__name__}.") from None
