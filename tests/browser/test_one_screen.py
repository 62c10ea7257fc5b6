"""The dashboard's first view fits one screen, and says in words whether all is well; details open."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from allranks_backends.views import Snapshot
from allranks_widgets.curves import rows_json
from tests.browser.pictures import drawn, send_all, show
from tests.browser.test_topology import FOUND
from tests.browser.test_widths import CUT, VIEWS
from tests.widgets import streams

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = [pytest.mark.browser, pytest.mark.timeout(120)]


def dead(size: int) -> Snapshot:
    """Some ranks have died, each with a cause of its own."""
    now = streams.snapshot(size, 1, 200.25)
    causes = {3: "killed by SIGKILL", 17: "killed by the kernel: out of memory", 40: "exited with code 1 (ImportError)"}
    ranks = [replace(one, state="dead", cause=causes[one.rank]) if one.rank in causes else one for one in now.ranks]
    return replace(now, state="broken", ranks=tuple(ranks))


SCREEN = 800
"""Pixels of height."""
SCENES = {
    "4 train": streams.snapshot(4, 1, 200.25),
    "4 hang": streams.hanging(4, 1),
    "8 train": streams.snapshot(8, 1, 200.25),
    "8 hang": streams.hanging(8, 1),
    "64 train": streams.snapshot(64, 1, 200.25),
    "64 hang": streams.hanging(64, 1),
    "64 dead": dead(64),
    "8 hosts": streams.snapshot(8, 8, 200.25),
    "8 hosts, 64 train": streams.snapshot(64, 8, 200.25),
    "8 hosts, 64 hang": streams.hanging(64, 8),
}
FITTED = """() => {
  const charts = [...document.querySelectorAll(".arw-chart, .arw-log-figure:not([hidden]) .arw-log-chart")];
  const wide = (chart) => chart.querySelector(".uplot")?.clientWidth ?? 0;
  return charts.every((chart) => Math.abs(wide(chart) - chart.clientWidth) < 2);
}"""
"""Charts are as wide as their place, which changes as others come."""
HEIGHT = "document.querySelector('.arw-root').offsetHeight"


def logged(page: Page, ranks: int) -> None:
    """Two metrics of 120 steps, four a second, on up to eight ranks; output; and three minutes of traffic."""
    names = {"loss": lambda step: 2.2 * math.exp(-step / 60), "accuracy": lambda step: 1 - math.exp(-step / 40)}
    rows = [
        (rank, name, 7, step, of(step) + 0.01 * rank, 1000 + step / 4)
        for rank in range(min(ranks, 8))
        for name, of in names.items()
        for step in range(120)
    ]
    past = [streams.snapshot(ranks, 1, when) for when in range(0, 200, 2)]
    send_all(page, past=past, items=streams.training(ranks), rows=rows)
    page.wait_for_selector(".arw-log-figure canvas")
    page.wait_for_function(FITTED)
    page.wait_for_selector(".arw-glance-part")  # which is drawn once a second, and may take a line


def headline(page: Page, view: str) -> str:
    return page.locator(f"[data-view={view}] .arw-headline").inner_text()


@pytest.mark.parametrize("width", [700, 928, 1440])
@pytest.mark.parametrize("scene", SCENES)
def test_the_first_view_fits_a_screen_and_nothing_overlaps(browser: Browser, scene: str, width: int) -> None:
    now = SCENES[scene]
    page = drawn(browser, now, width, views=VIEWS)
    logged(page, len(now.ranks))
    height = page.evaluate(HEIGHT)
    print(f"{scene} at {width}: {height} pixels high")
    assert height <= SCREEN
    assert page.locator(".arw-rank").count() == len(now.ranks)
    assert page.evaluate("document.documentElement.scrollWidth") == width
    assert not page.evaluate(CUT)
    assert not page.evaluate(FOUND)
    page.close()


def test_each_view_says_what_it_finds_and_the_first_line_how_fast_it_goes(browser: Browser) -> None:
    now = streams.snapshot(4, 1, 200.25)
    page = drawn(browser, now, 928, views=VIEWS)
    assert page.locator("[data-view=log]").is_hidden(), "until something is logged"
    logged(page, 4)
    assert headline(page, "topology").endswith("GB/s on all 8 links")
    assert headline(page, "throughput").startswith("all_sum 2.")
    assert headline(page, "log") == "loss 0.318 falling"
    assert headline(page, "ranks") == "step 60 loss 0.3914"
    assert page.locator(".arw-glance-pace").inner_text() == "4 steps/s"
    assert page.locator(".arw-links summary").inner_text().startswith("8 links · ")
    assert page.locator(".arw-straggler").inner_text().startswith("Rank 3 was last in 41 of 60 timed calls")
    assert page.locator('.arw-rank:has(:text("others waited longest"))').get_attribute("data-rank") == "3"
    show(page, streams.hanging(4, 1))
    assert page.locator(".arw-straggler").is_hidden(), "there is advice to act on"
    assert not page.locator('[data-slowest="true"]').count()
    assert headline(page, "topology") == "Ranks 0-1, 3 wait for rank 2"
    slow = [replace(view, nominal=40e9) for view in now.links]
    slow[1] = replace(slow[1], nominal=1e9)
    show(page, replace(now, links=tuple(slow)))
    assert headline(page, "topology") == "link 0 → 3 is slow"
    sign = page.locator("[data-view=topology] .arw-sign")
    assert sign.is_visible(), "not by its colour alone"
    rows = [(rank, "loss", 7, 120, math.nan, 1030.25) for rank in range(4)]
    page.evaluate("(rows) => window.tell({ do: 'logged', number: 2 }, rows)", rows_json(rows).decode())
    page.wait_for_function(
        """document.querySelector("[data-view=log] .arw-headline").innerText.includes("not a number")"""
    )
    page.close()


def test_a_loop_that_makes_no_more_steps_is_named_in_the_first_line(browser: Browser) -> None:
    page = drawn(browser, streams.snapshot(4, 1, 200.25), 928, views=VIEWS, clock=True)
    rows = [(0, "loss", 7, step, 1.0, 1000 + step / 4) for step in range(20)]
    send_all(page, items=streams.training(4), rows=rows)
    page.clock.run_for(1000)
    pace = page.locator(".arw-glance-pace")
    assert pace.text_content() == "4 steps/s"
    page.clock.run_for(6000)
    assert pace.text_content() in ("no step for 6 s", "no step for 7 s")
    page.close()


def test_sections_fold_and_ranks_are_folded_at_first_where_all_are_shown(browser: Browser) -> None:
    page = drawn(browser, streams.snapshot(4, 1, 200.25), 928, views=VIEWS)
    logged(page, 4)
    ranks = page.get_by_role("button", name="Ranks", exact=True)
    table = page.get_by_role("region", name="state of each rank")
    assert ranks.get_attribute("aria-expanded") == "false" and table.is_hidden()
    ranks.focus()
    page.keyboard.press("Enter")
    assert ranks.get_attribute("aria-expanded") == "true" and table.is_visible()
    page.wait_for_function("document.querySelector('.arw-list').innerText.includes('step   60')")
    page.get_by_role("button", name="Throughput", exact=True).click()
    assert page.locator(".arw-chart").is_hidden() and headline(page, "throughput")
    page.close()
    page = drawn(browser, streams.snapshot(4, 1, 200.25), 928, views=("topology", "ranks"))
    assert page.get_by_role("region", name="state of each rank").is_visible()
    page.close()
    page = drawn(browser, streams.snapshot(4, 1, 200.25), 928, views=("ranks",))
    assert not page.get_by_role("button", name="Ranks", exact=True).count(), "there is nothing else to see"
    page.close()


def test_only_the_first_charts_are_shown_and_the_others_open(browser: Browser) -> None:
    page = drawn(browser, streams.snapshot(4, 1, 200.25), 928, views=VIEWS)
    logged(page, 4)
    more = page.get_by_role("button", name="1 more: accuracy")
    assert page.locator(".arw-log-figure:visible").count() == 1
    more.click()
    page.wait_for_function("document.querySelectorAll('.arw-log-figure:not([hidden]) canvas').length === 2")
    page.get_by_role("button", name="fewer charts").click()
    assert page.locator(".arw-log-figure:visible").count() == 1
    page.close()


def without_figures(now: Snapshot) -> Snapshot:
    return replace(
        now, links=tuple(replace(view, rate=None, sent=None) for view in now.links), straggler=None, straggler_rank=None
    )


def test_what_is_unknown_makes_no_headline(browser: Browser) -> None:
    page = drawn(browser, without_figures(streams.snapshot(4, 1, 200.25)), 928, views=VIEWS)
    page.wait_for_selector(".arw-chart canvas")
    assert page.locator("[data-view=topology] .arw-headline").is_hidden()
    assert page.locator(".arw-straggler").is_hidden()
    page.close()
