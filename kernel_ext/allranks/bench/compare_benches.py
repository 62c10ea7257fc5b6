"""Compares wirings by the figures of one bench, and one bench with an earlier one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import geometric_mean

from allranks.units import rate_text, size_text

from .bus_bandwidth import BenchRow, Choice

CHANGED = 0.10
"""Share by which a busbw must differ to count as changed; the times must be apart, too (see `_direction`)."""

Ratios = Mapping[Choice, Sequence[float]]
"""For each wiring that is not in use: one ratio per measurement, its busbw divided by that of the wiring in use."""
Pair = tuple[BenchRow, BenchRow]
"""The same measurement, earlier and now."""


def best(ratios: Ratios, now: Choice) -> Choice | None:
    """The wiring with the highest busbw; None if `ratios` is empty.

    It is `now` unless another wiring is better by more than `CHANGED`.
    """
    means = {choice: geometric_mean(found) for choice, found in ratios.items()}
    if not means:
        return None
    fastest = max(means, key=means.__getitem__)
    return fastest if means[fastest] > 1 + CHANGED else now


def advice(ratios: Ratios, now: Choice) -> str | None:
    """The result of `best` as a sentence, with the command that switches to it, if any; None if `best` is None."""
    chosen = best(ratios, now)
    if chosen is None:
        return None
    if chosen == now:
        others = "; ".join(f"{choice} reaches {_ratio_text(found)}" for choice, found in ratios.items())
        return f"Stay with {now}. Of its busbw, {others}."
    command = chosen.command(now)
    return f"Use {chosen}: its busbw is {_ratio_text(ratios[chosen])} of that of {now}. To switch: {command}"


def _ratio_text(ratios: Sequence[float]) -> str:
    """``3.21 (geometric mean of 17 figures, 1.50 to 8.02)``."""
    spread = f" (geometric mean of {len(ratios)} figures, {min(ratios):.2f} to {max(ratios):.2f})"
    return f"{geometric_mean(ratios):.2f}" + (spread if len(ratios) > 1 else "")


def changes(name: str, pairs: Sequence[Pair]) -> list[str]:
    """The changes in a series of this name, one sentence each.

    Neighbouring sizes that changed in the same direction share a sentence.
    """
    return [_changed_text(name, run, last=pairs[-1]) for run in _runs(pairs)]


def _ratio(pair: Pair) -> float:
    return pair[1].busbw / pair[0].busbw


def _direction(pair: Pair) -> int:
    """1 if busbw rose, -1 if it fell, 0 if the difference may be noise."""
    before, now = pair
    ratio = _ratio(pair)
    apart = now.quartiles[0] > before.quartiles[1] or now.quartiles[1] < before.quartiles[0]
    if not apart or 1 / (1 + CHANGED) <= ratio <= 1 + CHANGED:
        return 0
    return 1 if ratio > 1 else -1


def _runs(pairs: Sequence[Pair]) -> list[list[Pair]]:
    """Groups of neighbouring pairs that changed in the same direction."""
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
