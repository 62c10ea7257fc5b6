"""The result of `heal`, `resize` and `rewire`: the world now, and what happened to each rank's variables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Literal

from allranks.errors import NotLoaded
from allranks.units import ranks_text
from allranks_backends.plan import alike, rank_label

UNLOADABLE = "cannot be loaded in a new process"


@dataclass(frozen=True)
class RankVariables:
    """What happened to the variables of one rank."""

    how: Literal["kept", "restored", "copied", "empty", "lost"]
    """``kept`` in the same process, ``restored`` from a checkpoint, ``copied`` from the rank `source`, ``empty`` if a
    new rank got none, or ``lost`` although they were saved."""
    source: int | None = None
    error: str | None = None
    """Why the rank has no variables, if it was meant to get some."""
    left: tuple[str, ...] = ()
    """Names that cannot be pickled."""
    unloadable: Mapping[str, str] = field(default_factory=dict)
    """Names that a trial process failed to load before any rank was ended, each with the reason."""
    half_computed: tuple[str, ...] = ()
    """Names that a blocked cell had set: they were not saved, since their values may be half computed."""
    not_loaded: Mapping[str, str] = field(default_factory=dict)
    """Names that were saved and could not be loaded, each with the reason."""
    invalid: tuple[str, ...] = ()
    """Names that the rank has but that may be invalid, since a collective was aborted or cannot run any more."""

    @property
    def missing(self) -> tuple[str, ...]:
        """Names that the rank, or its `source`, had and that the rank now lacks.

        Empty if the rank has no variables at all (see `error`).
        """
        return (*self.left, *self.unloadable, *self.half_computed, *self.not_loaded)

    @property
    def failed(self) -> bool:
        """Whether the rank lacks variables that it was meant to get."""
        return self.error is not None or bool(self.not_loaded)

    def __str__(self) -> str:
        excepting = f", except {text}" if (text := self.missing_text) else ""
        match self.how:
            case "kept":
                return "kept all variables" + (f", but {left}" if (left := _left(self.invalid)) else "")
            case "restored":
                return f"restarted with all variables{excepting}{self._doubtful}"
            case "copied":
                return f"got the variables of rank {self.source}{excepting}{self._doubtful}"
            case "lost":
                return f"lost all variables: they could not be loaded ({self.error})"
            case "empty":
                return "started empty" + (f" because {self.error}" if self.error else "")

    @property
    def missing_text(self) -> str:
        """Which variables are missing and why, in words; empty if none are."""
        parts = [
            f"{', '.join(self.left)}, which cannot be saved" if self.left else "",
            _listed(self.unloadable, UNLOADABLE),
            f"{', '.join(self.half_computed)}, which the blocked cell had set (possibly half computed)"
            if self.half_computed
            else "",
            _listed(self.not_loaded, "could not be loaded"),
        ]
        return " and ".join(filter(None, parts))

    @property
    def _doubtful(self) -> str:
        names = ", ".join(self.invalid)
        return f" (invalid, because a collective was aborted: {names})" if names else ""


@dataclass(frozen=True)
class SavedFiles:
    """Files on one host, one for each rank in `ranks`, with variables that the ranks' new processes lack."""

    ranks: tuple[int, ...]
    host: str
    paths: tuple[str, ...]
    """In the order of `ranks`; each file is named after its rank."""

    def __str__(self) -> str:
        """Say how to load the files."""
        on = "" if self.host == "localhost" else f" ({self.host})"
        path = PurePath(self.paths[0])
        ending = path.name.removeprefix(str(self.ranks[0]))
        which = f'"{path}"' if len(self.ranks) == 1 else f'f"{path.parent}/{{rank}}{ending}"'
        return f"To load on {rank_label(self.ranks)}{on}: import allranks; allranks.load_variables({which})"


