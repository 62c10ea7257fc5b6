"""What ranks log, drawn in JupyterLab while they run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import nbformat
import pytest

from tests.browser.axe import serious
from tests.browser.lab import Notebook

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = [pytest.mark.browser, pytest.mark.timeout(300)]

UP = "%load_ext allranks\n%distributed up -n 2 --backend ring"
TRAIN = """%%distributed
import math, os, time
for step in range(120):
    noise = 0.08 * math.sin(step * (rank + 2))
    log(loss=math.exp(-step / 30) * (1 + 0.3 * rank) + 0.05 + noise * math.exp(-step / 40), step=step)
    if step % 5 == 0:
        log(accuracy=1 - math.exp(-step / 40) - 0.05 * rank, step=step)
    time.sleep(0.02)
while not os.path.exists({go!r}):
    time.sleep(0.02)
log(loss=float("nan"), step=120)
"""


def test_curves_grow_while_the_cell_runs_and_come_back_after_a_reload(
    open_notebook: Callable[..., Notebook], axe: str, tmp_path: Path
) -> None:
    go = tmp_path / "go"
    notebook = open_notebook(UP, "%distributed watch log", TRAIN.format(go=str(go)))
    page = notebook.page
    notebook.begin()
    page.wait_for_selector(".arw-log-figure")
    page.wait_for_function("""[...document.querySelectorAll(".jp-InputPrompt")].at(-1).textContent === "[*]:" """)
    page.wait_for_function("""/step [1-9]/.test(document.querySelector(".arw-log-name").innerText)""")
    go.touch()
    notebook.finish()
    last = """document.querySelector(".arw-log-name").innerText.includes("step 120")"""
    page.wait_for_function(last)
    assert page.locator(".arw-log-figure canvas").count() == 2
    assert "mean of ranks 0-1" in notebook.text(".arw-log-figure .arw-legend")
    page.get_by_role("button", name="By rank").last.click()
    assert "nan" in notebook.text(".arw-log-figure .arw-legend")
    page.locator(".arw-root").screenshot(path=tmp_path / "log.png")
    page.get_by_role("button", name="Mean and range").click()
    page.wait_for_function(
        r"""/mean of ranks 0-1\s*not a number/.test(document.querySelector(".arw-log .arw-legend").innerText)"""
    )
    page.get_by_role("button", name="Logarithmic").click()
    assert not serious(page, axe)
    notebook.save()
    notebook.open()
    page.wait_for_selector(".arw-log-figure")
    page.wait_for_function(last)
    notebook.execute("%distributed down")


PICTURE = ".jp-RenderedSVG img"


def test_a_cell_shows_its_curve_that_stays_when_its_notebook_is_opened_without_a_kernel(
    open_notebook: Callable[..., Notebook], browser: Browser
) -> None:
    train = "%%distributed\nfor step in range(30):\n    log(loss=1 / (step + 1) + rank, step=step)"
    notebook = open_notebook(UP, train, "%distributed down")
    notebook.page.set_viewport_size({"width": 1000, "height": 800})
    notebook.run()
    box, area = (notebook.page.locator(each).first.bounding_box() for each in (PICTURE, ".jp-Cell-outputArea"))
    assert box is not None and area is not None and 100 < box["height"] < 250
    assert box["x"] + box["width"] <= area["x"] + area["width"], "nothing is cut at the right"
    notebook.save()
    saved = nbformat.read(notebook.lab.notebooks / notebook.path, as_version=4)
    (output,) = [each for each in saved.cells[1].outputs if "image/svg+xml" in each.get("data", {})]
    assert "ranks 0-1: mean, and from least to most" in output.data["image/svg+xml"]
    assert output.data["text/plain"].startswith("loss 1.5 → 0.5333 (run 1 · step 29")
    notebook.page.evaluate("() => window.panel.sessionContext.shutdown()")
    again = Notebook(notebook.lab, browser, notebook.path, kernel=False)
    try:
        again.page.wait_for_selector(PICTURE)
    finally:
        again.page.close()
