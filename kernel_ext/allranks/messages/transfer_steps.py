"""The steps of a transfer in parts, which each end sends as messages of its own types."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from msgspec import Struct


@dataclass(frozen=True)
class TransferSteps:
    """The message types that one end sends (`transfer_events` or `transfer_requests`)."""

    announced: Callable[[int, bytes, list[int]], Struct]
    part: Callable[[int], Struct]
    taken: Callable[[int], Struct]
    refused: Callable[[int], Struct]
    dropped: Callable[[int], Struct]
