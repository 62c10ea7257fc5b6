"""Finished progress bars of several ranks as one line: the slowest rank's, which is named.

A bar is a line that was written over itself, whatever its format: tqdm's, rich's, or plain text with carriage returns.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

from allranks_backends.plan import rank_label

from .safe_text import plain

PRECISION = 0.1
"""Seconds by which measured times may be off: ranks send their output every 0.03 s."""
_AMOUNT = re.compile(r"\d[\d.]*%|\d[\d.]*\w*/\d[\d.]*\w*")
"""A percentage, or how much of a total is done."""
_SPEED = re.compile(r"\d+(:\d\d)+|\d[\d.]*\s?\w*/s\b|\d[\d.]*\s?(ms|s|min)\b(/\w+)?|[█▏▎▍▌▋▊▉#━╸╺]+")
"""Times and rates, which differ between ranks, and the bar itself."""
_DECIMAL = re.compile(r"\d+\.\d+")


class RankBar(NamedTuple):
    """The last state of a bar on one rank."""

    text: str
    seconds: float
    """Seconds from the bar's first state to its last."""
    stream: str


def progress_of(text: str) -> str:
    """What equal bars of several ranks have in common: the words before the first amount, and all amounts.

    Times, rates and decimal numbers in these words may differ. Without an amount, only times and rates may.
    """
    text = plain(text).strip()
    if amounts := _AMOUNT.findall(text):
        words = text[: text.index(amounts[0])]
        return " ".join([_DECIMAL.sub("", _SPEED.sub("", words)).strip(), *amounts])
    return _SPEED.sub("", text)


def bar_line(bars: Mapping[int, RankBar]) -> str:
    """The line of the slowest rank; it is named if ranks took different times, or if their lines differ otherwise."""
    slowest = max(bars, key=lambda rank: bars[rank].seconds)
    line = bars[slowest].text.rstrip("\n")
    if bars[slowest].seconds - min(bar.seconds for bar in bars.values()) > PRECISION:
        line += f" (slowest: {rank_label((slowest,))})"
    elif len({_SPEED.sub("", plain(bar.text)).strip() for bar in bars.values()}) > 1:
        line += f" (of {rank_label((slowest,))})"
    return line + "\n"
