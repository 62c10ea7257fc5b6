"""What verbs print is accessible at all widths, light and dark; the keyboard alone reaches all of a dashboard."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from tests.browser.axe import serious
from tests.browser.lab import THEME, Notebook
from tests.browser.pictures import drawn, open_ranks, send_all, show
from tests.browser.test_widths import VIEWS, logged
from tests.widgets import streams

if TYPE_CHECKING:
    from playwright.sync_api import Browser

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


def test_axe_finds_nothing_serious_in_what_verbs_print(open_notebook: Callable[..., Notebook], axe: str) -> None:
    cells = ["%load_ext allranks\n%distributed up -n 2 --backend ring", TRAINS]
    notebook = open_notebook(*cells, *(f"%distributed {verb}" for verb in VERBS), "%distributed down")
    page = notebook.page
    notebook.run()
    assert page.locator(".jp-OutputArea-output svg, .jp-RenderedSVG").count() >= 1
    found: dict[tuple[str, int], list[str]] = {}
    for theme in ("Light", "Dark"):
        page.evaluate(THEME, f"JupyterLab {theme}")
        page.wait_for_selector(f"body[data-jp-theme-light={str(theme == 'Light').lower()}]", state="attached")
        notebook.settled()
        for width in (700, 900, 1440):
            page.set_viewport_size({"width": width, "height": 1500})
            notebook.settled()
            found[theme, width] = serious(page, axe, ".jp-Notebook .jp-OutputArea-output")
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


SCENES = {
    "train": streams.snapshot(4, 1, 200.25),
    "8 hosts": streams.snapshot(8, 8, 200.25),
    "GPUs": streams.on_gpus(streams.snapshot(8, 2, 200.25)),
    "mesh": replace(streams.snapshot(8, 2, 30.0), links=streams.mesh(8, 2)),
    "64 ranks": streams.snapshot(64, 8, 200.25),
    "broken": replace(streams.hanging(4, 1), state="broken"),
    "ended": replace(streams.snapshot(4, 1, 200.25), state="down"),
}


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [700, 900, 1440])
def test_axe_finds_nothing_serious_in_any_state_of_a_dashboard(
    browser: Browser, axe: str, width: int, theme: str
) -> None:
    page = drawn(browser, SCENES["train"], width, views=VIEWS, theme=theme)
    open_ranks(page)
    logged(page, 4, "loss", "accuracy")  # output with a traceback, too
    found: dict[str, list[str]] = {}
    for name, scene in SCENES.items():
        show(page, scene)
        found[name] = serious(page, axe)
    show(page, SCENES["train"])
    for details in page.locator("summary").all():
        details.click()
    page.get_by_role("button", name="States").click()
    found["all is open"] = serious(page, axe)
    page.get_by_role("button", name="Actions for rank 2").first.click()
    found["menu"] = serious(page, axe)
    page.keyboard.press("Escape")
    page.locator('.arw-rank[data-rank="1"]').hover()
    found["pointed at"] = serious(page, axe)
    page.evaluate("() => window.tell({ do: 'beat' })")
    page.locator(".arw-silence").wait_for()  # since nothing more comes
    found["silence"] = serious(page, axe)
    page.close()
    assert not any(found.values()), found


@pytest.mark.parametrize("view", VIEWS)
def test_axe_finds_nothing_serious_in_a_view_alone(browser: Browser, axe: str, view: str) -> None:
    found: dict[str, list[str]] = {}
    for theme in ("light", "dark"):
        page = drawn(browser, streams.snapshot(256, 8, 200.25), 900, views=(view,), theme=theme)
        rows = [(rank, "loss", 7, step, 1 / (step + 1) + rank, 1.0) for rank in range(8) for step in range(40)]
        past = [streams.snapshot(256, 8, when) for when in range(10)]
        send_all(page, past=past, items=streams.training(256), rows=rows)
        page.locator(".arw-root :is(canvas, tbody tr, .arw-rank)").locator("visible=true").first.wait_for()
        found[theme] = serious(page, axe)
        page.close()
    assert not any(found.values()), found