@dataclass(frozen=True, repr=False)
class WorldChange:
    """What `heal`, `resize` or `rewire` did. Its text is what the magics print."""

    verb: Literal["heal", "resize", "rewire"]
    size: int
    """Number of ranks now."""
    backend: str
    """The collective runtime that the ranks use now."""
    generation: int
    """Number of the world, counted from the cluster's start."""
    changed: bool = True
    """False if there was nothing to do."""
    ranks: Mapping[int, RankVariables] = field(default_factory=dict)
    """What happened to each rank's variables; empty if nothing was changed."""
    files: tuple[SavedFiles, ...] = ()
    """Files with the variables that could not be loaded."""
    busy: tuple[int, ...] = ()
    """Ranks that still run a cell, if there was nothing to heal."""
    away: tuple[str, ...] = ()
    """Hosts that are out of reach, if there was nothing to heal: whether their ranks are alive is not known."""
    stopped_cells: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    """Maps the number of each running cell that had to be stopped to the ranks that ran it."""
    unused_source: int | None = None
    """The rank whose variables were to be copied, if there was no new rank to get them."""

    @property
    def missing(self) -> dict[int, tuple[str, ...]]:
        """Names of lost variables, for each rank that lost some but not all (see `RankVariables.error`)."""
        return {number: rank.missing for number, rank in self.ranks.items() if rank.missing}

    @property
    def failed(self) -> bool:
        """Whether ranks lack variables that they were meant to get."""
        return any(rank.failed for rank in self.ranks.values())

    def check(self) -> WorldChange:
        """Return this change; if it `failed`, raise NotLoaded, which holds it."""
        if self.failed:
            raise NotLoaded(str(self), self)
        return self

    def __str__(self) -> str:
        if not self.changed:
            return self._unchanged()
        opening = {
            "heal": "Healed the world",
            "resize": f"The world now has {ranks_text(self.size)}",
            "rewire": f"The world now runs on {self.backend}",
        }[self.verb]
        but = ", but some variables could not be loaded" if self.failed else ""
        stopped = [f"Stopped cell {cell} on {rank_label(ranks)}." for cell, ranks in self.stopped_cells.items()]
        return " ".join([f"{opening}{but}: {'; '.join(self._lines())}.", *stopped, *map(str, self.files)])

    __repr__ = __str__

    def _unchanged(self) -> str:
        if self.verb == "resize":
            return f"The world already has {ranks_text(self.size)}."
        verb = "is" if len(self.busy) == 1 else "are"
        busy = f"{rank_label(self.busy)} {verb}".capitalize()
        stuck = f" {busy} still busy. To stop the cell: %distributed interrupt." if self.busy else ""
        if self.away:
            are = "is" if len(self.away) == 1 else "are"
            return (
                f"Nothing to heal, as far as can be seen: {' and '.join(self.away)} {are} out of reach, and whether "
                f"the ranks there are alive is not known. The other ranks are alive.{stuck}"
            )
        return f"Nothing to heal: all ranks are alive and the world is whole.{stuck}"

    def _lines(self) -> list[str]:
        if self.verb == "rewire" and all(rank == RankVariables("kept") for rank in self.ranks.values()):
            return ["all ranks kept their variables"]
        texts = {number: str(rank) for number, rank in self.ranks.items()}
        lines = [f"{rank_label(members)} {text}" for text, members in alike(texts).items()]
        if self.unused_source is not None:
            lines.append(f"there are no new ranks, so nothing was copied from rank {self.unused_source}")
        return lines


def pending_text(names: Mapping[int, Sequence[str]], size: int) -> str:
    """Say that these variables, by rank, are invalid: they waited for collectives of an earlier world."""
    lines = [
        _left(each) + (f" ({rank_label(members)})" if len(members) < size else "")
        for each, members in alike({rank: tuple(found) for rank, found in names.items()}).items()
    ]
    return "; ".join(lines)


def _left(names: Sequence[str]) -> str:
    if not names:
        return ""
    was, its, it = ("was", "its", "it") if len(names) == 1 else ("were", "their", "them")
    return f"{', '.join(names)} {was} left pending and {its} collective cannot run any more: recompute {it}"


def _listed(failed: Mapping[str, str], what: str) -> str:
    return f"{', '.join(f'{name} ({why})' for name, why in failed.items())}, which {what}" if failed else ""
