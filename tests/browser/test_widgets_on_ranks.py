"""Widgets of ranks in JupyterLab: moved in the page, the rank sees it; a bar of tqdm moves."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.browser.lab import Notebook
from tests.needs import need

pytestmark = [pytest.mark.browser, pytest.mark.timeout(300)]

UP = "%load_ext allranks\n%distributed up -n 2 --backend ring"
SLIDER = "%%distributed\nimport ipywidgets\nslider = ipywidgets.IntSlider(value=7 + rank, description='beam')\nslider"
BAR = """%%distributed
import os, time
from tqdm.notebook import tqdm
for step in tqdm(range(60), desc='steps'):
    time.sleep(0.05)
    while step == 30 and not os.path.exists({go!r}): time.sleep(0.05)
"""
READ = "%%distributed\nprint('moved to', slider.value)"
READOUTS = ".jupyter-widgets.widget-slider .widget-readout"
DISABLED = ".jupyter-widgets.widget-slider [disabled]"
VALUES = f"""() => [...document.querySelectorAll("{READOUTS}")].map((readout) => readout.innerText)"""
LAST_AGAIN = """() => {
  window.panel.content.activeCellIndex = window.panel.content.widgets.length - 1;
  return window.jupyterapp.commands.execute("notebook:run-cell");
}"""
BARS = """() => [...document.querySelectorAll(".widget-hbox .progress-bar")].map((bar) => parseInt(bar.style.width))"""


def test_a_slider_is_moved_in_the_page_and_a_bar_by_the_rank(
    open_notebook: Callable[..., Notebook], tmp_path: Path
) -> None:
    need(importlib.util.find_spec("tqdm"), "tqdm is not installed")
    go = tmp_path / "go"
    notebook = open_notebook(UP, SLIDER, BAR.format(go=str(go)), READ)
    page = notebook.page
    notebook.begin()
    page.wait_for_function(f"({BARS})().some((width) => width > 0 && width < 100)")
    go.touch()
    notebook.finish()
    page.wait_for_function(f"({BARS})().join() === '100,100'")
    page.wait_for_function(f"({VALUES})().join() === '7,8'")
    readout = page.locator(READOUTS).nth(1)
    readout.fill("33")
    readout.press("Enter")
    page.evaluate(LAST_AGAIN)
    page.wait_for_function("document.body.innerText.includes('moved to 33')")
    page.locator(".jp-OutputArea").last.get_by_text("moved to 7").wait_for()  # the other rank's stays
    page.screenshot(path=tmp_path / "widgets.png")
    notebook.save()
    notebook.open()
    page.wait_for_function(f"({VALUES})().join() === '7,33'")
    page.screenshot(path=tmp_path / "reloaded.png")
    notebook.execute("%distributed down")
    page.wait_for_function(f"document.querySelectorAll('{DISABLED}').length === 2")
    page.screenshot(path=tmp_path / "down.png")
