"""The dashboard in a window of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.browser.pictures import drawn, send_all, show
from tests.browser.test_widths import VIEWS
from tests.widgets import streams

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = [pytest.mark.browser, pytest.mark.timeout(120)]


def opened(page: Page) -> Page:
    with page.expect_popup() as popup:
        page.get_by_role("button", name="Open in a window of its own").click()
    popup.value.wait_for_selector(".arw-root")
    return popup.value


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_it_shows_what_the_page_shows_and_goes_on(browser: Browser, theme: str) -> None:
    page = drawn(browser, streams.snapshot(4, 1, 200.25), 928, views=VIEWS, theme=theme)
    there = opened(page)
    assert there.title() == "allranks · main"
    assert there.locator(".arw-root").get_attribute("data-theme") == theme
    assert there.get_by_role("button", name="Open in a window of its own").count() == 0
    send_all(page, items=streams.training(4), rows=[(0, "loss", 7, step, 1.0, step / 4) for step in range(9)])
    there.wait_for_selector(".arw-glance-part")
    show(page, streams.hanging(4, 1))
    there.wait_for_selector(".arw-headline >> text=Ranks 0-1, 3 wait for rank 2")
    there.get_by_role("button", name="Actions for rank 2").click()
    assert there.get_by_role("menu").is_visible()
    assert not page.get_by_role("menu").is_visible()
    page.close()


def test_its_colours_follow_the_page(browser: Browser) -> None:
    page = drawn(browser, streams.snapshot(2, 1, 200.25), 928, views=VIEWS)
    there = opened(page)
    page.evaluate("""() => {
      document.body.style.background = "#111111";
      document.body.style.setProperty("--jp-layout-color0", "#111111");
    }""")
    there.wait_for_selector('.arw-root[data-theme="dark"]')
    page.close()


def test_nothing_is_heard_for_it_once_it_is_closed_and_it_ends_with_the_page(browser: Browser) -> None:
    page = drawn(browser, streams.snapshot(2, 1, 200.25), 928, views=VIEWS)
    count = "() => Object.values(window.heard).flat().length"
    before = page.evaluate(count)
    there = opened(page)
    assert page.evaluate(count) == 2 * before
    there.close(run_before_unload=True)
    page.wait_for_function(f"(before) => ({count})() === before", arg=before)
    show(page, streams.hanging(2, 1, late=1))
    there = opened(page)
    with there.expect_event("close"):
        page.goto("about:blank")
    page.close()


def test_a_browser_that_opens_none_is_said(browser: Browser) -> None:
    page = drawn(browser, streams.snapshot(2, 1, 200.25), 928, views=VIEWS)
    page.evaluate("() => { window.open = () => null; }")
    page.get_by_role("button", name="Open in a window of its own").click()
    said = page.locator(".arw-said")
    said.wait_for()
    assert said.inner_text() == "The browser opened no window: allow this page to open some."
    page.close()
