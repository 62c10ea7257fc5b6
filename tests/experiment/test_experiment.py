"""Experiments: what is on record, what is run again, what is told of failures; with real ranks and real kernels."""

# ruff: noqa: F821  names that only a rank has
from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import mlx.core as mx
import nbformat
import numpy as np
import pytest

from allranks import Experiment
from allranks.cluster import measurements
from allranks.cluster.run_history import RUNS
from allranks.errors import Busy, UsageError
from allranks.experiment import measured
from allranks.experiment.function_run import _joined
from allranks.experiment.grid import runs_of, takes_cluster
from allranks.experiment.toml_file import read
from tests.waiting import comes_true

pandas = pytest.importorskip("pandas")
pytest.importorskip("papermill")

if TYPE_CHECKING:
    from allranks import Cluster
    from tests.jupyter import Notebook

rank: int
size: int
log: Any
"""Set on the ranks."""

TWELVE = """
import os, time
import allranks

def train(cluster, batch, rate):
    if os.environ.get("STOP") and (batch, rate) == (4, 0.1):
        open(os.environ["STOP"], "w").close()  # waits until somebody reads, who then kills this process
        time.sleep(600)
    cluster.run(f'''
for step in range(5):
    loss = mx.distributed.all_sum(mx.array({rate} / (step + 1)))
    mx.eval(loss)
    log(loss=loss, step=step)
''').check()
    if (batch, rate) == (2, 0.2):
        cluster.run("if rank == 1: raise ValueError('the shard is empty')\\n"
                    "mx.eval(mx.distributed.all_sum(mx.ones(3)))").check()
    if (batch, rate) == (8, 0.1):
        cluster.run("import os, signal\\nif rank == 1: os.kill(os.getpid(), signal.SIGKILL)\\n"
                    "mx.eval(mx.distributed.all_sum(mx.ones(3)))").check()
    with open("finished", "a") as file:
        file.write(f"{batch} {rate}\\n")
    return {"score": batch * rate}

experiment = allranks.Experiment(
    "twelve", train, {"n": 2, "backend": "ring", "batch": [1, 2, 4, 8], "rate": [0.1, 0.2, 0.3]}, fresh=False
)
"""


@pytest.mark.slow
def test_a_killed_notebook_goes_on_where_it_was(new_notebook: Callable[..., Notebook], tmp_path: Path) -> None:
    """Twelve runs, one of which fails and one of which kills a rank; the notebook is killed in the seventh."""
    stop = tmp_path / "stop"
    os.mkfifo(stop)
    begin = f"import os; os.chdir({str(tmp_path)!r})\n{TWELVE}"
    killed = new_notebook(STOP=str(stop))
    killed.ok(begin)
    killed.begin("experiment.run()")
    with stop.open():
        os.kill(killed.manager.provisioner.pid, signal.SIGKILL)  # type: ignore[union-attr]
    before = {path: path.stat().st_mtime_ns for path in tmp_path.glob("runs/twelve/*/run.json")}
    assert len(before) == 6
    assert len(pandas.read_parquet(tmp_path / "runs/twelve/results.parquet")) == 6

    again = new_notebook()
    again.ok(begin)
    again.ok("table = experiment.run()", within=200)
    table = pandas.read_parquet(tmp_path / "runs/twelve/results.parquet")
    assert len(table) == 12 and table["run"].nunique() == 12
    assert {path: path.stat().st_mtime_ns for path in before} == before, "what was done is not done again"
    assert table["attempts"].tolist() == [1] * 6 + [2] + [1] * 5
    finished = (tmp_path / "finished").read_text().splitlines()
    assert len(finished) == len(set(finished)) == 10
    failed = table[table["status"] == "failed"].set_index("run")
    raised, died = (failed.loc[f"n=2 backend=ring batch={run}"] for run in ("2 rate=0.2", "8 rate=0.1"))
    assert len(failed) == 2
    assert raised["cause"].startswith("rank 1 raised ValueError: the shard is empty (line 1)")
    assert re.match(r"rank 1 died: .*SIGKILL", died["cause"])
    assert table["loss"].tolist() == pytest.approx([2 * rate / 5 for rate in table["rate"]]), "as logged last"
    again.ok("assert len(experiment.logged()) == 12 * 2 * 5, len(experiment.logged())")
    again.close()


