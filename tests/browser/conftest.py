"""One JupyterLab and one Chromium for all tests of this folder."""

from __future__ import annotations

import contextlib
import importlib.util
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pytest

from tests import javascript
from tests.needs import need, need_tool

if TYPE_CHECKING:
    from playwright.sync_api import Browser

    from tests.browser.lab import Lab, Notebook


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    need(importlib.util.find_spec("playwright"), "playwright is not installed (pip install playwright)")
    need(importlib.util.find_spec("jupyterlab"), "JupyterLab is not installed (pip install jupyterlab)")
    chromium = need_tool("chromium", "apt install chromium")
    from allranks_widgets.dashboard import STATIC

    need((STATIC / "dashboard.js").exists(), "the widgets are not bundled (pip install -e . with a network)")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        yield started
        started.close()


@pytest.fixture(scope="session")
def lab(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    from tests.browser.lab import Lab

    started = Lab(tmp_path_factory.mktemp("lab"))
    yield started
    started.close()


@pytest.fixture
def open_notebook(lab: Lab, browser: Browser, request: pytest.FixtureRequest) -> Iterator[Callable[..., Notebook]]:
    """Opens a notebook with the given cells; closed, and its kernel ended, after the test."""
    opened: list[Notebook] = []

    def start(*cells: str) -> Notebook:
        name = "".join(char if char.isalnum() else "-" for char in request.node.name)
        opened.append(lab.notebook(browser, name, *cells))
        return opened[-1]

    yield start
    for notebook in opened:
        with contextlib.suppress(Exception):  # the test has said what it had to say
            notebook.close()


@pytest.fixture(scope="session")
def axe() -> str:
    """The source of axe-core."""
    return (javascript.installed() / "axe-core" / "axe.min.js").read_text(encoding="utf-8")
