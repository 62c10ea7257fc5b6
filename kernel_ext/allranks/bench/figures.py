"""Figures of collectives: what a measured call is called, how fast it was, and the line through several sizes.

A figure is defined as NVIDIA's nccl-tests define it (doc/PERFORMANCE.md there): ``algbw = S / t`` and
``busbw = algbw x factor``, in GB/s = 1e9 bytes a second. See `moved` and `factor`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from allranks.units import rate_text, seconds_text
from allranks_backends.registry import get_backend


def moved(op: str, nbytes: int, size: int) -> int:
    """S: the bytes of a call on `size` ranks that each give an array of `nbytes`.

    As nccl-tests count them: all that comes together for ``all_gather``, the array of one rank for everything else.
    """
    return nbytes * size if op == "all_gather" else nbytes


def factor(op: str, size: int) -> float:
    """busbw over algbw: the share of S that must cross each rank's link, whatever the algorithm (nccl-tests)."""
    if op in ("all_sum", "all_max", "all_min"):
        return 2 * (size - 1) / size
    return 1.0 if op == "send" else (size - 1) / size


@dataclass(frozen=True, order=True)
class Choice:
    """A way to wire the ranks."""

    backend: str
    connections: int = 1
    """TCP connections of a ring link."""

    def __str__(self) -> str:
        return f"{self.backend}, {self.connections} connections" if self.connections > 1 else self.backend

    def command(self, now: Choice) -> str:
        """The magic that changes to it from `now`."""
        backend = f" --backend {self.backend}" if self.backend != now.backend else ""
        other = get_backend(self.backend).connections_per_link and self.connections != now.connections
        connections = f" --connections {self.connections}" if other else ""
        return f"%distributed rewire{backend}{connections}"


@dataclass(frozen=True)
class BenchRow:
    """One operation at one size. Times are seconds; that of a call is the mean over its ranks, as in nccl-tests."""

    choice: Choice
    op: str
    link: tuple[int, int] | None
    """The two ranks, for ``send``."""
    nbytes: int
    """Bytes of the array that each rank gives."""
    ranks: int
    calls: int
    minimum: float
    median: float
    p99: float
    quartiles: tuple[float, float]
    """Half of the calls took a time between these."""

    @classmethod
    def of(cls, choice: Choice, op: str, link: tuple[int, int] | None, nbytes: int, size: int, times: Any) -> BenchRow:
        """From the seconds of each call, a line for each rank that took part.

        The slowest rank of a call is mostly the one that came first and waited, and the next time it is another: these
        maxima add up to more than all calls took (a third more for 1 KiB on MPI, seen on two ranks). Means do not.
        """
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
        """What it has in common with a row of another wiring, or of another time."""
        return self.op, self.link, self.nbytes

    @property
    def moved(self) -> int:
        """S, in bytes."""
        return moved(self.op, self.nbytes, self.ranks)

    @property
    def algbw(self) -> float:
        """Bytes a second, of the median."""
        return self.moved / self.median

    @property
    def busbw(self) -> float:
        """Bytes a second, of the median."""
        return self.algbw * factor(self.op, self.ranks)


FITS_WITHIN = 0.5
"""Largest relative error of a fit whose figures are reported."""


@dataclass(frozen=True)
class Fit:
    """The line t = latency + S / bandwidth that lies closest to the medians."""

    latency: float
    """Seconds."""
    bandwidth: float
    """Bytes a second, as algbw; infinite where the time does not grow with S."""
    off: float
    """The largest distance of a median from the line, as a share of the line."""

    def __str__(self) -> str:
        if self.off > FITS_WITHIN:
            return "no line t = latency + S / bandwidth fits these times"
        grows = f" + S / ({rate_text(self.bandwidth)} GB/s)" if math.isfinite(self.bandwidth) else " for any S"
        return f"t = {seconds_text(self.latency)}{grows}, off by up to {self.off:.0%}"


def fit(rows: Sequence[BenchRow]) -> Fit | None:
    """The fit to the medians of one series, None for fewer than two sizes.

    Least squares with weights 1 / median², which counts each size's error as a share of its time: unweighted, the
    largest size alone would decide. A latency or a slope that came out negative is held at zero.
    """
    if len({row.moved for row in rows}) < 2:
        return None
    size = np.array([row.moved for row in rows], float)
    took = np.array([row.median for row in rows])
    ones = np.ones_like(took)

    def solved(*columns: Any) -> Any:
        return np.linalg.lstsq(np.stack([column / took for column in columns], axis=1), ones, rcond=None)[0]

    latency, slope = solved(ones, size)
    if latency < 0:
        latency, slope = 0.0, solved(size)[0]
    elif slope < 0:
        latency, slope = solved(ones)[0], 0.0
    line = latency + slope * size
    return Fit(float(latency), float(1 / slope) if slope else math.inf, float(np.max(np.abs(took / line - 1))))
