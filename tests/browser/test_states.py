"""The states of the ranks over time, in the throughput view."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from allranks_backends.views import RankState, Snapshot
from tests.browser.pictures import drawn, send_all, show
from tests.browser.test_widths import CUT
from tests.widgets import streams

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = [pytest.mark.browser, pytest.mark.timeout(120)]

INK = """() => {
  const canvas = document.querySelector(".arw-states-canvas");
  const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
  let ink = 0;
  for (let i = 3; i < data.length; i += 4) ink += data[i] > 0;
  return ink / (canvas.width * canvas.height);
}"""
"""Share of the picture that is drawn."""


def at(size: int, second: int) -> Snapshot:
    """Rank 1 waits in every third second; the last rank is dead from second 100 on."""
    now = streams.snapshot(size, 1, 0.0, at=1000.0 + second)
    waits: RankState = "waiting" if second % 3 == 0 else "running"
    ranks = [replace(rank, state="running", since=5.0) for rank in now.ranks]
    ranks[1] = replace(ranks[1], state=waits)
    if second >= 100:
        ranks[-1] = replace(ranks[-1], state="dead", cause="killed by SIGKILL")
    return replace(now, ranks=tuple(ranks))


@pytest.mark.parametrize("size", [4, 64, 256])
def test_each_rank_and_second_has_its_state(browser: Browser, size: int) -> None:
    page = drawn(browser, at(size, 0), 700, views=("throughput",))
    send_all(page, past=[at(size, second) for second in range(120)])
    page.get_by_role("button", name="States").click()
    page.wait_for_function("document.querySelectorAll('.arw-states-name').length === 3")
    words = page.locator(".arw-states-legend").inner_text().split()
    assert {"running", "waiting", "dead"} <= set(words)
    assert page.locator(".arw-chart").is_hidden()
    label = page.locator(".arw-states-canvas").get_attribute("aria-label") or ""
    assert label.startswith(f"states of {size} ranks over ")
    assert page.evaluate(INK) > 0.3
    assert not page.evaluate(CUT)
    page.locator(".arw-states-canvas").focus()
    page.keyboard.press("ArrowLeft")
    said = page.locator(".arw-tooltip").inner_text()
    assert said.startswith("rank 0 · ") and said.endswith("running")
    page.keyboard.press("ArrowDown")
    assert page.locator(".arw-tooltip").inner_text().startswith("rank 1 · ")
    show(page, at(size, 121))
    page.get_by_role("button", name="Total").click()
    assert page.locator(".arw-chart").is_visible() and page.locator(".arw-states-canvas").is_hidden()
    page.close()
