"""Cells that log are runs: what is known of them, on real ranks, and what can be done with them."""

from __future__ import annotations

import csv
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from allranks.cluster import cells, run_history
from allranks.cluster import cluster as cluster_module
from allranks.cluster.run_history import COLUMNS, MOST_RUNS, RunHistory
from allranks.errors import CellInterrupted, CellTimeout, UsageError
from allranks.head.state.cell_run import CellRun
from allranks.head.state.logged import Row
from tests.notebook.test_watch import until

if TYPE_CHECKING:
    from allranks import Cluster

TRAIN = "lr = {lr}\nfor step in range(4):\n    log(loss=lr * step + rank, step=step)"


@pytest.fixture(autouse=True)
def runs(monkeypatch: pytest.MonkeyPatch) -> RunHistory:
    """Without the runs of other tests."""
    fresh = RunHistory()
    for module in (cells, run_history, cluster_module):
        monkeypatch.setattr(module, "RUNS", fresh)
    return fresh


def made(runs: RunHistory, code: str = "lr = 0.1", name: str = "loss", value: float = 1.0) -> CellRun:
    """A run without ranks."""
    run = CellRun(1, code, (0, 1), "ring", on_first=runs.join)
    run.add(Row(0, name, 1, 0.0, value, 0.0))
    run.end("ok")
    return run


def test_a_cell_that_logs_is_a_run_and_another_is_none(ring2: Cluster, runs: RunHistory) -> None:
    ring2.run("x = 1").check()
    ring2.run(TRAIN.format(lr=0.5)).check()
    (run,) = ring2.runs
    assert (run.number, run.name, run.status, run.ranks, run.backend) == (1, "run 1", "ok", (0, 1), "ring")
    assert run.values == {"lr": 0.5} and run.code == TRAIN.format(lr=0.5) and 0 < run.seconds < 60
    loss = run.metrics["loss"]
    assert (loss.last, loss.mean, loss.min, loss.max, loss.step, loss.count) == ({0: 1.5, 1: 2.5}, 2.0, 0, 2.5, 3, 8)


def test_a_timed_run_knows_its_share_of_collectives(ring2: Cluster, runs: RunHistory) -> None:
    late = "import time\nfor step in range(4):\n    if rank: time.sleep(0.05)\n"
    late += "    log(loss=mx.distributed.all_sum(mx.ones(1)).item())"
    ring2.run(late, timing=True).check()
    ring2.run(late).check()
    share = runs[1].collectives
    assert share is not None and share.waiting is not None and 0.1 < share.waiting <= share.total < 1
    assert runs[2].collectives is None
    assert str(runs.compare(1)).splitlines()[0].endswith(f", ring, {share}")


def test_the_table_says_what_changed(ring2: Cluster, runs: RunHistory) -> None:
    for lr in (0.1, 0.2):
        ring2.run(TRAIN.format(lr=lr)).check()
    ring2.run("log(other=1)").check()
    heading, *rows = str(ring2.runs).splitlines()
    assert heading.split("  ")[0] == "run" and "loss" in heading and "other" in heading
    assert [row.rstrip().endswith("lr 0.1 → 0.2") for row in rows] == [False, True, False]
    html = ring2.runs._repr_html_()
    assert "lr 0.1 → 0.2" in html and html.count("<tr>") == 4


def test_how_runs_end(ring2: Cluster, runs: RunHistory, patient_stop: None) -> None:
    ring2.run(TRAIN.format(lr=0.1) + "\n1 / 0")
    with pytest.raises(CellTimeout):
        ring2.run("import time\nlog(loss=1)\nfor _ in range(600): time.sleep(0.1)", timeout=0.5)
    cell = ring2.begin("log(loss=1)\nfor _ in range(600): time.sleep(0.1)")
    assert until(lambda: len(runs) == 3) and runs[3].status == "running"
    ring2.interrupt()
    assert not cell.finish().ok
    cell = ring2.begin("log(loss=1)\nfor _ in range(600): time.sleep(0.1)")
    assert until(lambda: len(runs) == 4)
    cell.stop()
    with pytest.raises(CellInterrupted):
        cell.finish()
    cell = ring2.begin("log(loss=1)\nif rank: mx.eval(mx.distributed.all_sum(mx.ones(1)))\nwhile True: time.sleep(0.1)")
    assert until(lambda: len(runs) == 5 and "all_sum" in ring2.snapshot.ranks[1].doing)
    ring2.interrupt()
    cell.finish()
    assert [run.status for run in runs] == ["failed", "stopped", "stopped", "stopped", "stopped"]


