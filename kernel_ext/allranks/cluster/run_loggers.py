"""Writes ended runs in the formats of TensorBoard, MLflow and W&B, with the libraries of these tools.

Each step gets the figures that a chart shows: the mean over the ranks and, if the ranks differ, minimum and maximum.
The libraries are imported when they are used, and are not dependencies.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

from allranks.errors import UsageError
from allranks.head.state.cell_run import CellRun

EXPERIMENT = "allranks"
"""Name of the MLflow experiment, and of the W&B project."""
AT_ONCE = 1_000
PARAMS_AT_ONCE = 100
"""Maximum numbers of metrics (`AT_ONCE`) and of parameters that MLflow accepts in one request."""


class Point(NamedTuple):
    """The values that are written for one step."""

    step: float
    at: float
    """Unix time in seconds of the last value at this step."""
    values: dict[str, float]
    """Values by name: ``loss`` is the mean; ``loss/min`` and ``loss/max`` are there if ranks differ."""


def points_of(run: CellRun) -> list[Point]:
    """The points of a run, by step. If a rank logged a name twice at a step, the later value counts."""
    by_step: dict[float, dict[str, dict[int, float]]] = {}
    at: dict[float, float] = {}
    for row in run.rows():
        by_step.setdefault(row.step, {}).setdefault(row.name, {})[row.rank] = row.value
        at[row.step] = row.at
    return [Point(step, at[step], dict(_over_ranks(by_step[step]))) for step in sorted(by_step)]


def _over_ranks(values: Mapping[str, Mapping[int, float]]) -> Iterable[tuple[str, float]]:
    for name, of_ranks in values.items():
        of_all = list(of_ranks.values())
        yield name, sum(of_all) / len(of_all)
        known = [value for value in of_all if not math.isnan(value)]
        if known and (len(known) < len(of_all) or min(known) != max(known)):
            yield f"{name}/min", min(known)
            yield f"{name}/max", max(known)


def to_tensorboard(runs: Sequence[CellRun], to: str, force: bool) -> None:
    """Write event files, in a folder for each run. Raises UsageError."""
    writer_of = _imported("tensorboardX", "torch.utils.tensorboard", install="tensorboardX").SummaryWriter
    folders = [Path(to).expanduser() / _folder(run) for run in runs]
    old = [file for folder in folders for file in folder.glob("events.out.tfevents.*")]
    if old and not force:
        raise UsageError(f"{old[0].parent} has a run already: --force replaces it.")
    _whole_steps(runs, "TensorBoard")
    for file in old:
        file.unlink()
    for run, folder in zip(runs, folders):
        with writer_of(str(folder)) as writer:
            for point in points_of(run):
                for name, value in point.values.items():
                    writer.add_scalar(name, value, int(point.step), walltime=point.at)
            writer.add_text("values", "\n".join(f"- {name}: {value}" for name, value in _about(run).items()))
            writer.add_text("code", "".join(f"    {line}\n" for line in run.code.splitlines()))


def _folder(run: CellRun) -> str:
    """A folder name that no other run has."""
    return re.sub(r"[^\w .=-]", "_", run.label)


def to_mlflow(runs: Sequence[CellRun], to: str, force: bool) -> None:
    """Write runs of the experiment ``allranks`` to ``mlflow.db`` in a folder, or to a tracking server."""
    _refuse_to_replace(force, "MLflow")
    mlflow = _imported("mlflow", install="mlflow")
    _whole_steps(runs, "MLflow")
    uri, artifacts = to, None
    if "://" not in to:  # MLflow 3.17 refuses to write plain folders
        _imported("sqlalchemy", install="mlflow")  # which mlflow-skinny lacks
        folder = Path(to).expanduser().absolute()
        folder.mkdir(parents=True, exist_ok=True)
        uri, artifacts = f"sqlite:///{folder}/mlflow.db", (folder / "artifacts").as_uri()
    client = mlflow.MlflowClient(tracking_uri=uri)
    known = client.get_experiment_by_name(EXPERIMENT)
    experiment = known.experiment_id if known is not None else client.create_experiment(EXPERIMENT, artifacts)
    entities = import_module("mlflow.entities")
    for run in runs:
        made = client.create_run(experiment, start_time=round(run.at * 1e3), run_name=run.name)
        identity = made.info.run_id
        about = {_named(name): str(value) for name, value in _about(run).items()}
        params = [entities.Param(name, value) for name, value in about.items()]
        metrics = [
            entities.Metric(_named(name), value, round(point.at * 1e3), int(point.step))
            for point in points_of(run)
            for name, value in point.values.items()
        ]
        for first in range(0, len(params), PARAMS_AT_ONCE):
            client.log_batch(identity, params=params[first : first + PARAMS_AT_ONCE])
        for first in range(0, len(metrics), AT_ONCE):
            client.log_batch(identity, metrics=metrics[first : first + AT_ONCE])
        status = {"ok": "FINISHED", "failed": "FAILED"}.get(run.status, "KILLED")
        client.set_terminated(identity, status, end_time=round((run.at + run.seconds) * 1e3))


def to_wandb(runs: Sequence[CellRun], to: str, force: bool) -> None:
    """Write offline runs, which ``wandb sync`` uploads."""
    _refuse_to_replace(force, "W&B")
    wandb = _imported("wandb", install="wandb")
    folder = Path(to).expanduser().absolute()
    folder.mkdir(parents=True, exist_ok=True)
    for run in runs:
        made = wandb.init(
            project=EXPERIMENT,
            name=run.name,
            dir=str(folder),
            mode="offline",
            config=_about(run),
            reinit="create_new",
            settings=wandb.Settings(console="off", silent=True, disable_git=True, save_code=False),
        )
        made.define_metric("*", step_metric="step")
        for point in points_of(run):
            made.log({**point.values, "step": point.step})
        made.finish(exit_code=0 if run.status == "ok" else 1)


Write = Callable[[Sequence[CellRun], str, bool], None]
LOGGERS: Mapping[str, Write] = {"tensorboard": to_tensorboard, "mlflow": to_mlflow, "wandb": to_wandb}
"""Maps a value of ``--as`` to the function that writes runs to a folder; its last argument is ``--force``."""


def _about(run: CellRun) -> dict[str, object]:
    return {**run.values, "ranks": len(run.ranks), "backend": run.backend}


def _refuse_to_replace(force: bool, whose: str) -> None:
    if force:
        raise UsageError(f"--force: {whose} adds runs to those that are there, and replaces none.")


def _whole_steps(runs: Sequence[CellRun], whose: str) -> None:
    """Raise UsageError if a run has steps that are not whole numbers."""
    for run in runs:
        for row in run.rows():
            if not row.step.is_integer():
                raise UsageError(f"{run.name} logged {row.name} at step {row.step:g}: {whose} takes whole steps only.")


def _named(name: str) -> str:
    """The name with characters that MLflow accepts."""
    return re.sub(r"[^\w\-./ ]", "_", name)


def _imported(*modules: str, install: str) -> ModuleType:
    """Import the first of these modules that is installed. Raises UsageError if none is."""
    for module in modules:
        try:
            return import_module(module)
        except ImportError:
            continue
    raise UsageError(f"{modules[0]} is not installed here: pip install {install}.")
