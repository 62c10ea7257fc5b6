"""``%distributed runs`` in a notebook: from the cells that log to a file."""

from __future__ import annotations

from pathlib import Path

from tests.jupyter import Notebook

TRAIN = "%%distributed\nlr = {lr}\nfor step in range(5): log(loss=lr * step, step=step)"
FORGET = """
import allranks.cluster.run_history as history, allranks.notebook.cell_curves as cell_curves
history.RUNS._runs.clear(); history.RUNS._count = 0; cell_curves.CellCurves._ended.clear()
"""


def table(kernel: Notebook) -> list[str]:
    """The first columns of the table, and its last one."""
    (text,) = kernel.ok("%distributed runs").mime("text/plain")
    return [f"{line.split('  ')[0]}|{line.rsplit('  ')[-1].strip()}" for line in text.splitlines()[1:]]


def test_runs_from_the_cell_to_a_file(kernel: Notebook, tmp_path: Path) -> None:
    kernel.ok(FORGET)
    kernel.run("%distributed down")
    assert "No runs yet" in kernel.ok("%distributed runs").all
    kernel.ok("%distributed up -n 1")
    kernel.ok(TRAIN.format(lr=0.1))
    kernel.ok("%distributed down")
    kernel.ok("%distributed up -n 1")
    second = kernel.ok(TRAIN.format(lr=0.2))
    (svg,) = second.mime("image/svg+xml")
    assert "run 1: lr 0.1</title>" in svg and ">run 1: lr 0.1</text>" in svg
    assert [output["metadata"]["image/svg+xml"]["alt"] for output in second.outputs if "metadata" in output] == [
        second.mime("text/plain")[0] + "; pale: run 1: lr 0.1"
    ]
    assert table(kernel)[1].endswith("|lr 0.1 → 0.2")
    kernel.ok("%distributed runs --rename 1 baseline")
    kernel.ok("%distributed runs --hide baseline")
    assert [line.split("|")[0] for line in table(kernel)] == ["run 2", "1 baseline (hidden)"]
    (third,) = kernel.ok(TRAIN.format(lr=0.3)).mime("image/svg+xml")
    assert "run 2: lr 0.2" in third and "baseline" not in third
    kernel.ok("%distributed runs --show 1")
    kernel.ok("%distributed runs --hide run 3")
    assert [line.split("|")[0] for line in table(kernel)] == ["1 baseline", "run 2", "run 3 (hidden)"]
    kernel.ok("%distributed runs --show run 3")
    kernel.ok("%distributed runs --rename run 3 third")
    assert table(kernel)[-1].startswith("3 third|")
    kernel.ok("%distributed runs --rename third run 3")
    (one,) = kernel.ok("%distributed runs run 3 baseline").mime("text/plain")
    assert "+lr = 0.3" in one and "compared with baseline: lr 0.1 → 0.3" in one
    file = tmp_path / "runs.csv"
    assert kernel.ok(f"%distributed runs --export {file} 3 baseline").stdout == f"{file}: 10 values of 2 runs.\n"
    assert "exists: --force replaces it" in kernel.run(f"%distributed runs --export {file}").error
    assert kernel.ok(f"%distributed runs --export {file} --force").stdout == f"{file}: 15 values of 3 runs.\n"
    kernel.ok("%%distributed --no-wait\nimport time\nlog(late=1)\ntime.sleep(600)")
    kernel.ok("while len(history.RUNS) < 4: pass")
    assert kernel.ok("print(history.RUNS[4].status)").stdout == "running\n"
    kernel.ok("%distributed down")
    assert kernel.ok("print(history.RUNS[4].status)").stdout == "stopped\n"


def test_what_makes_no_sense_is_refused(kernel: Notebook) -> None:
    kernel.ok(FORGET)
    for line, said in (
        ("9", "no run '9'. No cell has logged anything yet."),
        ("1 --hide 2", "--rename, --hide and --show are followed by the runs that they change."),
        ("--force", "--force needs --export."),
        ("--as mlflow", "--as needs --export."),
        ("--export a --as excel", "unknown 'excel'. Choose from tensorboard, mlflow, wandb."),
        ("1 2 3", "%distributed runs compares two runs."),
        ("--rename 1", "argument --rename: expected 2 arguments"),
    ):
        assert said in kernel.run(f"%distributed runs {line}").error
