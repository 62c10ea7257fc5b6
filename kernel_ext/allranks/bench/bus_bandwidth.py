"""Figures of measured collectives: names, times and bandwidths, and the line through several sizes.

The figures are defined as in NVIDIA's nccl-tests (doc/PERFORMANCE.md there): ``algbw = S / t`` and
``busbw = algbw x factor``. They are shown in GB/s, which are 1e9 bytes per second. See `moved` and `factor`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from allranks.units import rate_text, seconds_text
from allranks_backends.registry import get_backend

if TYPE_CHECKING:  # the start of a cluster imports this module, and does not need numpy
    import numpy as np
    from numpy.typing import ArrayLike, NDArray

    Floats: TypeAlias = NDArray[np.float64]


def moved(op: str, nbytes: int, size: int) -> int:
    """S: the bytes of a call on `size` ranks that each give an array of `nbytes`.

    They are counted as in nccl-tests: the gathered array for ``all_gather``, one rank's array for other operations.
    """
    return nbytes * size if op == "all_gather" else nbytes


def factor(op: str, size: int) -> float:
    """busbw over algbw: the share of S that must cross each rank's link, whatever the algorithm (nccl-tests)."""
    if op in ("all_sum", "all_max", "all_min"):
        return 2 * (size - 1) / size
    return 1.0 if op == "send" else (size - 1) / size


def bandwidths(op: str, nbytes: int, seconds: float | None, size: int) -> dict[str, float]:
    """algbw and busbw, in GB/s, of a call on `size` ranks whose transfer took `seconds`; empty if it was not timed."""
    if not seconds:
        return {}
    algbw = moved(op, nbytes, size) / seconds / 1e9
    return {"algbw": algbw, "busbw": algbw * factor(op, size)}


@dataclass(frozen=True, order=True)
class Choice:
    """A way to wire the ranks."""

    backend: str
    connections: int = 1
    """TCP connections of a ring link."""

    def __str__(self) -> str:
        return f"{self.backend}, {self.connections} connections" if self.connections > 1 else self.backend

    def command(self, now: Choice) -> str:
        """The magic that switches from `now` to this choice."""
        backend = f" --backend {self.backend}" if self.backend != now.backend else ""
        other = get_backend(self.backend).connections_per_link and self.connections != now.connections
        connections = f" --connections {self.connections}" if other else ""
        return f"%distributed rewire{backend}{connections}"


@dataclass(frozen=True)
class BenchRow:
    """One operation at one size. Times are in seconds; a call's time is the mean over its ranks, as in nccl-tests.

    The time of a ``send`` is half of the round trip.
    """

    choice: Choice
    op: str
    link: tuple[int, int] | None
    """The two ranks of a ``send``; None for other operations."""
    nbytes: int
    """Bytes of the array that each rank gives."""
    ranks: int
    calls: int
    minimum: float
    median: float
    p99: float
    quartiles: tuple[float, float]
    """The times between which half of the calls lie: the 25th and 75th percentile."""

    @classmethod
    def of(
        cls, choice: Choice, op: str, link: tuple[int, int] | None, nbytes: int, size: int, times: ArrayLike
    ) -> BenchRow:
        """Make a row from `times`: the seconds of each call, with one row for each rank that took part.

        A call's time is the mean over ranks, not the maximum. The slowest rank of a call is usually the one that enters
        it first, and waits; in the next call, it is another rank. So the maxima add up to more than the time that all
        calls took (a third more for 1 KiB on MPI, seen on two ranks).
        """
        import numpy as np

        taken = np.mean(np.asarray(times), axis=0)
        low, middle, high = (float(each) for each in np.percentile(taken, (25, 50, 75)))
        p99 = float(np.percentile(taken, 99, method="higher"))
        return cls(choice, op, link, nbytes, size, len(taken), float(taken.min()), middle, p99, quartiles=(low, high))

    @property
    def what(self) -> str:
        """``all_sum``, or ``link 1-2``."""
        return f"link {self.link[0]}-{self.link[1]}" if self.link else self.op

    @property
    def key(self) -> tuple[str, tuple[int, int] | None, int]:
        """Equal for rows of the same measurement on other wirings or at other times."""
        return self.op, self.link, self.nbytes

    @property
    def moved(self) -> int:
        """S of a call, in bytes (see the function `moved`)."""
        return moved(self.op, self.nbytes, self.ranks)

    @property
    def algbw(self) -> float:
        """algbw in bytes per second, at the median time."""
        return self.moved / self.median

    @property
    def busbw(self) -> float:
        """busbw in bytes per second, at the median time."""
        return self.algbw * factor(self.op, self.ranks)


FITS_WITHIN = 0.5
"""Largest relative error of a fit (`Fit.off`) for which its figures are reported."""


@dataclass(frozen=True)
class Fit:
    """The line t = latency + S / bandwidth that is closest to the medians."""

    latency: float
    """In seconds."""
    bandwidth: float
    """In bytes per second, like algbw; infinite if the time does not grow with S."""
    off: float
    """The largest distance of a median from the line, relative to the line."""

    def __str__(self) -> str:
        if self.off > FITS_WITHIN:
            return "no line t = latency + S / bandwidth fits these times"
        grows = f" + S / ({rate_text(self.bandwidth)} GB/s)" if math.isfinite(self.bandwidth) else " for any S"
        return f"t = {seconds_text(self.latency)}{grows}, off by up to {self.off:.0%}"


def fit(rows: Sequence[BenchRow]) -> Fit | None:
    """The fit to the medians of one series; None for fewer than two sizes.

    It is a least-squares fit with weights 1 / median², so that each size's error counts relative to its time: without
    weights, the largest size alone would decide. A negative latency or slope is set to zero and the fit repeated.
    """
    if len({row.moved for row in rows}) < 2:
        return None
    import numpy as np

    size = np.array([row.moved for row in rows], float)
    took = np.array([row.median for row in rows])
    ones = np.ones_like(took)

    def solved(*columns: Floats) -> Floats:
        found: Floats = np.linalg.lstsq(np.stack([column / took for column in columns], axis=1), ones, rcond=None)[0]
        return found

    latency, slope = solved(ones, size)
    if latency < 0:
        latency, slope = 0.0, solved(size)[0]
    elif slope < 0:
        latency, slope = solved(ones)[0], 0.0
    line = latency + slope * size
    return Fit(float(latency), float(1 / slope) if slope else math.inf, float(np.max(np.abs(took / line - 1))))
