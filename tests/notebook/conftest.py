"""An IPython shell whose displays and streams go to a page in memory."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace

import pytest
from IPython.core.interactiveshell import InteractiveShell

from allranks.notebook import output_writer
from allranks.notebook.show_blocks import Show
from tests.notebook.page import Page, Stream


@pytest.fixture
def shell() -> Iterator[InteractiveShell]:
    Show._displays.clear()
    yield InteractiveShell.instance()
    InteractiveShell.clear_instance()


@pytest.fixture
def page(shell: InteractiveShell, monkeypatch: pytest.MonkeyPatch) -> Page:
    page = Page()
    page.outputs = []
    monkeypatch.setattr(shell, "display_pub", page)
    streams = SimpleNamespace(stdout=Stream(page, "stdout"), stderr=Stream(page, "stderr"))
    monkeypatch.setattr(output_writer, "sys", streams)  # pytest takes sys.stdout itself for each phase of a test
    return page