@pytest.mark.slow
def test_worlds_are_as_asked_kept_where_wanted_and_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measurements, "REPORTED_WITHIN", 60.0)  # the machine's description comes with a report
    seen: list[tuple[int, str, bool]] = []
    peaks: list[float] = []
    measure = measured.busbw

    def busbw(cluster: Cluster) -> float | None:
        peak = measure(cluster)
        peaks.append(peak or 0.0)
        return peak

    monkeypatch.setattr(measured, "busbw", busbw)

    def look(cluster: Cluster, tag: str) -> dict[str, Any]:
        kept = cluster.run("'held' in dir()\n").check()[0].value
        go = tmp_path / f"go-{len(seen)}"
        cell = cluster.begin(
            "import os, time\nheld = mx.ones(1000)\n"
            f"while rank == 1 and not os.path.exists({str(go)!r}): time.sleep(0.01)\n"
            "time.sleep(0.05 * rank)\nmx.eval(mx.distributed.all_sum(held))",
            timing=True,
        )
        if cluster.size == 2:
            assert comes_true(cluster, lambda now: now.ranks[0].state == "waiting", 60)
        go.touch()
        cell.finish(60).check()
        seen.append((cluster.size, tag, kept))
        return {"size": cluster.size, "tag": "mine", "list": [1, 2], "array": cluster.run("mx.array(2.5)")[0].value}

    experiment = Experiment("worlds", look, {"n": [1, 2], "tag": ["a", "b"]}, folder=tmp_path / "w", fresh=False)
    table = experiment.run(progress=False)
    assert seen == [(1, "a", False), (1, "b", True), (2, "a", False), (2, "b", True)]
    assert table["world.fresh"].tolist() == [True, False, True, False]
    assert table["array"].tolist() == [2.5] * 4 and table["result.tag"].tolist() == ["mine"] * 4
    two = table.iloc[2]
    assert two["world.start"] > 0 and two["world.busbw"] == peaks[-1] > 0 and two["world.rss"] > 1e7
    assert two["world.wait"] > 0.01 and "rank 1 was last in 1 of 1" in two["world.straggler"]
    assert two["world.topology"] == "ranks 0-1 on localhost, loopback" and two["world.backend"] == "ring"
    assert two["world.mlx"] and two["world.python"] and two["world.machine"]
    assert pandas.read_parquet(tmp_path / "w/results.parquet")["list"].tolist() == ["[1, 2]"] * 4
    other = experiment.compare({"n": 1, "tag": "a"}, "n=2 tag=a")
    assert other.loc["n", "b / a"] == 2 and list(other.columns) == ["n=1 tag=a", "n=2 tag=a", "b / a"]
    assert "tag" not in other.index
    with pytest.raises(UsageError, match="matches 2 runs: n=1 tag=a; n=1 tag=b"):
        experiment.compare({"n": 1}, 0)


def one_rank(cluster: Cluster, value: int) -> dict[str, float]:
    return {"double": cluster.run(f"{value} * 2").check()[0].value}


def shares(batch: int, rate: float = 0.5) -> dict[str, Any]:
    """Runs on the ranks, which set the names that this module lacks."""
    if batch == 8 and rank == 1:
        raise ValueError("the shard is empty")
    log(seen=mx.distributed.all_sum(mx.array(batch)).item(), step=0)
    return {"share": batch * rate + rank, "size": np.int64(size), "hosts": f"h{rank}", "same": "yes"}


