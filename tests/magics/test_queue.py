"""``%%distributed --after`` and ``%distributed queue`` in a notebook."""

from __future__ import annotations

from pathlib import Path

from tests.jupyter import WITHIN, Notebook

WAITS = "%%distributed --no-wait\nimport os, time\nwhile not os.path.exists({!r}): time.sleep(0.01)\n"


def test_cells_wait_for_each_other_and_show_their_output_below_themselves(kernel: Notebook, tmp_path: Path) -> None:
    kernel.run("%distributed down")
    kernel.ok("%distributed up -n 2")
    assert "No cells in the queue: %%distributed --after puts one there." in kernel.ok("%distributed queue").all
    kernel.ok(WAITS.format(str(tmp_path / "gate")))
    second = kernel.ok("%%distributed --after --name eval -o result\nprint('second')")
    third = kernel.ok("%%distributed --after eval\nprint('third'); 1 / 0")
    fourth = kernel.ok("%%distributed --after\nprint('fourth')")
    assert second.stdout.startswith("eval (In[")
    assert " runs once In[" in second.stdout and "has succeeded. %distributed queue lists" in second.stdout
    dropped = kernel.ok("%%distributed --after --name late\nprint('late')")
    listed = kernel.ok("%distributed queue --drop late").all
    assert "not run: it was dropped from the queue" in listed and listed.count("waiting") == 3
    (tmp_path / "gate").touch()
    kernel.shows(second, "ranks 0-1 │ second")
    kernel.shows(third, "ranks 0-1 │ third")
    kernel.until(lambda: bool(third.error and fourth.error and dropped.error), WITHIN)
    assert fourth.error.startswith("NotRun: In[") and "raised ZeroDivisionError" in fourth.error
    assert third.error.startswith("CellFailed") and dropped.error.startswith("NotRun: late (In[")
    assert kernel.ok("print(result.result.ok)").stdout == "True\n"
    refused = kernel.run("%%distributed --name eval\npass")
    assert refused.error == "UsageError: --name needs --after: it names a cell in the queue."
    kernel.ok("%distributed down")
