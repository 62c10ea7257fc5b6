"""What is drawn at once, and what waits: a page that is watched all day must not cost a core."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from allranks_backends.views import Snapshot
from allranks_widgets.snapshot_json import to_dict
from tests.browser.pictures import drawn, open_ranks
from tests.browser.test_widths import VIEWS
from tests.widgets import streams

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = [pytest.mark.browser, pytest.mark.timeout(120)]

MEMORY = ".arw-status tbody tr:first-child td:nth-child(6)"


def send(page: Page, snapshot: Snapshot) -> None:
    """Send a frame, and do not wait until it is drawn."""
    page.evaluate("(frame) => void window.show(frame)", json.dumps(to_dict(snapshot)))


def with_memory(now: Snapshot, rss: int) -> Snapshot:
    return replace(now, ranks=(replace(now.ranks[0], rss=rss), *now.ranks[1:]))


def test_figures_are_drawn_twice_a_second_and_states_at_once(browser: Browser) -> None:
    now = streams.snapshot(4, 1, 200.25)
    page = drawn(browser, with_memory(now, 10**9), 1006, views=VIEWS, clock=True)
    open_ranks(page)
    page.clock.run_for(1000)
    memory = page.locator(MEMORY)
    assert memory.text_content() == "1.00 GB"
    send(page, with_memory(now, 2 * 10**9))
    page.clock.run_for(20)
    assert memory.text_content() == "2.00 GB", "the first after a pause"
    send(page, with_memory(now, 3 * 10**9))
    page.clock.run_for(400)
    assert memory.text_content() == "2.00 GB", "drawn too soon"
    page.clock.run_for(150)
    assert memory.text_content() == "3.00 GB"
    dead = with_memory(now, 4 * 10**9)
    send(page, replace(dead, ranks=(*dead.ranks[:3], replace(dead.ranks[3], state="dead"))))
    page.clock.run_for(130)
    assert page.locator('.arw-rank[data-rank="3"]').get_attribute("data-state") == "dead"
    assert memory.text_content() == "4.00 GB", "with all that goes with it"
    page.close()


def test_output_is_drawn_at_once_and_figures_do_not_come_with_it(browser: Browser) -> None:
    now = streams.snapshot(4, 1, 200.25)
    page = drawn(browser, with_memory(now, 10**9), 1006, views=VIEWS, clock=True)
    open_ranks(page)
    page.clock.run_for(1000)
    send(page, with_memory(now, 2 * 10**9))
    page.clock.run_for(20)
    send(page, with_memory(now, 3 * 10**9))
    items = json.dumps(
        [
            {"cell": 7, "kind": "begin", "ranks": [0, 1, 2, 3], "code": "print()"},
            {"cell": 7, "kind": "text", "ranks": [0], "stream": "stdout", "text": "a line\n"},
        ]
    )
    page.evaluate("(items) => window.tell({ do: 'output', number: 1 }, items)", items)
    page.clock.run_for(130)
    assert "a line" in (page.locator(".arw-list").text_content() or "")
    assert page.locator(MEMORY).text_content() == "2.00 GB"
    page.clock.run_for(450)
    assert page.locator(MEMORY).text_content() == "3.00 GB"
    page.close()