@pytest.mark.slow
def test_a_function_runs_on_the_ranks_as_it_is(tmp_path: Path) -> None:
    table = Experiment("x", shares, {"n": 2, "batch": [2, 8]}, folder=tmp_path / "x", fresh=False).run(progress=False)
    assert table["status"].tolist() == ["ok", "failed"]
    row = table.iloc[0]
    assert (row["share"], row["size"], list(row["hosts"]), row["same"]) == (1.5, 2, ["h0", "h1"], "yes")
    assert row["seen"] == 4
    recorded = list(RUNS)[-1]  # also after the log was cleared for the next run
    assert (recorded.values, len(recorded.rows())) == ({"batch": 2, "rate": 0.5}, 2)
    line = shares.__code__.co_firstlineno + 3
    assert table.iloc[1]["cause"].startswith(f"rank 1 raised ValueError: the shard is empty (line {line} of ")


def test_numbers_of_ranks_are_averaged_and_other_values_that_differ_are_all_kept() -> None:
    assert _joined([1, 2]) == 1.5 and _joined([3, 3]) == 3
    assert _joined([True, False]) == [True, False] and _joined(["a", "b"]) == ["a", "b"]


def test_which_functions_get_the_cluster() -> None:
    runs = runs_of({"n": 2, "batch": [1]}, 1)

    def both(cluster: Cluster, batch: int) -> None: ...
    def batches(batch: int, rate: float = 1.0) -> None: ...
    def nothing() -> None: ...
    def default(rate: float = 1.0) -> None: ...

    assert [takes_cluster(each, runs) for each in (both, batches, nothing, default)] == [True, False, False, False]


@pytest.mark.slow
def test_failures_and_changed_code_are_run_again_when_asked(tmp_path: Path) -> None:
    ready = tmp_path / "ready"

    def train(cluster: Cluster, value: int) -> dict[str, float]:
        if value == 2 and not ready.exists():
            raise OSError("the file is not there yet")
        return one_rank(cluster, value)

    grid = {"n": 1, "value": [1, 2]}
    options: dict[str, Any] = {"folder": tmp_path / "again", "fresh": False, "busbw": False}
    experiment = Experiment("again", train, grid, **options)
    table = experiment.run(progress=False)
    assert table["status"].tolist() == ["ok", "failed"]
    assert re.fullmatch(r"OSError: the file is not there yet \(line \d+ of test_experiment.py\)", table["cause"][1])
    ready.touch()
    assert experiment.run(progress=False)["status"].tolist() == ["ok", "failed"], "not unasked"
    table = experiment.run(progress=False, again="failed")
    assert table["status"].tolist() == ["ok", "ok"] and table["attempts"].tolist() == [1, 2]
    changed = Experiment("again", one_rank, {**grid, "value": [1, 2, 3]}, **options)
    with pytest.warns(UserWarning, match="2 of the 2 finished runs used another version of the code"):
        table = changed.run(progress=False)
    assert table["attempts"].tolist() == [1, 2, 1] and table["double"].tolist() == [2, 4, 6]
    assert changed.run(progress=False, again="changed")["attempts"].tolist() == [2, 3, 1]
    assert "3 of 3 runs done" in repr(changed)


@pytest.mark.slow
def test_a_run_that_takes_too_long_is_stopped(tmp_path: Path) -> None:
    def endless(cluster: Cluster) -> None:
        cluster.run("while True: pass").check()

    experiment = Experiment("endless", endless, {"n": 1}, folder=tmp_path / "e", timeout=1.0, busbw=False)
    row = experiment.run(progress=False).iloc[0]
    assert (row["status"], row["error"], row["cause"]) == ("failed", "TimeoutError", "the run took longer than 1.0 s")
    assert row["seconds"] < 120


def test_what_cannot_be_run_is_refused_before_anything_starts(tmp_path: Path) -> None:
    def refused(grid: Any, function: Any = one_rank) -> str:
        with pytest.raises(UsageError) as raised:
            Experiment("bad", function, grid, folder=tmp_path / "bad")
        return str(raised.value)

    assert "neither one_rank nor Cluster takes batch" in refused({"n": 1, "value": 1, "batch": 2})
    assert "one_rank needs value" in refused({"n": [1, 2]})
    assert "'seconds' is the name of a result column" in refused({"value": 1, "seconds": 2})
    assert "value is a object" in refused({"value": object()})
    assert "value has no values" in refused({"value": []})
    assert "is in the grid twice" in refused({"value": [1, 1]})
    assert "notebook nowhere.ipynb not found" in refused({"value": 1}, "nowhere.ipynb")
    assert not (tmp_path / "bad").exists()


