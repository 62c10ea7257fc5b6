"""All pictures on narrow and wide pages: nothing is cut at the right, and charts share the width."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from allranks_backends.views import RankState
from allranks_widgets.curves import rows_json
from tests.browser.axe import serious
from tests.browser.pictures import drawn, open_ranks, send_all, show
from tests.widgets import streams

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = [pytest.mark.browser, pytest.mark.timeout(120)]

VIEWS = ("topology", "ranks", "throughput", "log")
# Words may end in … where the whole is elsewhere: the source line of a rank is in its title, a traceback scrolls.
CUT = """() => {
  const right = document.querySelector(".arw-root").getBoundingClientRect().right - 16;
  const nodes = [...document.querySelectorAll(".arw-root *")].filter((node) => !node.closest(".arw-list, .arw-live"));
  const out = nodes.filter((node) => node.getBoundingClientRect().right > right + 1);
  const states = nodes.filter((node) => node.matches(".arw-state-cell > *") && node.scrollWidth > node.clientWidth);
  return [...out, ...states].map((node) => `${node.className}: ${node.textContent.slice(0, 40)}`);
}"""
CHARTS = """() => [...document.querySelectorAll(".arw-log-figure")].map((node) => {
  const { left, width } = node.getBoundingClientRect(), grid = node.parentElement.getBoundingClientRect();
  return [left - grid.left, width, node.querySelector("canvas").getBoundingClientRect().width, grid.width];
})"""


def logged(page: Page, ranks: int, *names: str) -> None:
    points = [(rank, name, step) for rank in range(ranks) for name in names for step in range(40)]
    rows = [(rank, name, 7, step, math.exp(-step / 30) + rank, 1.0) for rank, name, step in points]
    past = [streams.snapshot(ranks, 1, when) for when in range(30)]
    send_all(page, past=past, items=streams.training(ranks) + streams.failing(ranks), rows=rows)
    page.wait_for_selector(".arw-log-figure canvas")
    more = page.locator(".arw-log > button")
    if more.is_visible():
        more.click()
    page.wait_for_function("(n) => document.querySelectorAll('.arw-log-figure canvas').length === n", arg=len(names))


@pytest.mark.parametrize("width", [298, 330, 466, 700, 1006, 1440])
def test_nothing_is_cut_at_the_right(browser: Browser, width: int) -> None:
    page = drawn(browser, streams.snapshot(4, 1, 200.25), width, views=VIEWS)
    open_ranks(page)
    logged(page, 4, "loss", "accuracy")
    for details in page.locator("summary").all():
        details.click()
    page.get_by_role("button", name="By rank").last.click()
    page.wait_for_function("document.querySelectorAll('.arw-log .arw-legend-item').length === 8")
    assert page.evaluate("document.documentElement.scrollWidth") == width
    assert not page.evaluate(CUT)
    page.close()


def test_hosts_whose_names_are_cut_can_be_told_apart(browser: Browser) -> None:
    now = streams.snapshot(8, 8, 200.25)
    names = {host.name: f"{host.name.replace('-', '-in-the-second-rack-')}.lab.example.org" for host in now.hosts}
    hosts = tuple(replace(host, name=names[host.name]) for host in now.hosts)
    ranks = tuple(replace(rank, host=names[rank.host]) for rank in now.ranks)
    page = drawn(browser, replace(now, hosts=hosts, ranks=ranks), 700, views=VIEWS)
    shown = page.locator(".arw-host-name")
    assert len(set(shown.all_inner_texts())) == 8
    assert not page.evaluate(
        "[...document.querySelectorAll('.arw-host-name')].some((node) => node.scrollWidth > node.clientWidth)"
    )
    assert (shown.first.get_attribute("title") or "").startswith("studio-in-the-second-rack-1.lab.example.org")
    assert shown.first.get_attribute("aria-hidden") == "true"
    assert page.locator(".arw-host-whole").first.text_content() == "studio-in-the-second-rack-1.lab.example.org"
    page.close()


def test_names_of_hosts_are_measured_again_when_other_figures_stand_beside_them(browser: Browser) -> None:
    now = streams.snapshot(8, 8, 200.25)
    names = {host.name: f"{host.name}.lab" for host in now.hosts}
    hosts = tuple(replace(host, name=names[host.name]) for host in now.hosts)
    ranks = tuple(replace(rank, host=names[rank.host]) for rank in now.ranks)
    whole = replace(now, hosts=hosts, ranks=ranks)
    unknown = replace(whole, hosts=tuple(replace(host, load=None, memory_used=None) for host in hosts))
    cut = "() => [...document.querySelectorAll('.arw-host-name')].some((one) => one.scrollWidth > one.clientWidth)"
    page = drawn(browser, unknown, 700, views=VIEWS)
    for scene in (whole, unknown, streams.on_gpus(whole), whole):
        show(page, scene)
        assert not page.evaluate(cut)
        assert len(set(page.locator(".arw-host-name").all_inner_texts())) == 8
    page.close()


def test_the_first_line_says_how_what_is_logged_stands(browser: Browser) -> None:
    page = drawn(browser, streams.snapshot(8, 8, 200.25), 640, views=VIEWS)
    assert "main · 8 ranks on 8 hosts · ring · ready" in page.locator(".arw-world").inner_text()
    logged(page, 2, "loss", "a name that is longer than what there is room for beside it", "accuracy")
    page.wait_for_selector(".arw-glance-part")
    first, second = page.locator(".arw-glance-part").all()
    mean = math.exp(-39 / 30) + 0.5
    assert first.inner_text().split() == ["loss", f"{mean:.5g}", "step", "39"]
    assert len((first.locator("polyline").get_attribute("points") or "").split()) == 40
    for width in (330, 640):
        page.set_viewport_size({"width": width, "height": 900})
        box = second.bounding_box()
        assert box and box["x"] >= 0 and box["x"] + box["width"] <= width - 16
    rows = [(rank, "loss", 7, 40, math.nan, 1.0) for rank in range(2)]
    page.evaluate("(rows) => window.tell({ do: 'logged', number: 2 }, rows)", rows_json(rows).decode())
    page.wait_for_function("/not a number.*step 40/s.test(document.querySelector('.arw-glance-part').innerText)")
    page.close()
    page = drawn(browser, streams.snapshot(2, 1, 200.25), 640, views=("log",))
    logged(page, 2, "loss")
    assert page.locator(".arw-glance").count() == 0, "its chart is all there is"
    page.close()


CELL: streams.Items = [{"cell": 7, "kind": "begin", "ranks": [0, 1, 2, 3], "count": 3, "code": streams.CODE}]
SEEN = """(node) => {
  const { color, backgroundColor, borderTopColor } = getComputedStyle(node);
  return { color, backgroundColor, borderTopColor, cut: node.scrollHeight > node.clientHeight + 1 };
}"""


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [700, 900, 1440])
def test_the_rank_that_others_wait_for_is_seen_first_and_axe_finds_nothing(
    browser: Browser, axe: str, width: int, theme: str
) -> None:
    page = drawn(browser, streams.hanging(4, 1), width, views=VIEWS, theme=theme)
    open_ranks(page)
    send_all(page, items=CELL)
    page.wait_for_function("document.querySelector('.arw-rank[data-late=true]').innerText.includes('In[3]')")
    assert "waiting for rank 2" in page.locator(".arw-world").inner_text()
    late, other = (page.locator(f'.arw-rank[data-rank="{rank}"]') for rank in (2, 1))
    assert late.inner_text().split("\n") == ["2", "running", "In[3], line 5", "others wait for it"]
    assert not late.locator(".arw-rank-main").evaluate(SEEN)["cut"]
    notice = page.locator(".arw-advice .arw-icon").evaluate(SEEN)["color"]
    assert late.evaluate(SEEN)["borderTopColor"] == notice
    for part in (".arw-state", ".arw-icon-warning", ".arw-doing"):
        assert late.locator(part).first.evaluate(SEEN)["color"] == notice
    muted = page.locator(".arw-states").evaluate(SEEN)["color"]
    assert other.locator(".arw-state").evaluate(SEEN)["color"] == muted, "those that wait do not stand out"
    row = page.locator(".arw-status tbody tr").nth(2)
    assert row.locator(".arw-state-cell").evaluate(SEEN)["color"] == notice
    doing = row.locator(".arw-doing-text")
    assert not doing.evaluate(SEEN)["cut"] and "of the data set" in doing.inner_text()
    assert not serious(page, axe)
    page.close()


def test_what_a_rank_does_is_read_in_two_lines_or_whole_where_the_focus_is(browser: Browser) -> None:
    now = streams.hanging(4, 1)
    source = f"batch = next({', '.join(f'files_of_the_data_set[{n}]' for n in range(6))})"
    long = replace(now, ranks=(now.ranks[0], now.ranks[1], replace(now.ranks[2], source=source), now.ranks[3]))
    page = drawn(browser, replace(long, ranks=now.ranks), 700, views=("ranks",))
    row = page.locator(".arw-status tbody tr").nth(2)
    doing, height = row.locator(".arw-doing-text"), "(row) => row.offsetHeight"
    show(page, long)
    assert doing.evaluate(SEEN)["cut"] and (doing.get_attribute("title") or "").endswith(source)
    tall = row.evaluate(height)
    show(page, replace(now, ranks=(*now.ranks[:2], replace(now.ranks[2], source="pass"), now.ranks[3])))
    assert row.evaluate(height) == tall, "what is below does not jump"
    show(page, long)
    row.locator("button").focus()
    assert not doing.evaluate(SEEN)["cut"]
    page.close()


def test_words_that_do_not_explain_themselves_are_explained(browser: Browser) -> None:
    now = streams.snapshot(4, 1, 200.25)
    states: list[RankState] = ["unblocked", "dead", "running", "running"]
    ranks = tuple(replace(one, state=state) for one, state in zip(now.ranks, states, strict=True))
    page = drawn(browser, replace(now, ranks=ranks, state="broken"), 700, views=VIEWS)
    open_ranks(page)
    for selector in (".arw-rank-main", ".arw-state-cell > *", ".arw-states span >> text=1 unblocked"):
        assert "was aborted" in (page.locator(selector).first.get_attribute("title") or "")
    heal = page.locator(".arw-advice button")
    assert "the other ranks keep theirs" in (heal.get_attribute("title") or "")
    session = page.context.new_cdp_session(page)
    nodes = session.send("Accessibility.getFullAXTree")["nodes"]
    (button,) = [one for one in nodes if one["role"]["value"] == "button" and one["name"]["value"] == "Heal"]
    assert button["description"]["value"] == heal.get_attribute("title")
    page.close()


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [700, 900, 1440])
def test_a_rank_that_failed_or_died_is_named_first_and_axe_finds_nothing(
    browser: Browser, axe: str, width: int, theme: str
) -> None:
    now = streams.snapshot(8, 8, 200.25)
    lost: dict[int, RankState] = {2: "dead", 5: "failed"}
    ranks = [replace(one, state=lost.get(one.rank, one.state)) for one in now.ranks]
    page = drawn(browser, replace(now, ranks=tuple(ranks)), width, views=VIEWS, theme=theme)
    open_ranks(page)
    logged(page, 4, "loss")
    first, second = page.locator(".arw-states .arw-lost").all()
    assert [first.inner_text(), second.inner_text()] == ["rank 2 dead", "rank 5 failed"]
    assert (page.locator(".arw-states").text_content() or "").startswith("rank 2 dead rank 5 failed "), "as it is heard"
    assert first.locator(".arw-icon").is_visible(), "a sign, too, for who sees no red"
    assert first.evaluate("(node) => getComputedStyle(node).backgroundColor") != "rgba(0, 0, 0, 0)"
    assert not serious(page, axe)
    page.close()


def test_the_chart_of_traffic_follows_the_width_and_the_theme_though_nothing_new_is_heard(browser: Browser) -> None:
    page = drawn(browser, streams.snapshot(2, 1, 200.25), 1440, views=("throughput",))
    page.wait_for_selector(".arw-chart canvas")
    page.set_viewport_size({"width": 700, "height": 900})
    fits = """() => {
      const [chart] = document.querySelectorAll(".arw-chart"), [plot] = chart.querySelectorAll(".uplot");
      return document.body.clientWidth === 700 && Math.abs(plot.clientWidth - chart.clientWidth) < 2;
    }"""
    page.wait_for_function(fits, timeout=5000)
    page.evaluate("""() => {
      document.querySelector(".arw-chart canvas").dataset.old = "";
      document.body.style.background = "#111111";
      document.body.style.setProperty("--jp-layout-color0", "#111111");
      document.body.dataset.jpThemeLight = "false";
    }""")
    page.wait_for_selector('.arw-root[data-theme="dark"]')
    page.wait_for_selector(".arw-chart canvas[data-old]", state="detached", timeout=5000)
    page.close()


@pytest.mark.parametrize("width", [466, 1006, 1440])
def test_charts_of_what_was_logged_share_the_width(browser: Browser, width: int) -> None:
    for ranks, names in [(2, ["loss"]), (6, ["loss"]), (3, ["loss", "accuracy"]), (6, ["loss", "accuracy", "rate"])]:
        page = drawn(browser, streams.snapshot(ranks, 1, 200.25), width, views=("log",))
        logged(page, ranks, *names)
        page.get_by_role("button", name="By rank").last.click()
        lines = ranks * len(names)
        page.wait_for_function("(n) => document.querySelectorAll('.arw-log .arw-legend-item').length === n", arg=lines)
        charts = page.evaluate(CHARTS)
        across = len({left for left, *_ in charts})
        for _, chart, canvas, grid in charts:
            assert chart == pytest.approx((grid - 12 * (across - 1)) / across, abs=1), f"{ranks} ranks, {names}"
            assert canvas == pytest.approx(chart, abs=2)
        page.close()


INK = """() => {
  const canvas = document.querySelector(".arw-log-figure canvas");
  const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
  let ink = 0;
  for (let at = 3; at < data.length; at += 4) ink += data[at] > 100;
  return ink;
}"""


def test_a_curve_that_began_with_one_point_becomes_a_line(browser: Browser) -> None:
    rows = [(0, "loss", 1, step, 1 / (step + 1), 0.0) for step in range(400)]
    has = "(step) => document.querySelector('.arw-log-name')?.innerText.includes(step)"
    ink = []
    for first in (len(rows), 1):
        page = drawn(browser, streams.snapshot(1, 1, 200.25), 700, views=("log",))
        send_all(page, rows=rows[:first])
        page.wait_for_function(has, arg=f"step {first - 1}")
        rest = rows_json(rows[first:]).decode()
        page.evaluate("(rows) => window.tell({ do: 'logged', number: 2 }, rows)", rest)
        page.wait_for_function(has, arg="step 399")
        ink.append(page.evaluate(INK))
        page.close()
    assert ink[1] == pytest.approx(ink[0], rel=0.05)
