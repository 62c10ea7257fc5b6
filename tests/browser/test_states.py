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
    from playwright.sync_api import Browser, Page

pytestmark = [pytest.mark.browser, pytest.mark.timeout(120)]

INK = """() => {
  const canvas = document.querySelector(".arw-states-canvas");
  const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
  let ink = 0;
  for (let i = 3; i < data.length; i += 4) ink += data[i] > 0;
  return ink / (canvas.width * canvas.height);
}"""
"""Share of the picture that is drawn."""
READ = ".arw-tooltip"
ROW_SEEN = """(row) => {
  const scroll = document.querySelector(".arw-states-scroll"), canvas = document.querySelector(".arw-states-canvas");
  const high = canvas.clientHeight / 256;
  return row * high >= scroll.scrollTop && (row + 1) * high <= scroll.scrollTop + scroll.clientHeight + 1;
}"""


def at(size: int, second: int) -> Snapshot:
    """Rank 1 waits in every third second; the last rank is dead from second 100 on."""
    now = streams.snapshot(size, 1, 0.0, at=1000.0 + second)
    waits: RankState = "waiting" if second % 3 == 0 else "running"
    ranks = [replace(rank, state="running", since=5.0) for rank in now.ranks]
    if size > 1:
        ranks[1] = replace(ranks[1], state=waits)
    if second >= 100:
        ranks[-1] = replace(ranks[-1], state="dead", cause="killed by SIGKILL")
    return replace(now, ranks=tuple(ranks))


def opened(browser: Browser, size: int, *, seconds: int = 120, theme: str = "light") -> Page:
    """A page that shows the states of so many seconds."""
    page = drawn(browser, at(size, 0), 700, views=("throughput",), theme=theme)
    send_all(page, past=[at(size, second) for second in range(seconds)])
    page.get_by_role("button", name="States").click()
    page.wait_for_function("(n) => document.querySelectorAll('.arw-states-name').length === n", arg=min(size + 1, 3))
    page.locator(".arw-states-canvas").focus()
    return page


def press(page: Page, key: str, times: int = 1) -> None:
    for _ in range(times):
        page.keyboard.press(key)


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("size", [1, 4, 64, 256])
def test_each_rank_and_second_has_its_state(browser: Browser, size: int, theme: str) -> None:
    page = opened(browser, size, theme=theme)
    words = page.locator(".arw-states-legend").inner_text().split()
    assert {"running", "dead", *(["waiting"] if size > 1 else [])} <= set(words)
    assert page.locator(".arw-chart").is_hidden()
    label = page.locator(".arw-states-canvas").get_attribute("aria-label") or ""
    assert label.startswith(f"states of {size} rank{'s' if size > 1 else ''} over ")
    states = "running, dead" if size == 1 else "running, waiting, dead"
    assert f": {states}. " in label, "in the order of the legend"
    assert page.evaluate(INK) > 0.3
    assert not page.evaluate(CUT)
    show(page, at(size, 121))
    page.get_by_role("button", name="Total").click()
    assert page.locator(".arw-chart").is_visible() and page.locator(".arw-states-canvas").is_hidden()
    page.close()


@pytest.mark.parametrize("size", [4, 64])
def test_the_arrow_keys_read_a_second_of_a_rank(browser: Browser, size: int) -> None:
    page = opened(browser, size)
    press(page, "ArrowLeft")  # the last second of the first rank
    heard = page.locator(".arw-states-grid [role=status]")

    def read() -> list[str]:
        said = page.locator(READ).inner_text().split("\n")
        assert heard.text_content() == ", ".join(said)
        return [said[0].partition(" · ")[0], said[1]]

    assert read() == ["rank 0", "running"]
    press(page, "ArrowDown")
    assert read() == ["rank 1", "running"]
    press(page, "ArrowLeft", 2)
    assert read() == ["rank 1", "waiting"], "in second 117"
    press(page, "ArrowDown", size)
    assert read() == [f"rank {size - 1}", "dead"], "the last one"
    press(page, "ArrowLeft", 18)
    assert read() == [f"rank {size - 1}", "running"], "in second 99"
    page.keyboard.press("Tab")
    assert page.locator(READ).is_hidden() and not heard.text_content()
    page.close()


def test_the_row_that_is_read_is_scrolled_into_view(browser: Browser) -> None:
    page = opened(browser, 256)
    press(page, "ArrowLeft")
    press(page, "ArrowDown", 150)
    assert page.evaluate(ROW_SEEN, 150) and not page.evaluate(ROW_SEEN, 0)
    assert page.locator(READ).inner_text().startswith("rank 150 · ")
    page.close()


def test_what_is_read_is_what_is_marked_also_a_second_later(browser: Browser) -> None:
    page = opened(browser, 4, seconds=200)  # more than there is room for, so that all moves
    press(page, "ArrowLeft")
    clock = "(at) => new Date(at * 1000).toLocaleTimeString()"
    assert page.locator(READ).inner_text() == f"rank 0 · {page.evaluate(clock, 1199)}\nrunning"
    heard = page.locator(".arw-states-grid [role=status]").text_content()
    show(page, at(4, 200))
    page.wait_for_function(
        "(said) => document.querySelector('.arw-tooltip').textContent === said",
        arg=f"rank 0 · {page.evaluate(clock, 1200)}\nrunning",
    )
    assert page.locator(".arw-states-grid [role=status]").text_content() == heard, "which is not read out again"
    page.close()


def test_the_states_are_drawn_again_where_the_page_becomes_narrow(browser: Browser) -> None:
    page = opened(browser, 4)
    press(page, "ArrowLeft")
    wide = page.locator(".arw-states-canvas").evaluate("(node) => node.clientWidth")
    page.set_viewport_size({"width": 360, "height": 900})
    page.wait_for_function("(wide) => document.querySelector('.arw-states-canvas').clientWidth < wide", arg=wide)
    assert not page.evaluate(CUT)
    said = page.locator(READ).inner_text()
    assert said.startswith("rank 0 · ") and "Invalid" not in said
    page.close()
