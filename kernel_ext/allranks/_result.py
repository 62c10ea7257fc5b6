"""What a cell did: one result for each of its ranks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from allranks_backends._plan import rank_label

from .errors import CannotTravel, CellFailed, RemoteError
from .rank import values

if TYPE_CHECKING:
    from ._timeline import Timeline


@dataclass
class RankResult:
    """What a cell did on one rank."""

    rank: int
    ok: bool = False
    """It ran to its end."""
    error: RemoteError | None = None
    """What it raised; for a rank that was freed, MLX's complaint about that."""
    dead: str | None = None
    """Why the rank's process ended, if it did."""
    freed: str | None = None
    """The collective it waited in when it was freed."""
    void: tuple[str, ...] = ()
    """Variables that were being computed when a collective was broken off: they may hold garbage."""
    lines: int = 0
    """Lines printed, including those cut."""
    nbytes: int = 0
    """Characters printed, including those cut."""
    cut: Mapping[str, int] = field(default_factory=lambda: {"lines": 0, "bytes": 0})
    """What was printed but not kept."""
    _text: dict[str, list[str]] = field(init=False, default_factory=lambda: {"stdout": [], "stderr": []})
    _packed: Sequence[Any] = field(init=False, default=())
    _no_value: str | None = field(init=False, default=None)

    @property
    def stdout(self) -> str:
        """What it printed."""
        return "".join(self._text["stdout"])

    @property
    def stderr(self) -> str:
        """What it wrote to the error stream."""
        return "".join(self._text["stderr"])

    @property
    def value(self) -> Any:
        """The value of the cell's last expression. Raises CannotTravel where it could not be sent."""
        if self._no_value:
            raise CannotTravel(f"rank {self.rank}: {self._no_value}")
        return values.unpack(self._packed) if self._packed else None


class CellResult(Mapping[int, RankResult]):
    """What a cell did on each of its ranks; ``result[2].error``, ``result.ok``."""

    def __init__(self, cell: int, ranks: Mapping[int, RankResult], seconds: float, mismatch: str | None = None) -> None:
        self.cell = cell
        """Number of the cell, counted by the cluster."""
        self.seconds = seconds
        """How long it took."""
        self.mismatch = mismatch
        """The first collective on which the ranks disagreed (its result is garbage), in words."""
        self.timeline: Timeline | None = None
        """What each rank did when, of a cell that was recorded."""
        self._ranks = dict(ranks)

    @property
    def ok(self) -> bool:
        """Whether every rank ran the cell to its end."""
        return all(rank.ok for rank in self._ranks.values())

    @property
    def errors(self) -> dict[int, RemoteError]:
        """What ranks raised of their own; a rank that was freed from a collective is no culprit."""
        return {number: rank.error for number, rank in self._ranks.items() if rank.error and not rank.freed}

    def check(self) -> CellResult:
        """Return the result if all is well, else raise CellFailed."""
        if not self.ok:
            raise CellFailed(self.failure(), self.errors)
        return self

    def failure(self) -> str:
        """One sentence a failure: which ranks, what, where."""
        said: dict[str, list[int]] = {}
        for number, rank in self._ranks.items():
            if rank.dead:
                said.setdefault(f"died: {rank.dead}", []).append(number)
            elif rank.freed:
                culprit = any(other.dead or (other.error and not other.freed) for other in self._ranks.values())
                where = "for it" if culprit else f"in {rank.freed}"
                said.setdefault(f"waited {where} and had to be freed", []).append(number)
            elif rank.error:
                said.setdefault(f"raised {rank.error}", []).append(number)
            elif not rank.ok:
                # Where another is dead, heal ends and carries over by itself those that wait for it.
                dead = any(other.dead for other in self._ranks.values())
                mend = "heal" if dead else f"heal --kill {number}"
                said.setdefault(f"did not finish (%distributed {mend})", []).append(number)
        culprits_first = sorted(said.items(), key=lambda each: each[0].startswith("waited"))
        return "; ".join(f"{rank_label(ranks)} {what}" for what, ranks in culprits_first)

    def __getitem__(self, rank: int) -> RankResult:
        try:
            return self._ranks[rank]
        except KeyError:
            raise KeyError(f"the cell did not run on rank {rank}, only on {rank_label(list(self._ranks))}") from None

    def __iter__(self) -> Iterator[int]:
        return iter(self._ranks)

    def __len__(self) -> int:
        return len(self._ranks)

    def __repr__(self) -> str:
        how = "ok" if self.ok else self.failure()
        return f"<CellResult of {rank_label(list(self._ranks))}: {how}, {self.seconds:.2f} s>"
