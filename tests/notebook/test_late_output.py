"""What comes when nobody waits for it: cells in the background, threads that print on, output between cells."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from allranks import Cluster
from allranks.notebook.feed_dashboards import Nowhere
from tests.frames import frames_of_ours
from tests.jupyter import Notebook


def test_a_cell_in_the_background_gives_the_prompt_back_and_prints_below_itself(
    notebook: Notebook, tmp_path: Path
) -> None:
    go = tmp_path / "go"
    background = notebook.ok(
        "%%distributed --no-wait -o job\n"
        "import pathlib, time\n"
        "print('begun')\n"
        f"while not pathlib.Path({str(go)!r}).exists():\n"
        "    time.sleep(0.02)\n"
        "print('ended')\n"
        "rank * 2"
    )
    other = notebook.ok("print('meanwhile')")
    go.touch()
    notebook.shows(background, "ended")
    notebook.comes_true("all(rank.state == 'idle' for rank in now.ranks)")
    assert "begun" in background.stdout and "ended" in background.stdout
    assert other.stdout == "meanwhile\n"
    notebook.until(lambda: "6" in notebook.ok("print(job.result and job.result[3].value)").stdout, 60)


def test_an_error_in_the_background_is_shown_below_its_cell(notebook: Notebook) -> None:
    background = notebook.ok("%%distributed --no-wait\n1 / 0")
    notebook.shows(background, "CellFailed: ranks 0-3 raised ZeroDivisionError")
    assert not frames_of_ours(background.all)
    assert notebook.ok("%%distributed\n'goes on'").by_rank == dict.fromkeys(range(4), "'goes on'\n")


def test_a_thread_that_prints_between_cells_is_heard_with_the_next(ring2: Cluster, tmp_path: Path) -> None:
    go, done = tmp_path / "go", tmp_path / "done"
    ring2.run(f"""
import pathlib, threading, time
def later():
    while not pathlib.Path({str(go)!r}).exists():
        time.sleep(0.01)
    print("from the thread")
    if rank == 0:
        pathlib.Path({str(done)!r}).touch()
thread = threading.Thread(target=later)
thread.start()
print("the cell itself")""")
    go.touch()

    class Shown(Nowhere):
        text = ""

        def blocks(self, blocks: list[Any]) -> None:
            self.text += "".join(str(getattr(block, "content", "")) for block in blocks)

    screen = Shown()
    # The thread may print before this cell or while it runs: either way it is shown, once a rank.
    ring2.run("thread.join()\nprint('next')", screen=screen).check()
    assert done.exists()
    assert screen.text.count("from the thread") in (1, 2) and screen.text.count("next") in (1, 2)


def test_a_progress_bar_without_newline_is_live_while_it_runs(notebook: Notebook, tmp_path: Path) -> None:
    go = tmp_path / "go"
    running = notebook.begin(
        "%%distributed\nimport pathlib, sys, time\n"
        "sys.stderr.write('\\rloading 50%'); sys.stderr.flush()\n"
        f"while not pathlib.Path({str(go)!r}).exists():\n    time.sleep(0.02)\n"
        "sys.stderr.write('\\rloading 100%\\n')"
    )
    notebook.shows(running, "loading 50%")
    go.touch()
    cell = notebook.finish(running)
    assert "loading 100%" in cell.all and "loading" not in cell.stderr, "it is no error"
    assert "50%" not in cell.all, "only the bar's last state stays in the saved notebook"
