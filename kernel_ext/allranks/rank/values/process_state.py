"""The process state, besides variables, that the cells of a rank have changed: random states and the environment.

It is saved in the same file as the variables, under a name that no variable can have.
"""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from typing import Any, TypeAlias

NAME = "(process state)"
State: TypeAlias = Mapping[str, Any]
"""The result of `taken`: random states by library, and the environment variables that cells have set and unset."""
OF_LAUNCHERS = ("OMPI_", "PMIX_", "PRTE_")
"""Prefixes of environment variables that a launcher sets for one process only."""


def taken(environment: Mapping[str, str], of_world: Collection[str]) -> dict[str, Any]:
    """The state of this process now. Call this in the main thread: MLX has a random state for each thread (0.32.4).

    `environment` is the process's environment before any cell ran. Environment variables in `of_world`, which belong to
    the process's world, are left out, and so are variables that launchers set.
    """

    def is_set_by_cells(name: str) -> bool:
        changed = os.environ.get(name) != environment.get(name)
        return changed and name not in of_world and not name.startswith(OF_LAUNCHERS)

    return {
        **random_states(),
        "set": {name: value for name, value in os.environ.items() if is_set_by_cells(name)},
        "unset": [name for name in environment if name not in os.environ and is_set_by_cells(name)],
    }


def random_states() -> dict[str, Any]:
    """The random states of Python, MLX and, if loaded, NumPy. Call this in the main thread: MLX's are per thread."""
    import mlx.core as mx

    keys: Any = mx.random.state
    state: dict[str, Any] = {"random": random.getstate(), "mlx": [key.tolist() for key in keys]}
    numpy = sys.modules.get("numpy")
    if numpy and isinstance(found := numpy.random.get_state(), tuple):  # else a generator that the new process lacks
        name, words, *rest = found
        state["numpy"] = (name, words.tolist(), *rest)  # as a list, since the loading host may lack numpy
    return state


def restore(state: State) -> dict[str, str]:
    """Restore a state that `taken` returned in another process; return what failed, and why. In the main thread."""
    return _restored(state, {**_RANDOM, "os.environ": _environ})


def restore_random(state: State) -> dict[str, str]:
    """Restore what `random_states` returned, or a part of it; return what failed, and why. In the main thread."""
    return _restored(state, _RANDOM)


def _restored(state: State, parts: Mapping[str, Callable[[State], None]]) -> dict[str, str]:
    failed = {}
    for what, part in parts.items():
        try:
            part(state)
        except Exception as error:
            failed[f"the state of {what}"] = f"{type(error).__name__}: {error}"
    return failed


def _mlx(state: State) -> None:
    import mlx.core as mx

    if "mlx" not in state:
        return
    [[high, low]] = state["mlx"]
    mx.random.seed(high << 32 | low)  # sets the key to [high, low]; MLX has no other way to set it (0.32.4)


def _random(state: State) -> None:
    if "random" in state:
        random.setstate(state["random"])


def _numpy(state: State) -> None:
    if "numpy" in state:
        with suppress(ImportError):
            import numpy

            numpy.random.set_state(state["numpy"])


def _environ(state: State) -> None:
    os.environ.update(state["set"])
    for name in state["unset"]:
        os.environ.pop(name, None)


_RANDOM = {"mx.random": _mlx, "random": _random, "numpy.random": _numpy}
