"""What a rank process is told when it starts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any


def _nothing() -> None:
    pass


@dataclass
class RankConfig:
    rank: int
    host: str
    uuid: str
    """The engine's ZeroMQ identity, which is also its identity on the lifeline."""
    directory: str
    """This rank's private folder (0700), removed with the cluster."""
    token: str
    lifeline_url: str
    lifeline_key: str
    engine: Mapping[str, Any]
    """Connection info of the ipyparallel controller (the content of ``ipcontroller-engine.json``)."""
    backend: str
    cwd: str | None = None
    cwd_may_lack: bool = False
    """Whether to stay in the home folder where there is no `cwd`."""
    env: Mapping[str, str] = field(default_factory=dict)
    keep: bool = False
    """Whether the rank outlives the notebook."""
    patience: float = 0.0
    """Further seconds to wait for the notebook before ending oneself."""
    stop: Callable[[], None] = _nothing
    """Ends the engine's loop; set by the engine."""
