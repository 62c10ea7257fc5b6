"""Experiments: a function or a notebook, run over a grid of worlds and parameters, saved and resumable.

Built on papermill (parameters of notebooks), nbclient (their execution), pandas and Parquet (the results) and tqdm
(progress); this subpackage adds the loop and the worlds.
"""

from __future__ import annotations

import time
import warnings
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from allranks.cluster.cluster import Cluster
from allranks.errors import UsageError

from . import measured, notebook_run
from .compare_experiments import find_run, ratios
from .function_run import Function, call, on_ranks, record, source_of
from .grid import Grid, Run, arguments_of, runs_of, takes_cluster
from .runs_on_disk import Entry, RunRecord, table_of, written
from .worlds import Worlds

if TYPE_CHECKING:
    import pandas
    from matplotlib.axes import Axes

__all__ = ["Experiment", "record", "tell_of_world"]

AGAIN = ("failed", "changed", "all")


class Experiment:
    """Runs of a function or notebook over a grid, each saved when it is over; finished runs are not repeated.

    `run` is a function that returns a dict of results. It is called on every rank with the parameters that it takes
    (see `Cluster.apply`), and numbers are recorded as their mean over ranks. If its first parameter has no default and
    is not in the grid (``def train(cluster, batch)``), it is called here instead, with the live `Cluster` before the
    parameters. Or `run` is the path of a notebook. Its ``parameters`` cell is filled in; the notebook starts its own
    ranks and reports results with `record`. Without `run`, the results in `folder` can be read.

    `grid` maps names to values, and all combinations are run; or it is a list of runs, one mapping each. For a
    function, ``n``, ``backend``, ``connections`` and other arguments of `Cluster` determine the world on which it runs.
    With `fresh`, each run gets a new world; otherwise it gets the previous run's world, with its variables, if that
    world is as requested, still whole, and idle. With `busbw`, the bus bandwidth of each world is measured with arrays
    of 4 MiB, which takes a fraction of a second; the world of a notebook is always measured. `repeat` is how often each
    combination is run, `timeout` the seconds that one run may take (None: no limit).

    Results are in `folder` (default: ``runs/NAME``): ``results.parquet``, and for each run a folder with its log and
    executed notebook. Raises UsageError if the grid cannot be run or a library is missing.
    """

    def __init__(
        self,
        name: str,
        run: Function | str | Path | None = None,
        grid: Grid = (),
        *,
        folder: str | Path | None = None,
        fresh: bool = True,
        repeat: int = 1,
        timeout: float | None = None,
        busbw: bool = True,
    ) -> None:
        _need("pandas", "pyarrow", "tqdm")
        self.name = name
        self.folder = Path(folder) if folder is not None else Path("runs") / name
        self.runs = runs_of(grid, repeat)
        self._fresh, self._timeout, self._busbw = fresh, timeout, busbw
        self._record = RunRecord(self.folder)
        self._function: Function | None = None
        self._takes_cluster = False
        self._notebook: Path | None = None
        self._arguments: dict[str, dict[str, object]] = {}
        """Arguments of the function, by the run's key."""
        self._code = ""
        if callable(run):
            self._function = run
            self._takes_cluster = takes_cluster(run, self.runs)
            arguments = arguments_of(run, self.runs)
            self._arguments = {run.key: given for run, given in zip(self.runs, arguments)}
            self._code = source_of(run)
        elif run is not None:
            _need("papermill", "nbclient")
            self._notebook = Path(run)
            if not self._notebook.is_file():
                raise UsageError(f"notebook {run} not found.")
            notebook_run.check_parameters(self._notebook, self.runs)
            self._code = notebook_run.source_of(self._notebook)

    @property
    def table(self) -> pandas.DataFrame:
        """The results: one row for each finished run, in the grid's order, then runs of earlier grids.

        ``status`` is ``ok`` or ``failed``, and ``cause`` says why. ``seconds`` is how long the run took (for a
        function, without its world's start, unless that failed); ``attempts`` is how often it was started. For the
        columns ``world.`` see `measured.figures`.
        """
        return table_of(self._record.entries(self.runs))

    def run(self, *, again: str | None = None, progress: bool = True) -> pandas.DataFrame:
        """Execute the runs that have not finished yet, and return the `table`.

        If a run fails, its error is saved, the run counts as finished, and the next run begins.

        `again` repeats some runs: ``failed`` ones, ``changed`` ones (made by another version of the function or
        notebook), or ``all``. Ctrl-C stops the experiment; finished runs are saved. Raises Busy if another process runs
        the same experiment, and UsageError if there is no function or notebook, or `again` is invalid.
        """
        from tqdm.auto import tqdm

        if self._function is None and self._notebook is None:
            raise UsageError(f"{self.name}: no function or notebook to run.")
        if again is not None and again not in AGAIN:
            raise UsageError(f"invalid again={again!r}: use {', '.join(AGAIN)}.")
        with self._record.held():
            todo = [run for run in self.runs if self._is_due(run, again)]
            self._tell_of_changes(todo)
            done = len(self.runs) - len(todo)
            with (
                tqdm(total=len(self.runs), initial=done, desc=self.name, unit="run", disable=not progress) as bar,
                Worlds(self._fresh, self._busbw) as worlds,
            ):
                for run in todo:
                    bar.set_postfix_str(run.label)
                    self._run_one(run, worlds)
                    self._record.save_table(self.table)
                    bar.update()
            return self.table

    def _is_due(self, run: Run, again: str | None) -> bool:
        entry = self._record.done(run)
        if entry is None or again == "all":
            return True
        return entry["status"] == "failed" if again == "failed" else again == "changed" and entry["code"] != self._code

    def _tell_of_changes(self, todo: list[Run]) -> None:
        kept = [entry for run in self.runs if run not in todo and (entry := self._record.done(run)) is not None]
        if old := [entry["run"] for entry in kept if entry["code"] != self._code]:
            warnings.warn(
                f"{len(old)} of the {len(kept)} finished runs used another version of the code ({old[0]}, "
                "...): run(again='changed') repeats them.",
                stacklevel=3,
            )

    def _run_one(self, run: Run, worlds: Worlds) -> None:
        entry: Entry = {"attempts": self._record.begin(run), "at": time.time(), "code": self._code}
        if self._notebook is not None:
            began = time.monotonic()
            outcome = notebook_run.execute(self._notebook, run.parameters, self._record.place(run), self._timeout)
            seconds = time.monotonic() - began
        else:
            outcome, began = worlds.enter(run)
            seconds = time.monotonic() - began
            if outcome.error is None:
                began = time.monotonic()
                assert self._function is not None and worlds.cluster is not None
                cluster, function = worlds.cluster, self._function
                bound = partial(function, cluster) if self._takes_cluster else on_ranks(function, cluster)
                call(bound, cluster, self._arguments[run.key], self._timeout, outcome)
                seconds = time.monotonic() - began
                _write_log(worlds.cluster, self._record.place(run) / "log.parquet")
                found = worlds.cluster.measure()
                for name, value in found.logged.items():
                    outcome.results.setdefault(name, value)
                outcome.world |= measured.figures(worlds.cluster, found, outcome.world.get("busbw"))
        entry |= {"seconds": seconds, "results": outcome.results, "world": outcome.world}
        entry |= {"status": "failed" if outcome.error else "ok", "error": outcome.error, "cause": outcome.cause}
        self._record.finish(run, entry)

    def logged(self, run: object = None) -> pandas.DataFrame:
        """The values that ranks logged with ``log(...)`` in one run, or in all runs, with a column ``run``.

        `run` names a run as for `compare`; None means all.
        """
        import pandas

        entries = self._record.entries(self.runs)
        if run is not None:
            entries = [find_run(entries, run)]
        found = [(entry["run"], self.folder / entry["folder"] / "log.parquet") for entry in entries]
        frames = [pandas.read_parquet(path).assign(run=label) for label, path in found if path.exists()]
        return pandas.concat(frames, ignore_index=True) if frames else pandas.DataFrame()

    def compare(self, a: object, b: object) -> pandas.DataFrame:
        """The columns of the `table` in which two runs differ: one row each, with both values and ``b / a``.

        A run is named by its label (``n=2 backend=ring``), its row in the `table`, or a dict of parameters that only
        one run has. Raises UsageError if there is no such run, or several.
        """
        return ratios(self._record.entries(self.runs), a, b)

    def plot(self, x: str, y: str, *, by: str | None = None, ideal: str | None = "up", ax: Axes | None = None) -> Axes:
        """Draw column `y` over `x`: a line for each combination of the other parameters, or for each value of `by`.

        Points are means, bars show minimum and maximum. `ideal` is a dashed line from the first point: ``up``,
        in proportion to `x` (throughput), ``down``, in inverse proportion (seconds), or None. It is not drawn unless
        all values of `x` are positive numbers. Failed runs are left out. Returns matplotlib's Axes. Raises UsageError
        if a column does not exist or cannot be drawn, and for an invalid `ideal`.
        """
        _need("matplotlib")
        from .compare_experiments import draw

        return draw(self.table, self.runs, x, y, by, ideal, ax, self.name)

    def __repr__(self) -> str:
        done = [entry for run in self.runs if (entry := self._record.done(run)) is not None]
        failed = sum(entry["status"] == "failed" for entry in done)
        how = f", {failed} of them failed" if failed else ""
        return f"<Experiment {self.name!r}: {len(done)} of {len(self.runs)} runs done{how}, in {self.folder}>"


def tell_of_world(cluster: Cluster | None, log: str) -> None:
    """Record the figures of the notebook's cluster, and save its log as `log`; runs in the last cell of a notebook."""
    if cluster is None:
        return
    busbw, found = measured.busbw(cluster), cluster.measure()
    _write_log(cluster, Path(log))
    notebook_run.show_recorded(world=measured.figures(cluster, found, busbw), logged=found.logged)


def _write_log(cluster: Cluster, path: Path) -> None:
    if not (frame := cluster.logged()).empty:
        written(path, frame.to_parquet)


def _need(*modules: str) -> None:
    if missing := [module for module in modules if find_spec(module) is None]:
        raise UsageError(f"experiments need {', '.join(missing)}: pip install 'allranks[experiment]'.")
