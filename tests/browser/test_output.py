"""What a cell prints, in JupyterLab: wrapped lines keep their gutter, and ranks that differ stand apart."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from tests.browser.lab import Notebook
from tests.browser.pictures import drawn, send_all
from tests.widgets import streams

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = [pytest.mark.browser, pytest.mark.timeout(300)]

OpenNotebook = Callable[..., Notebook]

SHOW = """
from allranks.notebook.fold import Block
from allranks.notebook.show_blocks import Show
show = Show(range({size}), live=True, has_widget=lambda _: False)
"""
LONG = (
    SHOW.format(size=4)
    + """
words = " ".join(f"word{n}" for n in range(60))
show.blocks([Block("text", (0, 1, 3), f"{words}\\nshort\\n"), Block("text", (2,), f"{words}\\n", "stderr")])
show.close()
"""
)
APART = (
    SHOW.format(size=8)
    + """
show.blocks([Block("text", tuple(range(8)), "loaded 4,096 batches\\n")])
for step in range(50):
    show.blocks([Block("text", (rank,), f"step {step} loss 0.{4412 + rank} lr 0.001\\n") for rank in range(8)])
show.close()
"""
)
ROWS = """(output) => [...output.querySelectorAll("pre")].flatMap((pre) => {
  const range = document.createRange();
  range.selectNodeContents(pre);
  return [...range.getClientRects()].map((row) => [Math.round(row.left - pre.getBoundingClientRect().left), row.top]);
})"""
CHARACTER = """() => {
  const pre = document.querySelector(".jp-OutputArea-output pre"), box = document.createElement("span");
  box.textContent = "0".repeat(100);
  pre.append(box);
  const { width } = box.getBoundingClientRect();
  box.remove();
  return width / 100;
}"""
BROKEN = """(output) => [...output.querySelectorAll("pre")].flatMap((pre) => {
  const broken = [], walker = document.createTreeWalker(pre, NodeFilter.SHOW_TEXT), range = document.createRange();
  for (let node; (node = walker.nextNode()); )
    for (const { 0: word, index } of node.data.matchAll(/\\w+/g)) {
      range.setStart(node, index);
      range.setEnd(node, index + word.length);
      if (new Set([...range.getClientRects()].map(({ top }) => Math.round(top))).size > 1) broken.push(word);
    }
  return broken;
})"""
GUTTER = len("ranks 0-3 │ ")


@pytest.mark.parametrize("width", [700, 1440])
def test_the_rows_of_a_wrapped_line_stand_to_the_right_of_the_gutter(open_notebook: OpenNotebook, width: int) -> None:
    notebook = open_notebook(LONG)
    notebook.page.set_viewport_size({"width": width, "height": 900})
    notebook.run()
    page = notebook.page
    page.wait_for_selector('[data-mime-type$="stderr"] pre')
    character = page.evaluate(CHARACTER)
    rows = page.locator(".jp-OutputArea").first.evaluate(ROWS)
    first = [top for left, top in rows if left <= 1]
    assert len({round(top) for top in first}) == 3, "one row of each line begins with its label"
    others = [left for left, top in rows if top not in first]
    assert len(others) >= 2, "lines are wrapped"
    assert min(others) >= (GUTTER - 0.5) * character
    assert not page.locator(".jp-OutputArea").first.evaluate(BROKEN), "no word is broken"
    heights = [box["height"] for one in page.locator(".jp-OutputArea-child").all() if (box := one.bounding_box())]
    assert len(heights) == 2, "nothing else takes room"


def columns(page: Page) -> list[list[Any]]:
    """Text, left and top of what is seen of the lines."""
    found: list[list[Any]] = page.locator(".allranks-lines > *").evaluate_all(
        """(all) => all.map((one) => [one.innerText.trim(), one.getBoundingClientRect()])
          .filter(([, box]) => box.width).map(([text, box]) => [text, Math.round(box.left), Math.round(box.top)])"""
    )
    return found


def heard(page: Page) -> list[str]:
    """The text in the page's accessibility tree."""
    nodes = page.context.new_cdp_session(page).send("Accessibility.getFullAXTree")["nodes"]
    return [node["name"]["value"] for node in nodes if node["role"]["value"] == "StaticText"]


