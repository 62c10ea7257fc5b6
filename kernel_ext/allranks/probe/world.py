"""A world that the conformance list is run on; sent to the process that forms it."""

from __future__ import annotations

from msgspec import Struct


class World(Struct, frozen=True):
    name: str
    """As the report has it."""
    backend: str
    ranks: int = 2
    env: dict[str, str] = {}
    hosts: list[str] = []
    hostfile: str | None = None
    patience: float = 1.0
    """How much longer each step may take on a machine that is slow."""
    no_kills: str = ""
    """Why no rank is killed, as a clause; empty where one may be."""
    why_not: str = ""
    """Why it cannot be formed here, as a clause; empty where it may be."""
