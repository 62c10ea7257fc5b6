"""Jupyter's pages: Tab in a cell of JupyterLab, and Notebook 7 with a cell and a dashboard."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from tests.browser.lab import Notebook
from tests.needs import need

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = [pytest.mark.browser, pytest.mark.timeout(300)]

UP = "%load_ext allranks\n%distributed up -n 2 --backend ring"
HELLO = "%%distributed\nprint('from rank', rank)\nmx.eval(mx.distributed.all_sum(mx.ones(1000)))"


def offered(page: Page, cell: int) -> list[str]:
    """What Tab offers after the magic in this cell, which is empty."""
    page.locator(".jp-CodeCell .cm-content").nth(cell).click()
    page.keyboard.type("%distributed ")
    page.keyboard.press("Tab")
    items = page.locator(".jp-Completer:not(.jp-mod-outofview) .jp-Completer-match")
    items.get_by_text("interrupt", exact=True).wait_for()
    return items.all_inner_texts()


def begin(page: Page, cell: int) -> None:
    """Run a cell as a user does, who presses Shift-Enter again once the next cell is the active one."""
    node = page.locator(".jp-CodeCell").nth(cell)
    node.locator(".cm-content").click()
    page.keyboard.press("Shift+Enter")
    node.locator(".jp-InputPrompt").get_by_text(re.compile(r"\[[*\d]+\]")).wait_for()


def are_verbs(words: list[str]) -> bool:
    return {"up", "status", "watch", "heal"} <= set(words) and not {"and", "if", "in", "is", "not"} & set(words)


def test_tab_offers_verbs_in_jupyterlab(open_notebook: Callable[..., Notebook]) -> None:
    notebook = open_notebook("%load_ext allranks", "")
    notebook.run()
    assert are_verbs(offered(notebook.page, 1))


def test_notebook_7_shows_cells_and_dashboards_and_completes_verbs(
    open_notebook: Callable[..., Notebook], browser: Browser
) -> None:
    need(importlib.util.find_spec("notebook"), "Notebook 7 is not installed (pip install -e '.[test]')")
    written = open_notebook(UP, "%distributed watch", HELLO, "")
    written.save()
    page = browser.new_page(viewport={"width": 1200, "height": 1500})
    page.set_default_timeout(90_000)
    try:
        with page.expect_websocket(lambda socket: "/api/kernels/" in socket.url):  # before it, a cell asks for a kernel
            page.goto(f"{written.lab.url}/notebooks/{written.path}?token={written.lab.token}")
        page.get_by_text("%distributed watch").wait_for()
        for cell in range(3):
            begin(page, cell)
        page.locator(".jp-OutputArea-output pre").get_by_text("rank 1    │ from rank 1").wait_for()
        page.locator('.arw-rank[data-rank="1"]').wait_for()
        page.locator('.arw-rank[data-rank="1"][data-state="idle"]').wait_for()
        static = page.locator('img[src*="arw-saved-"]')
        assert static.count() == 1 and not static.is_visible()
        assert are_verbs(offered(page, 3))
    finally:
        page.close()
