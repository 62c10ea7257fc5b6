"""``%distributed bench``: measures the collectives of a world, also in other wirings, for a `BenchResult`."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import psutil

from allranks.check_arguments import known_backend
from allranks.errors import AllranksError, CannotStart, CellInterrupted, NotLoaded, UsageError
from allranks.messages.bench_payload import ITEM, usable_bytes
from allranks.notebook.feed_dashboards import Nowhere
from allranks.units import size_text, typed_size
from allranks_backends.registry import BACKENDS, cannot_run, get_backend, listed

from .bench_result import BenchResult
from .bus_bandwidth import BenchRow, Choice

if TYPE_CHECKING:
    from allranks.head.world.change import WorldChange
    from allranks.head.world.ranks import Ranks
    from allranks.notebook.stop_button import Stop

    from .bus_bandwidth import Floats

OPS = ("all_sum", "all_max", "all_min", "all_gather", "sum_scatter", "send")
"""Operations that can be measured; ``send`` sends an array there and back, over each link separately."""
# Checks of the user's arguments.


def sweep(smallest: int, largest: int) -> list[int]:
    """Each power of two from `smallest` to `largest` bytes. Raises UsageError."""
    for option, size in (("--min", smallest), ("--max", largest)):
        if size < ITEM or size & (size - 1):
            near = max(1 << max(size, 1).bit_length() - 1, ITEM)
            raise UsageError(
                f"{option} {size}: sizes must be powers of two, {ITEM} bytes or more, such as {typed_size(near)}."
            )
    if smallest > largest:
        raise UsageError(f"--min {typed_size(smallest)} is more than --max {typed_size(largest)}: swap them.")
    return [1 << power for power in range(smallest.bit_length() - 1, largest.bit_length())]


def choices(now: Choice, compare: Sequence[str], connections: Sequence[int]) -> list[Choice]:
    """The wirings to measure, first the one in use. Raises UsageError."""
    for name in compare:
        known_backend(name)
    if wrong := [count for count in connections if count < 1]:
        raise UsageError(f"--connections {wrong[0]}: a ring link needs at least 1.")
    backends = compare or (now.backend,)
    able = [name for name, backend in BACKENDS.items() if backend.connections_per_link]
    if connections and not set(able) & set(backends):
        which = listed(able, "or")
        raise UsageError(f"--connections is for a {which}, but this is {now.backend}: add --compare {able[0]}.")
    wanted = [
        Choice(name, count)
        for name in backends
        for count in ((connections or (now.connections,)) if name in able else (now.connections,))
    ]
    return list(dict.fromkeys([now, *wanted]))


def known_ops(ops: Sequence[str], backends: Iterable[str]) -> None:
    """Refuse operations that cannot be measured, or that none of `backends` supports. Raises UsageError."""
    supported = {name: [op for op in OPS if op in get_backend(name).operations] for name in backends}
    listed = "; ".join(f"{name} can do {', '.join(can)}" for name, can in supported.items())
    if isinstance(ops, str):
        raise UsageError(f"ops={ops!r}: use a list, such as [{ops!r}].")
    if not ops:
        raise UsageError(f"--ops: choose one or more of {', '.join(OPS)}.")
    for op in ops:
        if op in ("recv", "recv_like"):
            raise UsageError(f"--ops {op}: --ops send measures both ends of each link.")
        if op not in OPS:
            close = get_close_matches(op, OPS, 1)
            guess = f"Did you mean {close[0]}? " if close else ""
            raise UsageError(f"--ops {op}: unknown operation. {guess}{listed}.")
        if not any(op in can for can in supported.values()):
            raise UsageError(f"--ops {op}: {', '.join(supported)} cannot do it; {listed}.")


def fits_in_memory(ops: Sequence[str], largest: int, size: int, here: int) -> None:
    """Refuse a sweep whose arrays, in the `here` ranks on this machine, exceed its memory. Raises UsageError."""
    arrays = 4 + (size if "all_gather" in ops else 0)  # sent, received and expected values, and a buffer
    free = psutil.virtual_memory().available
    if (needed := largest * arrays * here) <= free:
        return
    possible = max(1 << int(free // (arrays * here)).bit_length() - 1, ITEM)
    raise UsageError(
        f"--max {typed_size(largest)}: the ranks here would need about {size_text(needed)} of memory, but only "
        f"{size_text(free)} are free. Try --max {typed_size(possible)}."
    )


# Measuring.

ENDS_WITHIN = 3.0
"""Seconds that a stopped measurement gets to end before the wiring is changed back."""
CODE = '__import__("allranks.rank.metrics.time_operation", fromlist=["in_cell"]).in_cell({arguments})'
"""The code of a cell that runs one measurement. It binds no name in the user's namespace."""


class BenchedCluster(Protocol):
    """The interface of `Cluster` that a bench uses."""

    @property
    def name(self) -> str: ...
    @property
    def backend(self) -> str: ...
    @property
    def size(self) -> int: ...
    @property
    def run(self) -> Callable[..., Any]: ...
    def rewire(self, backend: str, *, connections: int) -> WorldChange: ...
    def interrupt(self, *, within: float) -> object: ...


