"""What ``bench`` measured: figures, fits, tables, a chart, and what changed since another time.

A figure is defined as NVIDIA's nccl-tests define it (doc/PERFORMANCE.md there): ``algbw = S / t`` and
``busbw = algbw x factor``, in GB/s = 1e9 bytes a second. See `moved` and `factor`.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from html import escape
from importlib.metadata import version
from pathlib import Path
from statistics import geometric_mean
from typing import Any

import numpy as np

from .errors import UsageError

CHANGED = 0.10
"""Share by which a busbw must differ before it counts as changed."""
FORMAT = 1
"""Of a saved file."""

# Definitions.


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
        other = self.backend == "ring" and self.connections != now.connections
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
        grows = f" + S / ({rate_text(self.bandwidth)} GB/s)" if math.isfinite(self.bandwidth) else ", whatever S is"
        return f"t = {seconds_text(self.latency)}{grows}, off by at most {self.off:.0%}"


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


# What was measured.


@dataclass
class BenchResult:
    """What ``bench`` measured: a table as text and HTML, `frame` for pandas, `fits`, `save` and `against`."""

    name: str
    """Of the cluster."""
    ranks: int
    choice: Choice
    """How the ranks were wired when it began, and are again."""
    rows: list[BenchRow]
    notes: list[str] = field(default_factory=list)
    """What was left out, and why."""
    at: float = 0.0
    """Unix time in seconds."""
    mlx: str = field(default_factory=lambda: version("mlx"))

    @property
    def peak(self) -> float:
        """The highest busbw on the wiring in use, in bytes a second."""
        return max((row.busbw for row in self.rows if row.choice == self.choice), default=0.0)

    @property
    def series(self) -> dict[str, list[BenchRow]]:
        """The rows by what was measured, such as ``all_sum``, ``link 0-1``, or ``all_sum (mpi)`` among several."""
        found: dict[str, list[BenchRow]] = {}
        for row in self.rows:
            name = row.what if len(self._choices()) == 1 else f"{row.what} ({row.choice})"
            found.setdefault(name, []).append(row)
        return found

    @property
    def fits(self) -> dict[str, Fit]:
        """t = a + S / B of each series with two sizes or more."""
        return {name: found for name, rows in self.series.items() if (found := fit(rows)) is not None}

    def _choices(self) -> list[Choice]:
        return list(dict.fromkeys(row.choice for row in self.rows))

    def ratios(self) -> dict[Choice, list[float]]:
        """busbw of every other choice over that of the wiring in use, wherever both were measured."""
        now = {_key(row): row for row in self.rows if row.choice == self.choice}
        return {
            choice: ratios
            for choice in self._choices()
            if choice != self.choice
            and (
                ratios := [
                    row.busbw / now[_key(row)].busbw for row in self.rows if row.choice == choice and _key(row) in now
                ]
            )
        }

    @property
    def recommended(self) -> Choice | None:
        """The wiring with the highest busbw, as the geometric mean over all that was measured on both; None without
        another one. The one in use stays unless another is better by more than 10 %."""
        means = {choice: geometric_mean(ratios) for choice, ratios in self.ratios().items()}
        if not means:
            return None
        best = max(means, key=means.__getitem__)
        return best if means[best] > 1 + CHANGED else self.choice

    @property
    def recommendation(self) -> str | None:
        """The same as a sentence, with the command that applies it."""
        best, ratios = self.recommended, self.ratios()
        if best is None:
            return None
        if best == self.choice:
            others = "; ".join(f"{choice} has {_ratio_text(found)}" for choice, found in ratios.items())
            return f"Stay with {self.choice}. Of its busbw {others}."
        command = best.command(self.choice)
        return (
            f"Take {best}: its busbw is {_ratio_text(ratios[best])} of that of {self.choice}. {command} changes to it."
        )

    def frame(self) -> Any:
        """A pandas DataFrame: times in seconds, algbw and busbw in GB/s. Raises UsageError without pandas."""
        try:
            import pandas
        except ImportError:
            raise UsageError(
                "frame() needs pandas, which is not installed: pip install pandas. `rows` has the same figures."
            ) from None
        return pandas.DataFrame(
            [
                {
                    "backend": row.choice.backend,
                    "connections": row.choice.connections,
                    "op": row.op,
                    "link": f"{row.link[0]}-{row.link[1]}" if row.link else None,
                    "bytes": row.nbytes,
                    "calls": row.calls,
                    "min": row.minimum,
                    "median": row.median,
                    "p99": row.p99,
                    "algbw": row.algbw / 1e9,
                    "busbw": row.busbw / 1e9,
                }
                for row in self.rows
            ]
        )

    # Keeping and comparing.

    def save(self, path: str | Path) -> None:
        """Write everything as JSON. Raises UsageError where the file cannot be written."""
        content = {"allranks bench": FORMAT, **asdict(self)}
        try:
            Path(path).write_text(json.dumps(content, indent=1) + "\n")
        except OSError as error:
            raise UsageError(f"--save {path}: {error.strerror or error}.") from None

    @classmethod
    def load(cls, path: str | Path) -> BenchResult:
        """What `save` wrote. Raises UsageError for any other file."""
        try:
            content = json.loads(Path(path).read_text())
            if content.pop("allranks bench") != FORMAT:
                raise UsageError(f"{path} was saved by another version of allranks: measure again.")
            rows = [
                BenchRow(
                    **{
                        **row,
                        "choice": Choice(**row["choice"]),
                        "link": tuple(row["link"]) if row["link"] else None,
                        "quartiles": tuple(row["quartiles"]),
                    }
                )
                for row in content.pop("rows")
            ]
            return cls(choice=Choice(**content.pop("choice")), rows=rows, **content)
        except OSError as error:
            raise UsageError(f"{path}: {error.strerror or error}.") from None
        except (KeyError, TypeError, AttributeError, json.JSONDecodeError, UnicodeDecodeError):
            raise UsageError(f"{path} is no saved bench: one is written by %distributed bench --save {path}.") from None

    def against(self, earlier: BenchResult) -> list[str]:
        """What changed since, a sentence each: ``link 1-2 fell from 0.93 to 0.41 Gbit/s at 64 MiB``.

        Counted as changed: a busbw that differs by more than 10 %, where moreover the middle halves of the times of
        both runs (between their quartiles) do not touch. Neighbouring sizes that changed alike share a sentence.
        """
        said = []
        alone = len(self._choices()) == len(earlier._choices()) == 1
        if self.ranks != earlier.ranks or (alone and self._choices() != earlier._choices()):
            said.append(f"The worlds differ: {earlier._world()} then, {self._world()} now.")
        before = {(_key(row), None if alone else row.choice): row for row in earlier.rows}
        common = 0
        for name, rows in self.series.items():
            pairs = [
                (before[key], row) for row in rows if (key := (_key(row), None if alone else row.choice)) in before
            ]
            common += len(pairs)
            said += [_changed_text(name, run, last=pairs[-1]) for run in _runs(pairs)]
        if not common:
            return [*said, "Nothing was measured in both: take the same operations and sizes."]
        return said or ["Nothing changed by more than noise (10 %, with the middle halves of the times apart)."]

    def _world(self) -> str:
        return f"{self.ranks} ranks on {' / '.join(map(str, self._choices()))}"

    # Showing.

    def __str__(self) -> str:
        lines = [list(_HEADINGS), *map(_cells, self.rows)]
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        table = ["  ".join(_padded(row, widths)).rstrip() for row in lines]
        return "\n".join([self._head(), "", *table, "", *self._below()])

    def __repr__(self) -> str:
        return str(self)

    def _head(self) -> str:
        when = time.strftime("%Y-%m-%d %H:%M", time.localtime(self.at))
        return f'bench · world "{self.name}" · {self.ranks} ranks · float32 · mlx {self.mlx} · {when}'

    def _below(self) -> list[str]:
        """What is said below the table."""
        fits = [f"{name}: {line}" for name, line in self.fits.items()]
        return [*fits, *([self.recommendation] if self.recommendation else []), *self.notes]

    def _repr_html_(self) -> str:
        cell = "padding:2px 12px 2px 0;border:none;border-bottom:1px solid rgba(128,128,128,0.3);text-align:"
        align = ["left" if column in _WORDS else "right" for column in range(len(_HEADINGS))]

        def line(tag: str, texts: Sequence[str]) -> str:
            cells = (f'<{tag} style="{cell}{side}">{escape(text)}</{tag}>' for side, text in zip(align, texts))
            return f"<tr>{''.join(cells)}</tr>"

        body = "".join(line("td", _cells(row)) for row in self.rows)
        below = "".join(f'<div style="padding:2px 0">{escape(text)}</div>' for text in self._below())
        return (
            f'<div style="padding:2px 6px"><div style="font-weight:bold;padding:2px 0">{escape(self._head())}</div>'
            '<table style="border-collapse:collapse;border:none;margin:0">'
            f"<thead>{line('th', _HEADINGS)}</thead><tbody>{body}</tbody></table>{below}{chart(self.series)}</div>"
        )


def _key(row: BenchRow) -> tuple[str, tuple[int, int] | None, int]:
    return row.op, row.link, row.nbytes


Pair = tuple[BenchRow, BenchRow]
"""The same thing, measured before and now."""


def _ratio(pair: Pair) -> float:
    return pair[1].busbw / pair[0].busbw


def _direction(pair: Pair) -> int:
    """1 where busbw rose, -1 where it fell, 0 where that may be noise."""
    before, now = pair
    ratio = _ratio(pair)
    apart = now.quartiles[0] > before.quartiles[1] or now.quartiles[1] < before.quartiles[0]
    if not apart or 1 / (1 + CHANGED) <= ratio <= 1 + CHANGED:
        return 0
    return 1 if ratio > 1 else -1


def _runs(pairs: Sequence[Pair]) -> list[list[Pair]]:
    """Neighbours that changed in the same direction."""
    runs: list[list[Pair]] = []
    last = 0
    for pair in pairs:
        direction = _direction(pair)
        if direction and direction == last:
            runs[-1].append(pair)
        elif direction:
            runs.append([pair])
        last = direction
    return runs


def _changed_text(name: str, run: Sequence[Pair], last: Pair) -> str:
    sizes = list(dict.fromkeys(size_text(pair[1].nbytes) for pair in (run[0], run[-1])))
    ratios = list(
        dict.fromkeys(f"{each:.2f}" for each in sorted(map(_ratio, (min(run, key=_ratio), max(run, key=_ratio)))))
    )
    where = f"at {sizes[0]}" if len(sizes) == 1 else f"from {sizes[0]} to {sizes[1]}"
    if run[-1] is not last or last[1].link is None:
        return f"{name} {where}: busbw {' to '.join(ratios)} of before."
    before, now = (rate_text(row.busbw * 8) for row in last)
    verb = "rose" if _direction(last) > 0 else "fell"
    more = f" ({where}: {' to '.join(ratios)} of before)" if len(sizes) > 1 else ""
    return f"{name} {verb} from {before} to {now} Gbit/s at {sizes[-1]}{more}."


def _ratio_text(ratios: Sequence[float]) -> str:
    """``3.21 (geometric mean of 17 figures, 1.50 to 8.02)``."""
    spread = f" (geometric mean of {len(ratios)} figures, {min(ratios):.2f} to {max(ratios):.2f})"
    return f"{geometric_mean(ratios):.2f}" + (spread if len(ratios) > 1 else "")


# Figures as people read them.

_HEADINGS = ("wiring", "what", "size", "calls", "min", "median", "p99", "algbw GB/s", "busbw GB/s")
_WORDS = (0, 1)
"""Columns of words; the others are figures."""


def _cells(row: BenchRow) -> list[str]:
    times = map(seconds_text, (row.minimum, row.median, row.p99))
    bandwidths = map(rate_text, (row.algbw, row.busbw))
    return [str(row.choice), row.what, size_text(row.nbytes), str(row.calls), *times, *bandwidths]


def _padded(row: Sequence[str], widths: Sequence[int]) -> list[str]:
    return [
        text.ljust(width) if column in _WORDS else text.rjust(width)
        for column, (text, width) in enumerate(zip(row, widths, strict=True))
    ]


def typed_size(nbytes: int) -> str:
    """As it is typed: ``4M``."""
    return size_text(nbytes).replace(" ", "").removesuffix("iB").removesuffix("B")


def size_text(nbytes: float) -> str:
    """Bytes in powers of 1024: ``4 MiB``."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if nbytes < 1024 or unit == "GiB":
            break
        nbytes /= 1024
    return f"{nbytes:.4g} {unit}"