def test_two_processes_do_not_run_the_same_experiment(tmp_path: Path) -> None:
    experiment = Experiment("held", one_rank, {"n": 1, "value": 1}, folder=tmp_path)
    other = Experiment("held", one_rank, {"n": 1, "value": 1}, folder=tmp_path)
    with other._record.held(), pytest.raises(Busy, match=rf"process {os.getpid()} already runs the experiment"):
        experiment.run(progress=False)


def a_notebook(folder: Path) -> Path:
    cells = [
        nbformat.v4.new_code_cell("n = 1\nvalue = 0", metadata={"tags": ["parameters"]}),
        nbformat.v4.new_code_cell("import allranks\n%load_ext allranks\n%distributed up -n {n} --backend ring"),
        nbformat.v4.new_code_cell("%%distributed\nlog(loss=0.5 + rank, step=1)\nif size == 1: 1 / 0"),
        nbformat.v4.new_code_cell("allranks.record(double=2 * value)\n%distributed down"),
    ]
    path = folder / "train.ipynb"
    nbformat.write(nbformat.v4.new_notebook(cells=cells), path)
    return path


@pytest.mark.slow
def test_a_notebook_is_run_from_a_shell_with_its_outputs_kept(tmp_path: Path) -> None:
    a_notebook(tmp_path)
    (tmp_path / "nb.toml").write_text('notebook = "train.ipynb"\n[grid]\nn = [2, 1]\nvalue = 7\n')

    def shell() -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "allranks", "experiment", str(tmp_path / "nb.toml")]
        return subprocess.run(command, capture_output=True, text=True, timeout=250)

    done = shell()
    assert done.returncode == 1, done.stderr
    assert "ZeroDivisionError" in done.stdout and "2 of 2 runs done, 1 of them failed" in done.stdout
    table = pandas.read_parquet(tmp_path / "runs/nb/results.parquet")
    ok, failed = table.iloc[0], table.iloc[1]
    assert (ok["double"], ok["loss"], ok["world.size"]) == (14, 1.0, 2) and ok["world.start"] > 0
    assert re.fullmatch(r"rank 0 raised ZeroDivisionError.* \(in code cell 4: %%distributed\)", failed["cause"])
    assert (failed["world.size"], failed["loss"]) == (1, 0.5), "the world and its log are told of all the same"
    executed = nbformat.read(tmp_path / "runs/nb" / ok["folder"] / "notebook.ipynb", as_version=4)
    assert "value = 7" in executed.cells[1].source and executed.cells[-1].source.startswith("allranks.record")
    assert (tmp_path / "runs/nb" / ok["folder"] / "log.parquet").exists()
    assert "0/2" not in (again := shell()).stderr and again.returncode == 1


@pytest.mark.slow
def test_a_notebook_in_another_folder_leaves_its_log_with_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sub").mkdir()
    monkeypatch.chdir(tmp_path)
    experiment = Experiment("away", a_notebook(Path("sub")), {"n": 1, "value": 7})
    row = experiment.run(progress=False).iloc[0]
    assert (row["world.size"], row["loss"]) == (1, 0.5)
    assert experiment.logged()["value"].tolist() == [0.5]


