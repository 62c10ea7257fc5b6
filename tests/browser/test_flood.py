"""A cell that prints more than a page bears, in JupyterLab."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from tests.browser.lab import Notebook

pytestmark = [pytest.mark.browser, pytest.mark.timeout(300)]

UP = "%load_ext allranks\n%distributed up -n 2 --backend ring"
PRINT = "%%distributed\nfor step in range(100_000):\n    print('step', step, rank)"
HEIGHT = 50_000
"""Pixels: 2,000 lines and what stands around them are about 35,000."""


def test_the_page_stays_small_and_says_where_the_rest_is(open_notebook: Callable[..., Notebook]) -> None:
    notebook = open_notebook(UP, PRINT, "%distributed output --last 1 --ranks 1", "%distributed down")
    notebook.run()
    cells = notebook.page.locator(".jp-Cell")
    shown = cells.nth(1).inner_text()
    assert re.search(r"… .*99,0\d\d lines of each rank", shown) and "%distributed output shows them" in shown
    assert shown.count("step") < 2100 and "│ step 99999 0" in shown and "│ step 99999 1" in shown
    box = cells.nth(1).bounding_box()
    assert box is not None and box["height"] < HEIGHT
    assert cells.nth(2).inner_text().splitlines()[-1] == "rank 1 │ step 99999 1"