class Bench:
    """One run of ``bench`` on a cluster. The constructor checks all arguments and raises UsageError."""

    def __init__(
        self,
        cluster: BenchedCluster,
        ranks: Ranks,
        *,
        ops: Sequence[str],
        sizes: Sequence[int],
        seconds: float,
        compare: Sequence[str],
        connections: Sequence[int],
        progress: Callable[[str], None],
        stop: Stop,
    ) -> None:
        self._cluster, self._ranks, self._sizes, self._seconds, self._say = cluster, ranks, sizes, seconds, progress
        self._home = Choice(cluster.backend, ranks.settings.options.connections)
        self._choices = choices(self._home, compare, connections)
        known_ops(ops, dict.fromkeys(choice.backend for choice in self._choices))
        self._ops = tuple(dict.fromkeys(ops))
        if cluster.size < 2:
            raise UsageError("bench needs at least 2 ranks: %distributed resize 2")
        if not 0 < seconds < math.inf:
            raise UsageError(f"--seconds {seconds:g}: must be above 0, such as 0.3.")
        fits_in_memory(self._ops, sizes[-1], cluster.size, sum(host.local for host in ranks.hosts))
        self._notes: list[str] = []
        self._stop = stop

    def run(self) -> BenchResult:
        """Measure every choice, and wire the world as before at the end, even after errors.

        Raises CellInterrupted if the bench was stopped, CannotStart if the world cannot be wired as before, and what
        the cells of the measurements raise.
        """
        rows: list[BenchRow] = []
        at = time.time()
        try:
            with self._stop.noted():  # pyzmq frees its frames between two cells, and may lose a KeyboardInterrupt then
                for choice in self._choices:
                    if self._wired(choice):
                        rows += self._rows(choice)
        finally:
            self._go_home()
        self._raise_if_stopped()
        return BenchResult(self._cluster.name, self._cluster.size, self._home, rows, self._notes, at)

    def _raise_if_stopped(self) -> None:
        try:
            self._stop.raise_if_pressed()
        except KeyboardInterrupt:
            raise CellInterrupted from None

    def _wired(self, choice: Choice) -> bool:
        """Change to `choice`; False if that is not possible, with the reason in the notes."""
        if choice == self._here():
            return True
        if reason := cannot_run(choice.backend, self._ranks.sites(self._ranks.hosts)):
            self._notes.append(f"Skipped {choice}: {reason}")
            return False
        self._say(f"bench: switching to {choice} …")
        try:
            self._rewire(choice)
        except CannotStart as error:
            self._notes.append(f"Skipped {choice}: {error}")
            self._go_home()
            return False
        return True

    def _rewire(self, choice: Choice) -> None:
        """Change to `choice`, and note variables that ranks lost.

        Raises what `Cluster.rewire` raises, except NotLoaded.
        """
        try:
            change = self._cluster.rewire(choice.backend, connections=choice.connections)
        except NotLoaded as error:  # the world is up, but ranks lack variables
            change = error.change
        if change.missing or change.failed:
            self._notes.append(str(change))

    def _here(self) -> Choice:
        return Choice(self._cluster.backend, self._ranks.settings.options.connections)

    def _go_home(self) -> None:
        plan = self._ranks.plan
        if plan is not None and self._here() == self._home == Choice(plan.backend, plan.connections):
            return
        self._say(f"bench: switching back to {self._home} …")
        self._cluster.interrupt(within=ENDS_WITHIN)  # a failed or stopped measurement may still run
        try:
            self._rewire(self._home)
        except AllranksError as error:
            command = f"%distributed rewire --backend {self._home.backend} --connections {self._home.connections}"
            raise CannotStart(f"bench could not switch back to {self._home}: {error} To try again: {command}") from None

    def _rows(self, choice: Choice) -> list[BenchRow]:
        """Measure all sizes in ascending and in descending order, so that a brief slowdown is not blamed on a size."""
        assert self._ranks.plan is not None
        can = get_backend(choice.backend).operations
        if missing := [op for op in self._ops if op not in can]:
            self._notes.append(f"Skipped {', '.join(missing)} on {choice.backend}, which does not support it.")
        pairs = {
            (min(link.source, link.target), max(link.source, link.target))
            for link in self._ranks.backend.links(self._ranks.plan)
        }
        todo = [
            (op, link, nbytes)
            for op in self._ops
            if op in can
            for link in (sorted(pairs) if op == "send" else (None,))
            for nbytes in self._sizes
        ]
        times: dict[tuple[str, tuple[int, int] | None, int], list[Floats]] = {each: [] for each in todo}
        for done, each in enumerate([*todo, *reversed(todo)], 1):
            times[each].append(self._times(choice, *each, f"{done} of {2 * len(todo)}"))
        size = self._cluster.size
        return [
            BenchRow.of(choice, op, link, usable_bytes(op, nbytes, size), size, np.concatenate(found, axis=1))
            for (op, link, nbytes), found in times.items()
        ]

    def _times(self, choice: Choice, op: str, link: tuple[int, int] | None, nbytes: int, which: str) -> Floats:
        """Measure `op` at one size; return the seconds of each call, with one row for each rank that takes part."""
        what = f"link {link[0]}-{link[1]}" if link else op
        self._say(f"bench: {choice} · {what} · {size_text(nbytes)} ({which})")
        self._raise_if_stopped()
        arguments = f"{op!r}, {nbytes}, {self._seconds / 2!r}, {link!r}"
        # Ranks that are not on the link run nothing: a rank that waits in a collective of the ring spins on a core.
        result = self._cluster.run(
            CODE.format(arguments=arguments), ranks=link, check="off", ordered=False, screen=Nowhere()
        ).check()
        return np.stack([rank.value for rank in result.values()])


class Progress:
    """A progress line: a display in a kernel (`live`), otherwise a line of stderr that is overwritten."""

    def __init__(self, *, live: bool) -> None:
        from allranks.notebook.live_lines import LiveArea

        self._area = LiveArea(lambda _ranks: ("", "")) if live else None
        self._width = 0

    def __call__(self, text: str) -> None:
        """Show `text` instead of the previous text."""
        if self._area is not None:
            self._area.want({0: text} if text else {})
        elif text or self._width:
            sys.stderr.write("\r" + text.ljust(self._width) + ("" if text else "\r"))
            sys.stderr.flush()
            self._width = len(text)

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *_: object) -> None:
        self("")