def test_ranks_that_differ_stand_in_columns_or_line_by_line_as_the_reader_chooses(
    open_notebook: OpenNotebook, browser: Browser
) -> None:
    notebook = open_notebook(APART)
    notebook.run()
    page = notebook.page
    page.wait_for_selector(".allranks-lines")
    by_rank = columns(page)
    assert [text for text, *_ in by_rank[:8]] == [f"rank {rank}" for rank in range(8)]
    assert len({left for _, left, _ in by_rank}) == 8 and len({top for *_, top in by_rank}) == 1 + 49
    assert page.locator(".allranks-lines u").first.inner_text() == "0.4412"
    decoration = page.locator(".allranks-lines u").first.evaluate("(one) => getComputedStyle(one).textDecorationLine")
    assert decoration == "underline", "it is seen without colours"
    assert "rank 0    │ " in heard(page), "labels that are not seen are read"
    page.get_by_label("by line").check()
    by_line = columns(page)
    assert len({left for _, left, _ in by_line}) == 1 and len({top for *_, top in by_line}) == 49 * 8
    assert by_line[0][0] == "rank 0    │ step 1 loss 0.4412 lr 0.001"
    notebook.save()
    saved = Notebook(notebook.lab, browser, notebook.path, kernel=False)
    try:
        saved.page.wait_for_selector(".allranks-lines")
        assert len(columns(saved.page)) == len(by_rank)
        saved.page.get_by_label("by line").check()
        assert len(columns(saved.page)) == len(by_line)
    finally:
        saved.page.close()


def test_each_line_stands_in_the_columns_of_its_ranks_below_their_line_before(open_notebook: OpenNotebook) -> None:
    lines = [(1,), (1,), (0, 1), (0, 1, 3), (2,), (3,), (3,), (0,), (1, 2, 3), (2, 3), (0, 1, 2, 3), (2,), (1,)]
    said = [f"Block('text', {ranks}, 'line {n}\\n')" for n, ranks in enumerate([(0,), (3,)] * 4 + lines)]
    apart = APART.replace("range(8)", "range(4)")
    notebook = open_notebook(f"{apart[: apart.index('show.blocks')]}show.blocks([{', '.join(said)}])\nshow.close()")
    notebook.run()
    page = notebook.page
    page.wait_for_selector(".allranks-lines")
    lefts = sorted({left for text, left, _ in columns(page) if text.startswith("rank")})
    assert len(lefts) == 4
    found = {(text.partition("│ ")[2], left): top for text, left, top in columns(page) if "line" in text}
    below = dict.fromkeys(range(4), 0)
    for n, ranks in enumerate([(0,), (3,)] * 4 + lines):
        (top,) = {found[f"line {n}", lefts[first]] for first in ranks if first - 1 not in ranks}
        assert top > max(below[rank] for rank in ranks), f"line {n}"
        below.update(dict.fromkeys(ranks, top))
    assert len(found) == sum(first - 1 not in ranks for ranks in [(0,), (3,)] * 4 + lines for first in ranks)


@pytest.mark.parametrize(("size", "fit"), [(4, True), (8, False)])
def test_columns_take_no_more_width_than_their_lines_and_a_shadow_shows_that_there_are_more(
    open_notebook: OpenNotebook, size: int, fit: bool
) -> None:
    notebook = open_notebook(APART.replace("range(8)", f"range({size})"))
    notebook.run()
    lines = notebook.page.locator(".allranks-lines")
    lines.wait_for()
    assert lines.evaluate("(all) => all.scrollWidth <= all.clientWidth") is fit
    assert lines.locator("span:not(.head)").last.evaluate("(one) => one.getClientRects().length") == 1
    height = lines.evaluate("(all) => parseFloat(getComputedStyle(all).lineHeight)")
    assert all(
        box["height"] < 1.5 * height for one in lines.locator("span:not(.head)").all() if (box := one.bounding_box())
    )
    assert "local, scroll" in lines.evaluate("(all) => getComputedStyle(all).backgroundAttachment")


