"""The runs of an experiment: combinations of its parameters, each with a name that is the same in every session."""

from __future__ import annotations

import hashlib
import inspect
import itertools
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from allranks.errors import UsageError

Grid = Mapping[str, object] | Sequence[Mapping[str, object]]
"""Maps parameter names to values, and all combinations are run; or a list of runs, one mapping each."""

WORLD = (
    "n",
    "backend",
    "connections",
    "hosts",
    "hostfile",
    "ranks_per_host",
    "env",
    "python",
    "cwd",
    "mpi_args",
    "check",
    "ordered",
)
"""Parameters that determine the world of a function: each is passed to `Cluster` as the argument of that name."""
TAKEN = ("run", "repeat", "status", "cause", "error", "seconds", "at", "attempts", "code", "folder")
"""Columns of the results; no parameter can have one of these names."""


@dataclass(frozen=True)
class Run:
    """One run of a combination of parameters. `repeat` numbers the runs of the same combination, from 0."""

    parameters: Mapping[str, object]
    repeat: int = 0

    @property
    def label(self) -> str:
        """Name of the run: ``n=2 backend=ring``."""
        again = f" repeat={self.repeat}" if self.repeat else ""
        return " ".join(f"{name}={_word(value)}" for name, value in self.parameters.items()) + again

    @property
    def key(self) -> str:
        """Text that is equal for equal parameters, in any order, and an equal `repeat`."""
        return json.dumps([sorted(self.parameters.items()), self.repeat])

    @property
    def folder(self) -> str:
        """Name of the run's folder."""
        readable = re.sub(r"[^\w.=,+-]+", "_", self.label.replace(" ", ","))[:80] or "run"
        return f"{readable}-{hashlib.sha1(self.key.encode()).hexdigest()[:6]}"

    @property
    def world(self) -> dict[str, Any]:
        """Arguments for `Cluster`."""
        return {name: value for name, value in self.parameters.items() if name in WORLD}


def _word(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, separators=(",", ":"))


def runs_of(grid: Grid, repeat: int) -> list[Run]:
    """Return all runs. The first name of a mapping varies slowest, so that runs on the same world can be adjacent.

    Raises UsageError if the grid or `repeat` is invalid.
    """
    if repeat < 1:
        raise UsageError(f"repeat={repeat}: must be at least 1.")
    found = [Run(parameters, number) for parameters in _combinations(grid) for number in range(repeat)]
    for run in found:
        for name, value in run.parameters.items():
            _check(name, value)
    if len({run.key for run in found}) < len(found):
        twice = next(run for i, run in enumerate(found) if run.key in {other.key for other in found[:i]})
        raise UsageError(f"the run {twice.label} is in the grid twice: use repeat=2 to run each combination twice.")
    return found


def _combinations(grid: Grid) -> Iterable[dict[str, object]]:
    if not isinstance(grid, Mapping):
        return [dict(each) for each in grid]
    columns = [_values(value) for value in grid.values()]
    if empty := [name for name, values in zip(grid, columns) if not values]:
        raise UsageError(f"grid: {empty[0]} has no values: nothing to run.")
    return [dict(zip(grid, values)) for values in itertools.product(*columns)]


def _values(value: object) -> list[object]:
    if isinstance(value, (str, bytes, Mapping)) or not hasattr(value, "__iter__"):
        return [value]
    return [each.item() if hasattr(each, "item") else each for each in value]


def _check(name: str, value: object) -> None:
    if not isinstance(name, str) or not name.isidentifier():
        raise UsageError(f"grid: {name!r} is not a valid parameter name.")
    if name in TAKEN:
        raise UsageError(f"grid: {name!r} is the name of a result column: rename the parameter.")
    try:
        json.dumps(value)
    except TypeError:
        raise UsageError(
            f"grid: {name} is a {type(value).__name__}. Parameters must be numbers, strings, booleans or lists of "
            "these, so that a run is recognized after a crash: pass a name and look it up in the function."
        ) from None


def takes_cluster(function: Callable[..., object], runs: Sequence[Run]) -> bool:
    """Whether a function is called with the cluster: its first parameter has no default and is not in the grid.

    Other functions run on the ranks.
    """
    first = next(iter(inspect.signature(function).parameters.values()), None)
    if first is None or first.kind is first.KEYWORD_ONLY or first.kind is first.VAR_KEYWORD:
        return False
    return first.default is first.empty and not any(first.name in run.parameters for run in runs)


def arguments_of(function: Callable[..., object], runs: Sequence[Run]) -> list[dict[str, object]]:
    """Return the arguments of `function` for each run, without the cluster. Raises UsageError if they do not fit."""
    parameters = list(inspect.signature(function).parameters.values())[takes_cluster(function, runs) :]
    takes_all = any(each.kind is each.VAR_KEYWORD for each in parameters)
    names = {each.name for each in parameters if each.kind in (each.POSITIONAL_OR_KEYWORD, each.KEYWORD_ONLY)}
    needed = {each.name for each in parameters if each.name in names and each.default is each.empty}
    called = getattr(function, "__name__", "the function")
    for run in runs:
        given = set(run.parameters)
        if (unknown := given - names - set(WORLD)) and not takes_all:
            raise UsageError(f"grid: neither {called} nor Cluster takes {', '.join(sorted(unknown))}.")
        if missing := needed - given:
            raise UsageError(f"grid: {called} needs {', '.join(sorted(missing))}.")
    return [{name: value for name, value in run.parameters.items() if takes_all or name in names} for run in runs]
