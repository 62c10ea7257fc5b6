"""What a cell did on one rank."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from allranks.errors import CannotTravel, RemoteError
from allranks.messages.wire import Buffer
from allranks.pickling import pickle_values


@dataclass
class RankResult:
    """What a cell did on one rank."""

    rank: int
    ok: bool = False
    """Whether the cell ran to its end, without an error and without being unblocked."""
    error: RemoteError | None = None
    """What the cell raised; for a rank that was unblocked, MLX's error about the abort."""
    dead: str | None = None
    """Why the rank's process ended; None if it did not."""
    unblocked: str | None = None
    """The collective in which the rank was blocked when it was unblocked; None if it was not unblocked."""
    invalid: tuple[str, ...] = ()
    """Variables that were being computed when a collective was aborted: they are invalid."""
    unmarked: tuple[str, ...] = ()
    """Aborted collectives that could not be set to NaN: what was computed from them may look right."""
    settled: int = 0
    """All collectives up to this number were evaluated, as far as is known."""
    lines: int = 0
    """Number of lines printed, including lines that were cut."""
    nbytes: int = 0
    """Number of characters printed, including characters that were cut."""
    cut: Mapping[str, int] = field(default_factory=lambda: {"lines": 0, "bytes": 0})
    """How many lines and characters were printed but not kept."""
    _text: dict[str, list[str]] = field(init=False, default_factory=lambda: {"stdout": [], "stderr": []})
    _packed: Sequence[Buffer] = field(init=False, default=())
    _no_value: str | None = field(init=False, default=None)

    @property
    def stdout(self) -> str:
        """The text that the cell printed on the rank."""
        return "".join(self._text["stdout"])

    @property
    def stderr(self) -> str:
        """The text that the cell wrote to the error stream of the rank."""
        return "".join(self._text["stderr"])

    @property
    def value(self) -> Any:
        """The value of the cell's last expression. Raises CannotTravel if it could not be sent."""
        if self._no_value:
            raise CannotTravel(f"rank {self.rank}: {self._no_value}")
        return pickle_values.unpack(self._packed) if self._packed else None
