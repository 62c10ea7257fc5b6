"""Each view is saved as a picture, with a title that says what it finds."""

from __future__ import annotations

import struct
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING
from xml.etree import ElementTree

import pytest

from tests.browser.pictures import drawn, open_ranks, send_all
from tests.browser.test_one_screen import logged
from tests.browser.test_pace import send
from tests.browser.test_states import at
from tests.browser.test_widths import VIEWS
from tests.widgets import streams

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = [pytest.mark.browser, pytest.mark.timeout(120)]

SVG = "{http://www.w3.org/2000/svg}"
EDGE, ABOVE, SHARP = 16, 52, 2
"""As in save_picture.js: pixels around, pixels of the title, and how many of the PNG make one of the page."""


def saved(page: Page, view: str, kind: str, folder: Path) -> Path:
    page.get_by_role("button", name=f"Save picture of {view}").click()
    with page.expect_download() as download:
        page.get_by_role("menuitem", name=f"Save as {kind}").click()
    file = folder / download.value.suggested_filename
    download.value.save_as(file)
    return file


def texts(file: Path) -> list[str]:
    return [node.text or "" for node in ElementTree.parse(file).iter(f"{SVG}text")]


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_each_view_is_saved_as_svg_and_png(browser: Browser, tmp_path: Path, theme: str) -> None:
    now = streams.snapshot(4, 1, 200.25)
    page = drawn(browser, now, 928, views=VIEWS, theme=theme, clock=True)
    page.clock.resume()
    logged(page, 4)
    open_ranks(page)
    page.wait_for_function("document.querySelector('.arw-list').innerText.includes('step   60')")
    page.clock.pause_at(180_000)  # a rank that was exchanging when the snapshot was made still is
    send(page, now)
    page.clock.run_for(1000)
    holds = {
        "Topology": ("Rank 3 was last in 41 of 60 timed calls; the others waited 127 ms", ["exchanging", "localhost"]),
        "Throughput": ("Throughput: all_sum 2.", ["effective", "wire"]),
        "Log": ("Log: loss 0.318 falling", ["loss", "mean"]),
        "Ranks": ("Ranks: step 60 loss 0.3914", ["memory", "step   60  loss 0.3914"]),
    }
    for view, (title, words) in holds.items():
        file = saved(page, view, "SVG", tmp_path)
        assert file.name == f"allranks-{view.lower()}.svg"
        root = ElementTree.parse(file).getroot()
        said = texts(file)
        assert title in said[0] and (root.findtext(f"{SVG}title") or "").startswith(said[0].removesuffix("…"))
        assert said[1].startswith("main · 4 ranks · ring · ready · allranks, ")
        assert "8 links" not in "".join(said[1:]), "what is folded is left out"
        assert not [word for word in words if not any(word in text for text in said)], said
        assert not [node.tag for node in root.iter() if "foreignObject" in node.tag], "which browsers alone draw"
        body = page.locator(f"[data-view={view.lower()}] .arw-section-body").bounding_box()
        assert body is not None
        size = int(root.get("width", 0)), int(root.get("height", 0))
        assert size == pytest.approx((body["width"] + 2 * EDGE, body["height"] + ABOVE + EDGE), abs=1)
        data = saved(page, view, "PNG", tmp_path).read_bytes()
        assert data[:8] == b"\x89PNG\r\n\x1a\n"
        assert struct.unpack(">II", data[16:24]) == (SHARP * size[0], SHARP * size[1])
    page.close()


def test_the_picture_looks_as_the_page_does(browser: Browser, tmp_path: Path) -> None:
    page = drawn(browser, streams.snapshot(4, 1, 200.25), 928, views=VIEWS)
    logged(page, 4)
    file = saved(page, "Topology", "SVG", tmp_path)
    root = ElementTree.parse(file).getroot()
    lines = [node for node in root.iter(f"{SVG}path") if node.get("stroke") == "rgb(8, 96, 196)"]
    assert len(lines) == 8, "the links, in the colour of those that are busy"
    frame = page.locator("[data-view=topology] .arw-section-body").bounding_box()
    assert frame is not None
    for rank in range(4):
        box = page.locator(f'.arw-rank[data-rank="{rank}"] .arw-number').bounding_box()
        assert box is not None
        (said,) = [
            node for node in root.iter(f"{SVG}text") if node.text == str(rank) and node.get("font-weight") == "600"
        ]
        assert float(said.get("x", 0)) == pytest.approx(box["x"] - frame["x"] + EDGE, abs=1)
        assert box["y"] < float(said.get("y", 0)) + frame["y"] - ABOVE < box["y"] + box["height"]
    page.close()


def test_a_picture_of_a_hang_names_the_rank_that_is_late(browser: Browser, tmp_path: Path) -> None:
    page = drawn(browser, streams.hanging(4, 1), 928, views=VIEWS)
    assert texts(saved(page, "Topology", "SVG", tmp_path))[0] == "Ranks 0-1, 3 wait for rank 2"
    page.close()


@pytest.mark.parametrize("letters", ["il", "WM"])
def test_a_long_title_is_cut_where_there_is_no_more_room(browser: Browser, tmp_path: Path, letters: str) -> None:
    now = streams.snapshot(4, 1, 200.25)
    lost = replace(now.ranks[2], state="dead", cause=f"RuntimeError: {letters * 200}")
    page = drawn(browser, replace(now, ranks=(*now.ranks[:2], lost, now.ranks[3])), 928, views=VIEWS)
    file = saved(page, "Topology", "SVG", tmp_path)
    root = ElementTree.parse(file).getroot()
    (title, *_) = texts(file)
    assert title.endswith("…") and (root.findtext(f"{SVG}title") or "").startswith(title[:-1])
    page.set_content(file.read_text(encoding="utf-8"))
    long = page.evaluate("document.querySelector('text').getComputedTextLength()")
    room = int(root.get("width", 0)) - 2 * EDGE
    assert 0.9 * room < long <= room + 1
    page.close()


def test_the_picture_of_the_states_says_that_it_shows_states(browser: Browser, tmp_path: Path) -> None:
    page = drawn(browser, at(4, 1), 928, views=("throughput",))
    send_all(page, past=[at(4, second) for second in range(30)])
    page.get_by_role("button", name="States").click()
    page.locator(".arw-states-name").first.wait_for()
    assert texts(saved(page, "Throughput", "SVG", tmp_path))[0] == "Throughput: states of the ranks"
    page.close()


def test_a_slow_link_is_the_title_before_the_rank_that_others_waited_for(browser: Browser, tmp_path: Path) -> None:
    now = streams.snapshot(4, 1, 200.25)
    links = [replace(view, nominal=40e9) for view in now.links]
    links[1] = replace(links[1], nominal=1e9)
    page = drawn(browser, replace(now, links=tuple(links)), 928, views=VIEWS)
    assert texts(saved(page, "Topology", "SVG", tmp_path))[0] == "Link 0 → 3 is slow"
    page.close()
