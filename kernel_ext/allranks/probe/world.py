"""A world on which the conformance list is run; sent to the process that forms it."""

from __future__ import annotations

from msgspec import Struct


class ProbedWorld(Struct, frozen=True):
    name: str
    """The world's name in the report."""
    backend: str
    ranks: int = 2
    env: dict[str, str] = {}
    hosts: list[str] = []
    hostfile: str | None = None
    patience: float = 1.0
    """Factor for all timeouts, for slow machines."""
    no_kills: str = ""
    """Why no rank may be killed, as a clause; empty if a rank may be killed."""
    why_not: str = ""
    """Why the world cannot be formed here, as a clause; empty if no reason is known."""
