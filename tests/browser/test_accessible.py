"""What verbs print is accessible at all widths, light and dark; the keyboard alone reaches all of a dashboard."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from tests.browser.lab import THEME, Notebook
from tests.browser.pictures import drawn, open_ranks
from tests.browser.test_widths import VIEWS, logged
from tests.widgets import streams

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = [pytest.mark.browser, pytest.mark.timeout(300)]

TRAINS = """%%distributed --timeline
from allranks import log
for step in range(20):
    with span("step"):
        mx.eval(mx.distributed.all_sum(mx.ones(1000)))
    log(loss=1 / (step + 1) + rank, step=step)
for line in range(12):
    print(f"line {line} of rank {rank}")
"""
VERBS = ("status", "vars", "diff", "runs", "queue", "bench --min 1K --max 16K", "output", "discover")
REACHABLE = """() => [...document.querySelectorAll(".arw-root *")]
  .filter((node) => node.tabIndex >= 0 && !node.disabled && node.checkVisibility({ visibilityProperty: true }))
  .filter((node) => !node.closest("svg")).length"""
FOCUSED = """() => {
  const node = document.activeElement, { outlineStyle, outlineWidth, boxShadow } = getComputedStyle(node);
  if (!node.closest(".arw-root")) return null;
  window.walked ??= [];
  const seen = window.walked.includes(node);
  window.walked.push(node);
  const marked = (outlineStyle !== "none" && parseFloat(outlineWidth) > 0) || boxShadow !== "none";
  const name = node.getAttribute("aria-label") || node.textContent.trim().slice(0, 40);
  return { name, seen, marked };
}"""


OF_LAB = '<div class="lm-Widget'
"""JupyterLab's own boxes: where a table is wider than the page they scroll, and browsers let the keyboard there."""


def serious(page: Page, within: str) -> list[str]:
    """What axe-core finds there that is serious, and not of JupyterLab itself."""
    found = page.evaluate("async (within) => (await axe.run(within)).violations", within)
    return [
        f"{one['id']}: {one['help']}: {node['html'][:300]}"
        for one in found
        if one["impact"] in ("serious", "critical")
        for node in one["nodes"]
        if not node["html"].startswith(OF_LAB)
    ]


def test_axe_finds_nothing_serious_in_what_verbs_print(open_notebook: Callable[..., Notebook], axe: str) -> None:
    cells = ["%load_ext allranks\n%distributed up -n 2 --backend ring", TRAINS]
    notebook = open_notebook(*cells, *(f"%distributed {verb}" for verb in VERBS), "%distributed down")
    page = notebook.page
    notebook.run()
    assert page.locator(".jp-OutputArea-output svg, .jp-RenderedSVG").count() >= 1
    page.evaluate(axe)
    found: dict[tuple[str, int], list[str]] = {}
    for theme in ("Light", "Dark"):
        page.evaluate(THEME, f"JupyterLab {theme}")
        page.wait_for_selector(f"body[data-jp-theme-light={str(theme == 'Light').lower()}]", state="attached")
        notebook.settled()
        for width in (700, 900, 1440):
            page.set_viewport_size({"width": width, "height": 1500})
            notebook.settled()
            found[theme, width] = serious(page, ".jp-Notebook .jp-OutputArea-output")
    assert not any(found.values()), found


@pytest.mark.parametrize("width", [330, 700, 1440])
def test_the_keyboard_reaches_all_of_a_dashboard_and_shows_where_it_is(browser: Browser, width: int) -> None:
    page = drawn(browser, streams.hanging(4, 1), width, views=VIEWS)
    open_ranks(page)
    logged(page, 4, "loss", "accuracy")
    page.locator(".arw-links summary").focus()
    page.keyboard.press("Enter")
    page.wait_for_selector(".arw-links td")
    page.evaluate("() => { document.body.tabIndex = -1; document.body.focus(); }")
    count, walked = page.evaluate(REACHABLE), list[dict[str, Any]]()
    for _ in range(2 * count):
        page.keyboard.press("Tab")
        if (now := page.evaluate(FOCUSED)) is None or now["seen"]:
            break
        walked.append(now)
    assert len(walked) == count, [each["name"] for each in walked]
    assert not [each["name"] for each in walked if not each["marked"]], "the focus is seen"
    assert not [each for each in walked if not each["name"]], "all have a name"
    page.close()


def test_the_menu_of_a_rank_is_used_with_the_keyboard(browser: Browser) -> None:
    page = drawn(browser, streams.hanging(4, 1), 700, views=VIEWS)
    opener = page.get_by_role("button", name="Actions for rank 2")
    opener.focus()
    page.keyboard.press("Enter")
    menu = page.get_by_role("menu")
    assert menu.is_visible() and opener.get_attribute("aria-expanded") == "true"
    page.keyboard.press("Escape")
    assert not menu.count() and opener.get_attribute("aria-expanded") == "false"
    assert opener.evaluate("(node) => node === document.activeElement"), "the focus is back where it was"
    page.close()
