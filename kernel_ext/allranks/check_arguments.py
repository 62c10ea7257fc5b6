"""The user's arguments, checked before anything starts."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from pathlib import Path

import psutil

from allranks_backends.protocol import BackendError
from allranks_backends.registry import get_backend

from .errors import UsageError
from .units import size_text

SLOW_RANKS_OF_A_CORE = 2
"""Maximum number of ranks per core without a warning."""
RANKS_OF_A_CORE = 4
"""Maximum number of ranks per core on this machine without `--yes`."""
OF_A_RANK = 64 << 20
"""Bytes of memory of an idle rank, without the memory that all ranks of a machine share."""


def fits_here(option: str, count: int) -> None:
    """Raise UsageError if this machine lacks the memory for `count` more ranks; two are always allowed."""
    most = max(psutil.virtual_memory().available // OF_A_RANK, 2)
    if count > most:
        raise UsageError(f"{option}: a rank needs about {size_text(OF_A_RANK)} of memory. At most {most} fit here.")


def not_too_many(option: str, count: int, running: int = 0) -> None:
    """Raise UsageError if memory is short, or if there are more ranks per core than may start without `--yes`.

    The ranks that are already `running` are part of `count` and need no further memory.
    """
    fits_here(option, count - running)
    cores = psutil.cpu_count() or 1
    if count > RANKS_OF_A_CORE * cores:
        raise UsageError(
            f"{option}: this machine has {cores} {'core' if cores == 1 else 'cores'}, and ranks of a ring are busy "
            f"while they wait. Up to {RANKS_OF_A_CORE * cores} start unasked; {option} --yes starts all of these."
        )


def slow_text(ranks: Mapping[str, int], cores: Mapping[str, int]) -> str:
    """Return a warning about hosts with more than `SLOW_RANKS_OF_A_CORE` ranks per core; empty if there are none.

    `ranks` and `cores` map the names of hosts to their numbers of ranks and of cores.
    """
    crowded = [
        f"{ranks[name]} ranks share the {f'{count} cores' if count > 1 else 'only core'} of {name} "
        f"(up to {SLOW_RANKS_OF_A_CORE * count} fit)"
        for name, count in cores.items()
        if ranks[name] > SLOW_RANKS_OF_A_CORE * count
    ]
    return f"{'; '.join(crowded)}: this will be slow, since ranks use a core even while they wait." if crowded else ""


def parse_size(text: str) -> int:
    """Convert a size to bytes: ``4096``, ``64K`` or ``4MiB``. K, M and G are powers of 1024. Raises UsageError."""
    units = {"": 1, "B": 1} | {
        letter + rest: 1 << 10 * power for power, letter in enumerate("KMG", 1) for rest in ("", "B", "IB")
    }
    digits = text.strip().rstrip("KMGIBkmgib")
    unit, digits = text.strip()[len(digits) :].upper(), digits.rstrip()
    if not digits.isascii() or not digits.isdigit() or unit not in units:
        raise UsageError(f"invalid size {text!r}: use 64K, 4MiB or a number of bytes.")
    return int(digits) * units[unit]


LEASE = 12 * 3600.0
"""Default lease in seconds: long enough for a night and the way to work."""
_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def lease_of(given: float | str | None, *, lasts: bool = True) -> float | None:
    """Return the lease in seconds, None for no limit. Raises UsageError.

    If `given` is None, the lease is `LEASE` for a cluster that `lasts` beyond its notebook, and 0 for any other.
    """
    if given is None:
        return LEASE if lasts else 0.0
    if given == "none":
        return None
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([smhd]?)", str(given).strip())
    if found is None or not math.isfinite(float(found[1])):
        raise UsageError(f"--lease {given}: use a time such as 90s, 45m or 12h, 0, or none.")
    return float(found[1]) * _UNITS[found[2] or "s"]


def known_backend(backend: str) -> None:
    try:
        get_backend(backend)
    except BackendError as error:
        raise UsageError(str(error)) from None


def writable(option: str, path: str) -> Path:
    """Return the path. Raises UsageError if the file cannot be written, so that no measurement is made in vain."""
    try:
        file = Path(path).expanduser()
        fresh = not file.exists()
        file.open("a").close()
        if fresh:
            file.unlink()
    except (OSError, RuntimeError) as error:  # RuntimeError: a user without a home
        raise UsageError(f"{option} {path}: {getattr(error, 'strerror', None) or error}.") from None
    return file
