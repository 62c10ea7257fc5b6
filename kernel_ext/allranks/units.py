"""Bytes, seconds and rates as people read them."""

from __future__ import annotations

import math


def typed_size(nbytes: int) -> str:
    """Bytes as a user types them: ``4M``."""
    return size_text(nbytes).replace(" ", "").removesuffix("iB").removesuffix("B")


def size_text(nbytes: float) -> str:
    """Bytes in powers of 1024: ``4 MiB``."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if nbytes < 1024 or unit == "GiB":
            break
        nbytes /= 1024
    return f"{nbytes:.4g} {unit}"


def seconds_text(seconds: float) -> str:
    """Seconds with three digits: ``71.2 µs``, ``3.50 ms``, ``1.20 s``."""
    scale, unit = (1e6, "µs") if seconds < 1e-3 else (1e3, "ms") if seconds < 1 else (1.0, "s")
    return f"{three_digits(seconds * scale)} {unit}"


def duration_text(seconds: float) -> str:
    """``45 s``, ``12 min``, ``3 h``, ``2 days``: rounded to a whole unit."""
    for length, unit in ((86400, "days"), (3600, "h"), (60, "min")):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{max(seconds, 0):.0f} s"


def rate_text(per_second: float) -> str:
    """Bytes (or bits) per second in units of 1e9, without the unit."""
    return three_digits(per_second / 1e9)


def three_digits(value: float) -> str:
    """Three significant digits, but at most six decimals: ``0.00410``, ``0.930``, ``12.3``, ``412``."""
    if not math.isfinite(value) or value == 0:
        return str(value) if value else "0"
    return f"{value:.{min(max(2 - math.floor(math.log10(abs(value))), 0), 6)}f}"


def count_text(count: int, noun: str) -> str:
    """``1 line``, ``2,000 lines``."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def ranks_text(count: int, kind: str = "") -> str:
    """``1 rank``, ``4 ranks``, ``4 ring ranks``."""
    return count_text(count, f"{kind} rank".lstrip())


def cut_text(text: str, longest: int) -> str:
    """The text, cut to at most `longest` characters."""
    return text if len(text) <= longest else f"{text[: longest - 1]}…"
