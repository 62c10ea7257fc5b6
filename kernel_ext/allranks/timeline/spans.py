"""How a rank spent its time in a cell, as spans, and the share of each column of a picture that the spans cover."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from .rank_timeline import RankTimeline

Span = tuple[float, float]


def transferring(each: RankTimeline) -> Iterator[Span]:
    for call in each.calls:
        if call.began is not None and call.ended is not None:
            yield call.began + (call.wait or 0.0), call.ended


def waiting(each: RankTimeline) -> Iterator[Span]:
    for call in each.calls:
        if call.began is not None and call.ended is None:  # aborted
            yield call.began, each.ended
        elif call.began is not None and call.wait:
            yield call.began, call.began + call.wait


def computing(each: RankTimeline) -> Iterator[Span]:
    yield from each.evaluations
    for call in each.calls:
        if call.began is not None:
            yield call.asked, call.began


def covered(spans: Iterable[Span], seconds: float, columns: int) -> list[float]:
    """The share of each column's time that the spans cover."""
    shares = [0.0] * columns
    for began, ended in spans:
        first, last = (max(0.0, min(columns, at / seconds * columns)) for at in (began, ended))
        for column in range(int(first), min(int(last) + 1, columns)):
            shares[column] += min(last, column + 1.0) - max(first, float(column))
    return [min(share, 1.0) for share in shares]