def test_arguments_of_a_function_are_values_of_its_run(ring2: Cluster, runs: RunHistory) -> None:
    def train(lr: float, steps: int = 3, **options: object) -> None:
        for _ in range(steps):
            log(loss=lr)  # type: ignore[name-defined]  # noqa: F821

    for lr in (0.1, 0.2):
        ring2.apply(train, lr, seed=1, model={"dim": 8, "layers": None}, token="abc")
    assert runs[1].values == {"lr": 0.1, "steps": 3, "seed": 1, "model.dim": 8}
    assert runs[2].changes_text(runs[1]) == "lr 0.1 → 0.2"


def test_values_are_there_when_an_experiment_has_begun_its_next_run(ring2: Cluster, runs: RunHistory) -> None:
    ring2.run("log(loss=1)", ranks=0).check()
    ring2._live.logs.clear()
    assert ring2.logged().empty and [row.value for row in runs[1].rows()] == [1.0]


def test_text_that_may_be_secret_is_no_value() -> None:
    run = CellRun(1, "hf_token = 'abc'; api_key = 'x'; max_tokens = 5; tokenizer = 'a'", (0,), "ring")
    assert run.values == {"max_tokens": 5, "tokenizer": "a"}


def test_of_very_many_values_earlier_runs_keep_every_second(runs: RunHistory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_history, "MOST_POINTS", 250)
    for count in (200, 100, 400):
        run = CellRun(1, "", (0,), "ring", on_first=runs.join)
        for step in range(count):
            run.add(Row(0, "loss", 1, step, step, step))
    made(runs)
    assert [run.points for run in runs] == [50, 100, 100, 1]
    assert [row.step for row in runs[1].rows()] == list(range(0, 200, 4)) and runs[1].metrics["loss"].count == 200


def test_one_run_is_compared_with_the_one_before_that_logged_the_same(runs: RunHistory) -> None:
    made(runs)
    made(runs, name="other")
    made(runs, code="lr = 0.2\nf()", value=float("nan"))
    compared = runs.compare(3)
    assert compared.before is runs[1] and [tuple(each) for each in compared.changes] == [("lr", 0.1, 0.2)]
    text = str(compared)
    assert text.startswith("run 3: ok, ") and "last of run 1" in text.splitlines()[1]
    assert "nan" in text and "compared with run 1: lr 0.1 → 0.2, 1 more line changed" in text
    assert text.splitlines()[-4:] == ["@@ -1 +1,2 @@", "-lr = 0.1", "+lr = 0.2", "+f()"]
    assert "+f()" in compared._repr_html_()
    assert runs.compare(1).before is None and "changed" not in str(runs.compare(1))
    assert runs.compare("3", "2").before is runs[2]


def test_runs_are_renamed_hidden_and_shown(runs: RunHistory) -> None:
    for _ in range(3):
        made(runs)
    runs.rename(2, "baseline")
    runs.hide("baseline", 1)
    assert runs["baseline"].number == 2 and runs["2"] is runs["run 2"] is runs[2]
    assert [line.split("  ")[0] for line in str(runs).splitlines()] == [
        *("run", "run 3", "run 1 (hidden)", "2 baseline (hidden)")
    ]
    assert runs._repr_html_().count("opacity:0.6") == 2 * 7
    runs.show(2)
    assert [run.hidden for run in runs] == [True, False, False]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("baseline", "another run has it"),
        ("3", "it is a number"),
        ("run 3", "it is a number"),
        ("", "in one line"),
        ("run", "other than 'run'"),
        ("a\nb", "in one line"),
    ],
)
def test_names_that_cannot_be(runs: RunHistory, name: str, said: str) -> None:
    made(runs)
    made(runs)
    runs.rename(1, "baseline")
    with pytest.raises(UsageError, match=said):
        runs.rename(2, name)
    with pytest.raises(UsageError, match=r"no run '7'\. Runs: 1 baseline, run 2"):
        runs.hide(7)


def test_the_last_hundred_runs_are_kept(runs: RunHistory) -> None:
    assert str(runs).startswith("No runs yet")
    with pytest.raises(UsageError, match="No cell has logged anything yet"):
        runs[1]
    for _ in range(MOST_RUNS + 3):
        made(runs)
    assert len(runs) == MOST_RUNS and next(iter(runs)).number == 4


