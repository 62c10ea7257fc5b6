"""What the cells of a rank have changed in its process beside variables: random states and the environment.

It travels in the file of the variables, under a name that no variable can have.
"""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

NAME = "(process state)"
OWN = ("MLX_", "OMPI_", "PMIX_", "PRTE_", "ALLRANKS_")
"""What environment variables begin with that belong to one process: its rank, its world, its parent."""


def taken(environment: Mapping[str, str]) -> dict[str, Any]:
    """The state of this process now; `environment` is how its environment was before any cell. In the main thread.

    MLX keeps a random state for each thread (0.32.4): it is that of the thread that calls.
    """
    import mlx.core as mx

    keys: Any = mx.random.state
    set_here = {name: value for name, value in os.environ.items() if environment.get(name) != value}
    state = {
        "random": random.getstate(),
        "mlx": [key.tolist() for key in keys],
        "set": {name: value for name, value in set_here.items() if not name.startswith(OWN)},
        "unset": [name for name in environment if name not in os.environ and not name.startswith(OWN)],
    }
    if numpy := sys.modules.get("numpy"):
        state["numpy"] = numpy.random.get_state()
    return state


def restore(state: Mapping[str, Any]) -> None:
    """Give this process what `taken` returned in another one. In the main thread."""
    import mlx.core as mx

    random.setstate(state["random"])
    [[high, low]] = state["mlx"]
    mx.random.seed(high << 32 | low)  # makes the key [high, low], and nothing else sets it (0.32.4)
    os.environ.update(state["set"])
    for name in state["unset"]:
        os.environ.pop(name, None)
    if "numpy" in state:
        with suppress(ImportError):  # another host may lack it
            import numpy

            numpy.random.set_state(state["numpy"])