def test_a_parameter_that_the_notebook_has_not_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"train\.ipynb has no parameter valeu; it has n, value"):
        Experiment("typo", a_notebook(tmp_path), {"n": 1, "valeu": 1}, folder=tmp_path)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[gird]\nn = 1", "unknown key 'gird'. Did you mean 'grid'?"),
        ('name = "x"', "set what to run"),
        ('function = "nowhere.py:train"', "use FILE:FUNCTION"),
        ("grid = [", "bad.toml"),
        ("notebook = 3", "bad.toml: notebook takes a text, not 3."),
        ('name = "x"\nrepeat = "y"', "repeat takes a whole number, not 'y'."),
        ('name = "x"\nrepeat = true', "repeat takes a whole number, not True."),
        ('name = "x"\ntimeout = "1 h"', "timeout takes seconds, not '1 h'."),
    ],
)
def test_a_slip_in_the_file_is_told(tmp_path: Path, text: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    from allranks.__main__ import main

    (tmp_path / "bad.toml").write_text(text)
    assert main(["experiment", str(tmp_path / "bad.toml")]) == 2
    assert said in capsys.readouterr().err


def test_a_file_that_is_not_there_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from allranks.__main__ import main

    assert main(["experiment", str(tmp_path / "none.toml")]) == 2
    assert "none.toml cannot be read: No such file or directory." in capsys.readouterr().err


def test_modules_beside_the_script_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "beside_it.py").write_text("def train(cluster):\n    return {}\n")
    (tmp_path / "run.py").write_text("from beside_it import train\n")
    (tmp_path / "it.toml").write_text('function = "run.py:train"\n[grid]\nn = 1\n')
    assert read(tmp_path / "it.toml").name == "it"


@pytest.mark.slow
def test_scaling_is_drawn_with_its_ideal_line(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib").use("Agg")
    for n, rate in ((1, 100.0), (2, 180.0), (4, 300.0)):
        place = tmp_path / f"n={n}"
        place.mkdir()
        entry = {"run": f"n={n}", "parameters": {"n": n}, "repeat": 0, "results": {"rate": rate}, "status": "ok"}
        (place / "run.json").write_text(json.dumps(entry))
    axes = Experiment("seen", folder=tmp_path).plot("n", "rate")
    lines: list[Any] = [np.asarray(line.get_ydata()).tolist() for line in axes.lines]
    assert [100.0, 180.0, 300.0] in lines and [100.0, 200.0, 400.0] in lines
    legend = axes.get_legend()
    assert (
        legend is not None
        and axes.get_xlabel() == "n"
        and [text.get_text() for text in legend.get_texts()] == ["rate", "ideal"]
    )
    with pytest.raises(UsageError, match="no column 'speed'"):
        Experiment("seen", folder=tmp_path).plot("n", "speed")


@pytest.mark.slow
def test_worlds_that_are_lists_of_hosts_are_drawn_too(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib").use("Agg")
    for number, hosts in enumerate((["mac1"], ["mac1", "mac2"])):
        place = tmp_path / str(number)
        place.mkdir()
        results = {"rate": number + 1.0, "said": "fast"}
        entry = {"run": str(hosts), "parameters": {"hosts": hosts}, "repeat": 0, "results": results, "status": "ok"}
        (place / "run.json").write_text(json.dumps({**entry, "world": {"size": len(hosts)}}))
    seen = Experiment("seen", grid=[{"hosts": ["mac1"]}, {"hosts": ["mac1", "mac2"]}], folder=tmp_path)
    assert [text.get_text() for text in seen.plot("hosts", "rate").get_xticklabels()] == [
        '["mac1"]',
        '["mac1", "mac2"]',
    ]
    labels = seen.plot("world.size", "rate").get_legend_handles_labels()[1]
    assert [label for label in labels if "ideal" not in label] == ['hosts=["mac1"]', 'hosts=["mac1", "mac2"]']
    with pytest.raises(UsageError, match="said is not numeric"):
        seen.plot("world.size", "said")


def test_a_missing_library_is_named_with_its_pip_line(tmp_path: Path) -> None:
    code = (
        "from importlib.machinery import PathFinder\nfind = PathFinder.find_spec\n"
        "PathFinder.find_spec = classmethod(lambda cls, name, *a: None if name == 'pyarrow' else find(name, *a))\n"
        "import allranks\ntry: allranks.Experiment('x')\nexcept allranks.errors.UsageError as error: print(error)"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert run.stdout.strip() == "experiments need pyarrow: pip install 'allranks[experiment]'.", run.stderr