def seconds_text(seconds: float) -> str:
    """``71.2 µs``, ``3.5 ms``, ``1.2 s``."""
    scale, unit = (1e6, "µs") if seconds < 1e-3 else (1e3, "ms") if seconds < 1 else (1.0, "s")
    return f"{_three(seconds * scale)} {unit}"


def rate_text(per_second: float) -> str:
    """Bytes (or bits) a second in units of 1e9."""
    return _three(per_second / 1e9)


def _three(value: float) -> str:
    """Three digits: ``0.0041``, ``0.93``, ``12.3``, ``412``."""
    if not math.isfinite(value) or value == 0:
        return str(value) if value else "0"
    return f"{value:.{min(max(2 - math.floor(math.log10(abs(value))), 0), 6)}f}"


# The chart.

_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
_DASHES = ("", "6 3", "2 3", "8 3 2 3")
"""Colour is not the only thing that tells two lines apart."""


def chart(series: Mapping[str, Sequence[BenchRow]]) -> str:
    """busbw over size as an SVG, size on a logarithmic axis; nothing for a single size."""
    rows = [row for each in series.values() for row in each]
    powers = sorted({round(math.log2(row.nbytes)) for row in rows})
    if len(powers) < 2:
        return ""
    left, top, width, height = 54, 12, 420, 180
    ceiling = max(row.busbw for row in rows) / 1e9

    def x(nbytes: int) -> float:
        return left + width * (math.log2(nbytes) - powers[0]) / (powers[-1] - powers[0])

    def y(gigabytes: float) -> float:
        return top + height * (1 - gigabytes / ceiling)

    parts = [
        f'<line x1="{left}" x2="{left + width}" y1="{y(at):.1f}" y2="{y(at):.1f}" stroke="currentColor" opacity="0.2"/>'
        f'<text x="{left - 6}" y="{y(at) + 4:.1f}" text-anchor="end">{_three(at)}</text>'
        for at in (0.0, ceiling / 2, ceiling)
    ]
    step = math.ceil(len(powers) / 6)
    parts += [
        f'<text x="{x(1 << power):.1f}" y="{top + height + 16}" text-anchor="middle">{size_text(1 << power)}</text>'
        for power in powers[::step]
    ]
    for number, (name, line) in enumerate(series.items()):
        points = " ".join(f"{x(row.nbytes):.1f},{y(row.busbw / 1e9):.1f}" for row in line)
        look = f'stroke="{_COLOURS[number % len(_COLOURS)]}" stroke-dasharray="{_DASHES[number % len(_DASHES)]}"'
        legend = left + width + 16, top + 8 + 18 * number
        parts += [
            f'<polyline points="{points}" fill="none" stroke-width="2" {look}/>',
            f'<line x1="{legend[0]}" x2="{legend[0] + 26}" y1="{legend[1]}" y2="{legend[1]}" stroke-width="2" {look}/>',
            f'<text x="{legend[0] + 32}" y="{legend[1] + 4}">{escape(name)}</text>',
        ]
    tall = max(top + height + 40, top + 18 * len(series) + 8)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" role="img" aria-label="busbw over size" viewBox="0 0 700 {tall}" '
        f'style="max-width:700px;display:block" font-size="11" fill="currentColor" font-family="sans-serif">'
        f'{"".join(parts)}<text x="{left}" y="{top + height + 34}">busbw in GB/s over bytes of the array</text></svg>'
    )
