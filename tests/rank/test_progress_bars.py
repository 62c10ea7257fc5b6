"""Widgets of a rank are shown as text, and say so; tqdm.notebook's bars are text that moves."""

from __future__ import annotations

import importlib.util

import pytest

from allranks import Cluster
from allranks.notebook.output_writer import WIDGET_AS_TEXT
from allranks.rank.cell.progress_bars import AS_TEXT
from tests.jupyter import Notebook
from tests.needs import need


def test_a_notebook_bar_is_drawn_as_text_on_each_rank(ring2: Cluster) -> None:
    need(importlib.util.find_spec("tqdm"), "tqdm is not installed")
    result = ring2.run(
        "from tqdm.notebook import tqdm, trange\n"
        "for i in tqdm(range(3), desc='steps', ncols='80%'): pass\n"
        "for i in trange(2, display=False): pass"
    )
    assert result.ok, result.failure()
    for rank in result.values():
        assert "steps: 100%" in rank.stderr and "3/3" in rank.stderr and "2/2" in rank.stderr
        assert rank.stderr.count(AS_TEXT) == 1, "said once"


@pytest.mark.slow
def test_an_unfinished_notebook_bar_moves_in_the_notebook(kernel: Notebook) -> None:
    need(importlib.util.find_spec("tqdm"), "tqdm is not installed")
    kernel.with_ranks("ring", 2)
    running = kernel.begin(
        "%%distributed\nimport time\nfrom tqdm.notebook import tqdm\nbar = tqdm(total=10)\n"
        "bar.update(3)\nbar.refresh()\ntime.sleep(600)"
    )
    kernel.shows(running, "3/10")
    kernel.interrupt()
    kernel.finish(running)


def test_a_widget_is_shown_as_text_with_a_line_that_says_so(kernel: Notebook) -> None:
    need(importlib.util.find_spec("ipywidgets"), "ipywidgets is not installed")
    kernel.with_ranks("ring", 2)
    kernel.comms.clear()
    cell = kernel.ok("%%distributed\nimport ipywidgets\nipywidgets.IntSlider(value=7 + rank)")
    assert "IntSlider(value=7" in cell.all and "IntSlider(value=8" in cell.all
    assert WIDGET_AS_TEXT in cell.all
    assert cell.mime("application/vnd.jupyter.widget-view+json") == []
    # What other tests showed goes on speaking; a widget would open a comm of its own.
    assert not [each for each in kernel.comms if each["msg_type"] == "comm_open"]