def test_the_choice_stays_while_lines_come(open_notebook: OpenNotebook) -> None:
    said = "more of {rank}" + " and longer words" * 9
    more = f"show.blocks([Block('text', (rank,), f'{said}\\n') for rank in range(8)])"
    notebook = open_notebook(APART.replace("show.close()", ""))
    notebook.run()
    page = notebook.page
    page.get_by_label("by line").check()
    notebook.execute(more)
    page.wait_for_selector(".allranks-lines >> text=more of 7")
    assert page.get_by_label("by line").is_checked()
    assert len({left for _, left, _ in columns(page)}) == 1
    page.set_viewport_size({"width": 900, "height": 900})
    for layout in ("by line", "by rank"):
        page.get_by_label(layout).check()
        assert not page.locator(".jp-OutputArea").first.evaluate(BROKEN), "no word is broken"


def pane(browser: Browser, *said: tuple[int, str]) -> Page:
    """The output of four ranks in the dashboard."""
    page = drawn(browser, streams.snapshot(4, 1, 200.25), 700, views=("ranks",))
    items: streams.Items = [{"cell": 1, "kind": "begin", "ranks": [0, 1, 2, 3], "code": ""}]
    items += [{"cell": 1, "kind": "text", "ranks": [rank], "stream": "stdout", "text": line} for rank, line in said]
    send_all(page, items=items)
    page.wait_for_selector(".arw-row")
    return page


def test_in_the_dashboard_the_gutter_stays_beside_a_long_line(browser: Browser) -> None:
    page = pane(browser, (0, "long " * 200 + "\n"))
    page.locator(".arw-list").evaluate("(list) => { list.scrollLeft = 1000 }")
    left = "(one) => one.getBoundingClientRect().left"
    edge, gutter = page.locator(".arw-list").evaluate(left), page.locator(".arw-gutter").first.evaluate(left)
    assert page.locator(".arw-row .arw-text").evaluate(left) < edge - 500
    assert gutter == pytest.approx(edge, abs=2)
    page.close()


def test_in_the_dashboard_a_line_that_is_cut_ends_in_an_ellipsis_until_its_end_is_seen(browser: Browser) -> None:
    page = pane(browser, (0, "short\n" + "long " * 40 + "\n"))
    rows = page.locator(".arw-row")
    sign = """(row) => {
      const list = row.closest(".arw-list");
      const edge = list.getBoundingClientRect().left + list.clientLeft + list.clientWidth;
      const end = row.getBoundingClientRect().right; // where the sign is hidden
      return end > edge + 1 && getComputedStyle(row, "::after").content === '"…"';
    }"""
    assert [row.evaluate(sign) for row in rows.all()] == [False, True]
    page.locator(".arw-list").evaluate("(list) => { list.scrollLeft = 10_000 }")
    assert not rows.nth(1).evaluate(sign)
    page.get_by_role("button", name="Columns").click()
    assert page.locator(".arw-column", has_text="long").first.get_attribute("title") == ("long " * 40)
    page.close()


def test_in_the_dashboard_only_the_words_that_differ_are_marked(browser: Browser) -> None:
    page = pane(browser, *[(rank, f"step 3 loss 0.{rank}\n") for rank in range(4)], (1, "on rank 1 alone\n"))
    row = page.locator(".arw-row", has_text="loss 0.2")
    assert row.locator(".arw-part").all_inner_texts() == ["0.2"]
    line = row.locator(".arw-part").evaluate("(one) => getComputedStyle(one).textDecorationLine")
    assert line == "underline", "it is seen without colours"
    ground = "(one) => getComputedStyle(one).backgroundColor"
    assert row.evaluate(ground) == "rgba(0, 0, 0, 0)", "not all of the line"
    assert page.locator(".arw-row", has_text="alone").evaluate(ground) != "rgba(0, 0, 0, 0)"
    page.close()