def test_values_are_exported_as_they_were_logged(ring2: Cluster, runs: RunHistory, tmp_path: Path) -> None:
    import pandas

    ring2.run("for step in range(3): log(loss=0.1 * step + rank, bad=float('nan'), step=step)").check()
    ring2.run("log(loss=float('-inf'), step=0.5)", ranks=1).check()
    runs.rename(2, "baseline")
    table = ring2.runs.frame()
    assert list(table.columns) == list(COLUMNS) and len(table) == 13
    assert table[(table["rank"] == 1) & (table["run"] == 1) & (table["metric"] == "loss")]["value"].tolist() == [
        *(0.1 * step + 1 for step in range(3))
    ]
    assert runs.export(tmp_path / "all.parquet").endswith("all.parquet: 13 values of 2 runs.")
    pandas.testing.assert_frame_equal(pandas.read_parquet(tmp_path / "all.parquet"), table, check_dtype=False)
    runs.export(tmp_path / "all.csv")
    with open(tmp_path / "all.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [float(row["value"]) for row in rows] == pytest.approx(table["value"].tolist(), rel=0, nan_ok=True)
    assert rows[-1] == {**rows[-1], "run": "2", "name": "baseline", "rank": "1", "step": "0.5", "value": "-inf"}
    assert runs.export(tmp_path / "one.csv", "baseline").endswith("one.csv: 1 value of 1 run.")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["all.csv", "all.parquet", "one.csv"]


def test_the_example_of_the_documentation(
    ring2: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = (Path(__file__).parents[2] / "docs" / "api.md").read_text(encoding="utf-8")
    example = text.partition("{ #runs }")[2].partition("```python\n")[2].partition("```")[0]
    monkeypatch.chdir(tmp_path)
    exec(example.replace("allranks.Cluster(n=2)", "the_cluster"), {"the_cluster": nullcontext(ring2)})
    assert "compared with run 1: lr 0.25 → 0.5" in capsys.readouterr().out
    assert (tmp_path / "runs.csv").read_text().count("\n") == 13


def test_what_cannot_be_exported_is_refused_and_harms_nothing(
    runs: RunHistory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "runs.csv"
    with pytest.raises(UsageError, match="no runs to export"):
        runs.export(file)
    made(runs)
    with pytest.raises(UsageError, match=r"runs\.txt: use a name that ends in \.csv or \.parquet"):
        runs.export(tmp_path / "runs.txt")
    with pytest.raises(UsageError, match=r"cannot write .*: No such file or directory"):
        runs.export(tmp_path / "none" / "runs.csv")
    file.write_text("mine")
    with pytest.raises(UsageError, match=r"runs\.csv exists: --force replaces it"):
        runs.export(file)
    assert file.read_text() == "mine"
    runs.export(file, force=True)
    assert file.read_text().startswith("run,name,rank")
    monkeypatch.setattr(run_history, "find_spec", lambda _name: None)
    with pytest.raises(UsageError, match="pip install pandas pyarrow"):
        runs.export(tmp_path / "runs.parquet")


def test_what_earlier_cells_have_set_is_a_value_of_a_run_that_reads_it(ring2: Cluster, runs: RunHistory) -> None:
    train = "power = {power}\ndef train(step, power=power):\n    log(loss=rate * step ** power)"
    loop = "step = 1\nfor _ in range(steps): train(step)\nmodel = Model()"
    ring2.run(
        "steps, rate, unused, step, large = 2, 0.5, 1, 9, 2 ** 70\n"
        "class Model:\n    dim = 4\n    def __call__(self, x): return x * rate * large"
    ).check()
    for before in (train.format(power=1), "rate = 0.25", train.format(power=2), "Model.dim = 8", "steps = [1]", "pass"):
        ring2.run(before).check()
        ring2.run(loop if before != "steps = [1]" else loop.replace("range(steps)", "steps")).check()
        loop = loop.replace("range(steps)", "steps") if before == "steps = [1]" else loop
    values = runs[1].values
    assert {name: values[name] for name in values if "()" not in name} == {"rate": 0.5, "step": 1, "steps": 2}
    assert sorted(name for name in values if "()" in name) == ["Model()", "train()"]
    said = [runs[number + 1].changes_text(runs[number]) for number in range(1, 6)]
    assert said == [
        *("rate 0.5 → 0.25", "train() changed", "Model() changed"),
        *("steps changed, 1 more line changed", "same code"),
    ]
