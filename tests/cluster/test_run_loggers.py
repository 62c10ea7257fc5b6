"""Runs in TensorBoard's, MLflow's and W&B's own files: the same numbers as ours."""

from __future__ import annotations

import json
import math
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from allranks.cluster.run_history import RunHistory
from allranks.cluster.run_loggers import points_of
from allranks.errors import UsageError
from allranks.head.state.cell_run import CellRun
from allranks.head.state.logged import Logged, Row
from allranks.messages.events import LogCall
from tests.notebook.test_watch import until

LOSSES = [1 / 3, math.pi * 1e-7, -2.5e20, 0.1 + 0.2, math.inf]
"""What a chart and every library must have alike."""


def history(*, step: float = 1.0) -> RunHistory:
    """One run of two ranks, whose losses differ by 1 at the first step, and that have all others alike."""
    runs, logged = RunHistory(), Logged()
    run = CellRun(1, "lr = 0.1\nname = 'a'; hf_token = 'abc'", (0, 1), "ring", on_first=runs.join)
    logged.follow(1, run.add)
    for rank in (0, 1):
        calls = [LogCall(1, step * n, 100.0 + n, {"loss": each}) for n, each in enumerate(LOSSES)]
        calls[0] = LogCall(1, 0.0, 100.0, {"loss": LOSSES[0] + rank})
        logged.take(rank, str(rank), 0, calls)
    run.end("ok")
    return runs


EXPECTED = [*((0, name, LOSSES[0] + more) for name, more in (("loss", 0.5), ("loss/min", 0), ("loss/max", 1)))] + [
    (step, "loss", value) for step, value in enumerate(LOSSES) if step
]


def test_points_are_those_of_the_chart() -> None:
    points = points_of(history()[1])
    found = [(int(point.step), *each) for point in points for each in point.values.items()]
    assert found == EXPECTED
    assert [point.at for point in points] == [100.0 + n for n in range(5)]


def test_of_a_step_that_a_rank_logged_twice_the_later_value_counts() -> None:
    run = CellRun(1, "", (0,), "ring")
    for at in (1.0, 2.0):
        run.add(Row(0, "loss", 1, 0, at, at))
    assert points_of(run) == [(0.0, 2.0, {"loss": 2.0})]


def test_a_rank_that_has_no_number_hides_those_of_others_nowhere() -> None:
    run = CellRun(1, "", (0, 1, 2), "ring")
    for rank, value in enumerate((2.0, math.nan, 1.0)):
        run.add(Row(rank, "loss", 1, 0, value, 0))
    ((_, _, values),) = points_of(run)
    assert math.isnan(values.pop("loss")) and values == {"loss/min": 1.0, "loss/max": 2.0}


def test_tensorboard_has_the_same_numbers(tmp_path: Path) -> None:
    pytest.importorskip("tensorboardX")
    Event = import_module("tensorboardX.proto.event_pb2").Event

    runs = history()
    assert runs.export(tmp_path, logger="tensorboard") == f"{tmp_path}: 1 run for tensorboard."
    (file,) = (tmp_path / "run 1").glob("events*")
    data, found, texts = file.read_bytes(), [], []
    while data:  # a record: its length, a checksum, the event, a checksum
        size = int.from_bytes(data[:8], "little")
        event = Event.FromString(data[12 : 12 + size])
        for value in event.summary.value:
            if value.HasField("simple_value"):
                found.append((event.step, value.tag, value.simple_value))
            else:
                texts.append(value.tensor.string_val[0].decode())
        data = data[16 + size :]
    # TensorBoard's format has 32 bits for a value.
    assert found == [(step, name, pytest.approx(value, rel=1e-6)) for step, name, value in EXPECTED]
    assert "- lr: 0.1\n" in texts[0] and "lr = 0.1" in texts[1] and "abc" not in "".join(texts)
    with pytest.raises(UsageError, match="run 1 has a run already: --force replaces it"):
        runs.export(tmp_path, logger="tensorboard")
    runs.export(tmp_path, logger="tensorboard", force=True)
    assert len(list((tmp_path / "run 1").glob("events*"))) == 1


@pytest.mark.slow
def test_mlflow_has_the_same_numbers(tmp_path: Path) -> None:
    mlflow = pytest.importorskip("mlflow")
    pytest.importorskip("sqlalchemy")
    history().export(tmp_path / "mlruns", logger="mlflow")
    client = mlflow.MlflowClient(tracking_uri=f"sqlite:///{tmp_path}/mlruns/mlflow.db")
    experiment = client.get_experiment_by_name("allranks")
    (run,) = client.search_runs([experiment.experiment_id])
    assert run.info.run_name == "run 1" and run.info.status == "FINISHED"
    assert run.data.params == {"lr": "0.1", "name": "a", "ranks": "2", "backend": "ring"}
    found = [
        (metric.step, name, metric.value)
        for name in ("loss", "loss/min", "loss/max")
        for metric in client.get_metric_history(run.info.run_id, name)
    ]
    largest = sys.float_info.max  # in place of infinity, in MLflow's databases
    assert sorted(found) == sorted((step, name, min(value, largest)) for step, name, value in EXPECTED)


def records(file: Path) -> list[Any]:
    """Those of a file of W&B. As in LevelDB's log, each has a checksum, its size, its type, and what it says."""
    data, found = file.read_bytes()[7:], []
    while len(data) > 7 and len(data) >= 7 + (size := int.from_bytes(data[4:6], "little")):
        assert data[6] == 1, "the record is in one piece"
        found.append(import_module("wandb.proto.wandb_internal_pb2").Record.FromString(data[7 : 7 + size]))
        data = data[7 + size :]
    return found


@pytest.mark.slow
def test_wandb_has_the_same_numbers(tmp_path: Path) -> None:
    pytest.importorskip("wandb")
    history().export(tmp_path, logger="wandb")
    (file,) = tmp_path.glob("wandb/offline-run-*/*.wandb")
    assert until(lambda: "exit" in [each.WhichOneof("record_type") for each in records(file)])  # a process writes it
    found, config = list[tuple[float, str, float]](), dict[str, Any]()
    for record in records(file):
        items = {each.key or each.nested_key[0]: json.loads(each.value_json) for each in record.history.item}
        found += [(items["step"], name, float(value)) for name, value in items.items() if name.startswith("loss")]
        config |= {each.key: json.loads(each.value_json) for each in record.run.config.update}
    assert sorted(found) == sorted(EXPECTED)
    assert {name: config[name] for name in ("lr", "name", "ranks")} == {"lr": 0.1, "name": "a", "ranks": 2}


def test_steps_between_whole_ones_are_refused_where_a_library_has_none(tmp_path: Path) -> None:
    pytest.importorskip("tensorboardX")
    with pytest.raises(UsageError, match=r"run 1 logged loss at step 0\.5: TensorBoard takes whole steps only"):
        history(step=0.5).export(tmp_path, logger="tensorboard")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("logger", "said"),
    [
        ("tensorboard", "tensorboardX is not installed here: pip install tensorboardX."),
        ("mlflow", "mlflow is not installed here: pip install mlflow."),
        ("wandb", "wandb is not installed here: pip install wandb."),
        ("excel", "unknown logger 'excel': choose from tensorboard, mlflow, wandb."),
    ],
)
def test_a_library_that_is_missing_is_named(
    logger: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(name: str, *_: object) -> None:
        raise ImportError(name)

    monkeypatch.setattr("allranks.cluster.run_loggers.import_module", missing)
    with pytest.raises(UsageError) as error:
        history().export(tmp_path, logger=logger)
    assert str(error.value) == said
