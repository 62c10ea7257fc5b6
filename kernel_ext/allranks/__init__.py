"""allranks: run a notebook cell on every rank of an MLX world, and never lose it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ._bench_result import BenchResult
    from ._discover import discover
    from ._discovery import Discovery
    from ._doctor import doctor
    from ._result import CellResult, RankResult
    from ._timeline import Timeline
    from .cluster import Cluster
    from .experiment import Experiment, record
    from .rank.trace import mark

__version__ = "0.1.0"
__all__ = [
    "BenchResult",
    "CellResult",
    "Cluster",
    "Discovery",
    "Experiment",
    "RankResult",
    "Timeline",
    "__version__",
    "current",
    "discover",
    "doctor",
    "load_ipython_extension",
    "mark",
    "record",
]


def load_ipython_extension(ipython: Any) -> None:
    """``%load_ext allranks``: add ``%distributed``, ``%%distributed`` and ``%%rank``."""
    from ._magics import load

    load(ipython)


def unload_ipython_extension(ipython: Any) -> None:
    """``%unload_ext allranks``: end the cluster and take the magics away."""
    from ._magics import unload

    unload(ipython)


def current() -> Cluster | None:
    """The cluster that ``%distributed up`` started in this notebook, or None."""
    from IPython.core.getipython import get_ipython

    from ._magics import current as notebook_cluster

    shell = get_ipython()
    return notebook_cluster(shell) if shell is not None else None


def __getattr__(name: str) -> Any:
    # Importing allranks is instant; ipyparallel and ZeroMQ are imported with the first Cluster.
    if name == "Cluster":
        from .cluster import Cluster

        return Cluster
    if name == "discover":
        from ._discover import discover

        return discover
    if name == "Discovery":
        from ._discovery import Discovery

        return Discovery
    if name == "BenchResult":
        from ._bench_result import BenchResult

        return BenchResult
    if name == "doctor":
        from ._doctor import doctor

        return doctor
    if name in ("Experiment", "record"):
        from . import experiment

        return getattr(experiment, name)
    if name in ("CellResult", "RankResult"):
        from . import _result

        return getattr(_result, name)
    if name == "Timeline":
        from ._timeline import Timeline

        return Timeline
    if name == "mark":  # for modules that ranks import; in a cell it is there already
        from .rank.trace import mark

        return mark
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
