"""allranks: run a notebook cell on every rank of an MLX world, and never lose it."""

from __future__ import annotations

import gc
import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from types import FrameType

    from IPython.core.interactiveshell import InteractiveShell

    from .bench.bench_result import BenchResult
    from .cluster.cell_result import CellResult
    from .cluster.cluster import Cluster
    from .discovery.discover import discover
    from .discovery.discovery_result import Discovery
    from .discovery.doctor import doctor
    from .environments.setup import setup
    from .experiment.experiment import Experiment, record
    from .head.cell.rank_result import RankResult
    from .head.world.change import RankVariables, WorldChange
    from .messages.cell_options import CellOptions
    from .notebook.notify import Notifier
    from .rank.collectives.trace import mark
    from .rank.files.shared_names import shared
    from .rank.main_thread.steps import end_step
    from .rank.values.checkpoint import load_variables
    from .rank.world.membership import communicator
    from .timeline.timeline import Timeline

__version__ = "0.1.0"
__all__ = [
    "BenchResult",
    "CellOptions",
    "CellResult",
    "Cluster",
    "Discovery",
    "Experiment",
    "Notifier",
    "RankResult",
    "RankVariables",
    "Timeline",
    "WorldChange",
    "__version__",
    "communicator",
    "current",
    "discover",
    "doctor",
    "end_step",
    "load_ipython_extension",
    "load_variables",
    "mark",
    "record",
    "setup",
    "shared",
]


def load_ipython_extension(ipython: InteractiveShell) -> None:
    """``%load_ext allranks``: add ``%distributed``, ``%%distributed``, ``%%rank`` and ``%%local``, and completion."""
    _imported("magics.magics").load(ipython)


def unload_ipython_extension(ipython: InteractiveShell) -> None:
    """``%unload_ext allranks``: end the cluster and remove the magics. Does nothing if ``%reload_ext`` calls it."""
    from allranks.magics.magics import unload

    caller: FrameType | None = sys._getframe(1)
    while caller is not None and caller.f_code.co_name != "reload_extension":  # IPython calls this for both magics
        caller = caller.f_back
    if caller is None:
        unload(ipython)


def current(*, ended: bool = False) -> Cluster | None:
    """The cluster that ``%distributed up`` or ``attach`` gave this notebook, or None.

    With `ended`, the last one that ended if there is no other.
    """
    from IPython.core.getipython import get_ipython

    from allranks.magics.magics import current as notebook_cluster

    shell = get_ipython()
    return notebook_cluster(shell, ended) if shell is not None else None


FROM = {
    "BenchResult": "bench.bench_result",
    "CellOptions": "messages.cell_options",
    "CellResult": "cluster.cell_result",
    "Cluster": "cluster.cluster",
    "Discovery": "discovery.discovery_result",
    "Experiment": "experiment.experiment",
    "Notifier": "notebook.notify",
    "RankResult": "head.cell.rank_result",
    "RankVariables": "head.world.change",
    "Timeline": "timeline.timeline",
    "WorldChange": "head.world.change",
    "communicator": "rank.world.membership",
    "discover": "discovery.discover",
    "doctor": "discovery.doctor",
    "end_step": "rank.main_thread.steps",
    "load_variables": "rank.values.checkpoint",
    "mark": "rank.collectives.trace",
    "record": "experiment.experiment",
    "setup": "environments.setup",
    "shared": "rank.files.shared_names",
}
"""Maps each public name to its module, imported at first use: `import allranks` loads no ipyparallel, ZeroMQ or MLX."""


def __getattr__(name: str) -> Any:
    if name not in FROM:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(_imported(FROM[name]), name)


def __dir__() -> list[str]:
    return __all__


def _imported(module: str) -> ModuleType:
    """A module of this package. Its import collects no garbage: that would find nothing, and takes a tenth."""
    name = f"{__name__}.{module}"
    if name in sys.modules:
        return import_module(name)  # waits for a thread that is importing it
    enabled = gc.isenabled()
    try:
        gc.disable()
        return import_module(name)
    finally:
        if enabled:
            gc.enable()
