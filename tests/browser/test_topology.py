"""The picture of hosts, ranks and links: it can be read however many there are, and however wide the page is."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest

from allranks_backends.views import LinkView, RankState, Snapshot
from tests.browser.pictures import drawn, show
from tests.widgets import streams

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = [pytest.mark.browser, pytest.mark.timeout(300)]

# A narrow page, then JupyterLab with its file browser on pages of 700, 900 and 1440 pixels, and without.
WIDTHS = [298, 330, 466, 700, 1006, 1440]
ALL_WORLDS_AT = (298, 1006)
"""At other widths every third of the worlds is drawn."""
ON_ONE_HOST = [(size, 1) for size in [*range(2, 17), 17, 33, 64, 256]]
ON_SEVERAL = [(size, hosts) for hosts in (2, 3, 4, 8) for size in (hosts, 4 * hosts - 1)] + [(64, 8), (256, 8)]

FOUND = """() => {
  const found = new Set(), root = document.querySelector(".arw-topology").getBoundingClientRect();
  const plan = document.querySelector(".arw-plan").getBoundingClientRect();
  const all = (selector) => [...document.querySelectorAll(selector)];
  const boxOf = (node) => node.getBoundingClientRect();
  const named = (nodes) =>
    nodes.map((node) => ({ name: node.textContent, box: boxOf(node) })).filter(({ box }) => box.width);
  const meets = (a, b, by = 0) =>
    a.left < b.right - by && b.left < a.right - by && a.top < b.bottom - by && b.top < a.bottom - by;
  const within = (a, b) => a.left >= b.left && a.right <= b.right && a.top >= b.top && a.bottom <= b.bottom;
  const cut = (node) => node.clientWidth && node.scrollWidth > node.clientWidth + 1;

  const ranks = all(".arw-rank").map((node) => ({ name: `rank ${node.dataset.rank}`, box: boxOf(node), node }));
  const drawn = (node) => node.textContent && getComputedStyle(node).clipPath === "none"; // others are only heard
  const words = all(".arw-host-head span").filter((node) => !node.children.length && drawn(node));
  const heads = named(words), labels = named(all(".arw-lines text").filter((node) => node.textContent));
  const things = [...ranks, ...heads, ...labels];
  for (const { name, box } of things)
    if (box.left < root.left - 1 || box.right > root.right + 1 || box.bottom > plan.bottom + 1)
      found.add(`${name} leaves the picture`);

  for (const line of all(".arw-line")) {
    const { from, to } = line.dataset, link = `link ${from} to ${to}`;
    const box = boxOf(line), frame = boxOf(line.ownerSVGElement);
    if (box.left < root.left || box.right > root.right + 1) found.add(`${link} leaves the picture`);
    const ends = [`rank ${from}`, `rank ${to}`];
    const near = things.filter((one) => !ends.includes(one.name) && meets(box, one.box, -1));
    for (let at = 0; near.length && at <= line.getTotalLength(); at += 2) {
      const { x, y } = line.getPointAtLength(at), [left, top] = [x + frame.left, y + frame.top];
      const point = { left, right: left, top, bottom: top };
      for (const { name, box } of near) if (meets(point, box)) found.add(`${link} crosses ${name}`);
    }
  }
  labels.forEach(({ name, box }, i) => {
    for (const other of [...ranks, ...heads, ...labels.slice(i + 1)])
      if (meets(box, other.box, 1)) found.add(`${name} lies on ${other.name}`);
    for (const host of all(".arw-host").map(boxOf))
      if (meets(box, host) && !within(box, host)) found.add(`${name} lies on the edge of a host`);
  });
  for (const node of [...words.filter((node) => !node.closest(".arw-host-what")), ...all(".arw-host-figures")])
    if (cut(node)) found.add(`${node.textContent} is cut`);
  for (const { name, box, node } of ranks) {
    const top = node.querySelector(".arw-state"), state = boxOf(top).width ? top : node.querySelector(".arw-doing");
    if (!boxOf(state).width) continue; // a number and a sign only
    const range = document.createRange();
    range.selectNodeContents(state);
    const end = state === top ? boxOf(node.querySelector(".arw-more")).left + 2 : box.right - 1;
    // A rank that others wait for has its line there.
    const { textContent } = state, { late } = node.dataset;
    const whole = textContent === node.dataset.state || (late === "true" && /^line [0-9]+$/.test(textContent));
    if (!whole || boxOf(range).right > end) found.add(`the state of ${name} is cut`);
  }
  return [...found];
}"""


TOO_WIDE = """() => [...document.querySelectorAll(".arw-map-side, .arw-map-busiest li, .arw-map-legend")]
  .filter((node) => node.scrollWidth > node.clientWidth + 1).map((node) => node.className)"""

STATES: list[RankState] = [
    "unblocked",
    "waiting",
    "debugging",
    "failed",
    "running",
    "waiting",
    "dead",
    "idle",
    "starting",
    "suspended",
]


def world(size: int, hosts: int, mesh: bool) -> Snapshot:
    """With every state, since a word must not be cut, and a line for the interface in the heads of hosts."""
    now = streams.snapshot(size, hosts, 30.0)
    ranks = tuple(
        replace(one, state=STATES[one.rank % len(STATES)], since=9.0 if one.rank % len(STATES) == 1 else 0.3)
        for one in now.ranks
    )
    machines = tuple(replace(one, interface="en3", sent_rate=3.21e9, received_rate=3.18e9) for one in now.hosts)
    links = streams.mesh(size, hosts) if mesh else now.links
    return replace(now, ranks=ranks, links=links, hosts=machines if hosts > 1 else now.hosts)


def uneven(sizes: list[int], mesh: bool) -> Snapshot:
    """As many ranks on each host."""
    now = world(sum(sizes), len(sizes), mesh)
    names = [host.name for host, size in zip(now.hosts, sizes, strict=True) for _ in range(size)]
    return replace(now, ranks=tuple(replace(one, host=name) for one, name in zip(now.ranks, names, strict=True)))


@pytest.mark.parametrize("width", WIDTHS)
def test_hosts_tell_of_their_gpus_and_no_word_is_cut(browser: Browser, width: int) -> None:
    page = drawn(browser, world(2, 1, mesh=False), width)
    found: dict[tuple[int, int], list[str]] = {}
    for size, hosts in [(2, 1), (8, 1), (2, 2), (8, 2), (8, 8), (64, 8)]:
        show(page, streams.on_gpus(world(size, hosts, mesh=False)))
        found[size, hosts] = page.evaluate(FOUND)
        heads = page.locator(".arw-host-gpu").all_inner_texts()
        several = f"{size // hosts} GPUs" if size > hosts else "GPU"
        assert len(heads) == hosts and all(several in head and "87 %" in head for head in heads)
    show(page, streams.on_gpus(world(2, 1, mesh=False), each=2))
    told = "NVIDIA H100 80GB HBM3 (ranks 0-1) · 87 % busy · 61.2 GB of 80.0 GB · 412 W · 64 °C"
    assert page.locator(".arw-host-gpu").get_attribute("title") == told
    page.close()
    assert not (wrong := {world: said for world, said in found.items() if said}), wrong


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("mesh", [False, True], ids=["ring", "mesh"])
def test_no_link_crosses_a_rank_or_a_text_and_no_word_is_cut(browser: Browser, mesh: bool, width: int) -> None:
    page = drawn(browser, world(2, 1, mesh), width)
    found: dict[tuple[int, int | str], list[str]] = {}
    third = slice(None) if width in ALL_WORLDS_AT else slice(WIDTHS.index(width) % 3, None, 3)
    for size, hosts in (ON_ONE_HOST + ON_SEVERAL)[third]:
        now = world(size, hosts, mesh)
        show(page, now)
        assert page.locator(".arw-rank").count() == size
        found[size, hosts] = page.evaluate(FOUND)
        if not mesh or (size <= 16 and width > 1000):
            assert page.locator(".arw-line").count() == len(now.links), "all are drawn"
        elif not page.locator(".arw-line").count():
            assert page.locator(".arw-map canvas").is_visible(), "they are shown as a map"
            assert page.evaluate(TOO_WIDE) == [], "nothing of the map is cut"
    for sizes in [1, 7], [4, 1, 4], [8, 1, 1]:
        show(page, uneven(sizes, mesh))
        found[sum(sizes), str(sizes)] = page.evaluate(FOUND)
    page.close()
    wrong = {world: said for world, said in found.items() if said}
    assert not wrong, "\n".join(f"{size} on {hosts}: {'; '.join(said[:4])}" for (size, hosts), said in wrong.items())


def test_a_rank_that_failed_shows_its_cause_also_where_others_wait_for_it(browser: Browser) -> None:
    now = streams.snapshot(4, 1, 30.0)
    waits: RankState = "waiting"
    ranks = [replace(one, state=waits, since=9.0) for one in now.ranks]
    ranks[1] = replace(ranks[1], state="failed", cause="ValueError: bad batch")
    ranks[2] = replace(ranks[2], state="running")
    page = drawn(browser, replace(now, ranks=tuple(ranks)), 1006)
    said = [page.locator(f'.arw-rank[data-rank="{rank}"] .arw-doing').inner_text() for rank in (1, 2)]
    blamed = [page.locator(f'.arw-rank[data-rank="{rank}"] .arw-blame').is_visible() for rank in (1, 2)]
    assert said == ["ValueError: bad batch", "line 4"] and blamed == [False, True]
    page.close()


@pytest.mark.parametrize(("hosts", "width"), [(2, 700), (2, 1006), (2, 1440), (3, 1006), (4, 1006)])
def test_every_link_between_hosts_of_a_ring_of_up_to_16_ranks_has_its_rates(
    browser: Browser, hosts: int, width: int
) -> None:
    page = drawn(browser, world(2, 2, False), width)
    bare = {}
    for size in range(hosts, 17):
        now = world(size, hosts, False)
        show(page, now)
        pairs = {(view.link.source, view.link.target) for view in now.links if view.link.kind == "thunderbolt"}
        shown = sum(map(bool, page.locator(".arw-rate[data-kind='thunderbolt']").all_text_contents()))
        if shown < len(pairs):
            bare[size] = f"{shown} of {len(pairs)}"
    page.close()
    assert not bare


@pytest.mark.parametrize("size", [24, 32, 64])
def test_which_links_of_a_large_mesh_are_busy_is_seen_and_can_be_read(browser: Browser, size: int) -> None:
    now = world(size, 4, True)
    page = drawn(browser, replace(now, links=busy_from(now, 3)), 1006)
    shown = page.evaluate(FIELDS)
    assert page.locator(".arw-map-busiest li").first.inner_text() == "3 → 7: 4.00 GB/s"
    assert (
        f"{size - 1} of {size * (size - 1):,} links are busy.".replace(",", "\u202f")
        in page.locator(".arw-map").inner_text()
    )
    rows = [row for row, colours in enumerate(shown) if len(set(colours) - {shown[0][1], shown[0][0]}) > 0]
    assert rows == [3], "one row stands out"
    frame = page.locator(".arw-map-frame")
    frame.focus()
    for key in ["ArrowDown"] * 4 + ["ArrowRight"] * 7:
        page.keyboard.press(key)
    page.wait_for_function("""document.querySelector(".arw-map-read").textContent.startsWith("3 → 7: 4.00 GB/s")""")
    box = page.locator(".arw-map canvas").bounding_box()
    assert box is not None
    cell = page.evaluate(CELL)
    page.mouse.move(box["x"] + box["width"] - 1 - cell / 2, box["y"] + box["height"] - 1 - 2.5 * cell)
    page.wait_for_function(
        f"""document.querySelector(".arw-map-read").textContent.startsWith("{size - 3} → {size - 1}: 0 B/s")"""
    )
    page.close()


def busy_from(now: Snapshot, busy: int) -> tuple[LinkView, ...]:
    """Only what one rank sends moves, most of it to rank 7."""
    rates = {True: 4e9, False: 1e9}
    return tuple(
        replace(view, rate=rates[view.link.target == 7] if view.link.source == busy else 0.0) for view in now.links
    )


@pytest.mark.parametrize(("size", "hosts", "width"), [(64, 8, 330), (256, 8, 1006)])
def test_hosts_stand_for_their_ranks_where_these_have_no_room(
    browser: Browser, size: int, hosts: int, width: int
) -> None:
    page = drawn(browser, world(size, hosts, True), width)
    assert "Traffic from each host" in page.locator(".arw-map").inner_text()
    page.locator(".arw-map-frame").focus()
    for key in ["ArrowDown", "ArrowRight"]:
        page.keyboard.press(key)
    page.wait_for_function(
        """/^studio-1 → studio-2: .* on \\d+ links$/.test(document.querySelector(".arw-map-read").textContent)"""
    )
    page.close()


@pytest.mark.parametrize(("size", "hosts", "width"), [(8, 8, 330), (32, 8, 466), (64, 1, 700)])
def test_the_rate_of_a_link_can_be_read_where_there_is_no_room_to_print_it(
    browser: Browser, size: int, hosts: int, width: int
) -> None:
    now = world(size, hosts, False)
    page = drawn(browser, now, width)
    page.locator('.arw-rank[data-rank="1"] .arw-rank-main').focus()
    page.keyboard.press("Tab")
    page.keyboard.press("Shift+Tab")  # as with the keyboard, it is seen where the focus is
    said = page.locator(".arw-tooltip")
    said.wait_for(state="visible")
    assert [line.partition(":")[0] for line in said.inner_text().splitlines()] == ["1 → 2", "1 → 0"]
    page.locator(".arw-more").first.focus()
    said.wait_for(state="hidden")
    at = page.evaluate(MIDDLE)
    page.mouse.move(at["x"], at["y"])
    said.wait_for(state="visible")
    assert {line.partition(":")[0] for line in said.inner_text().splitlines()} == {"0 → 1", "1 → 0"}
    assert "GB/s" in said.inner_text()
    box, root = said.bounding_box(), page.locator(".arw-root").bounding_box()
    assert box and root and box["x"] >= root["x"] and box["x"] + box["width"] <= root["x"] + root["width"]
    page.close()


MIDDLE = """() => {
  const line = document.querySelector('.arw-line[data-from="0"][data-to="1"]');
  const box = line.ownerSVGElement.getBoundingClientRect();
  const { x, y } = line.getPointAtLength(line.getTotalLength() / 2);
  return { x: x + box.left, y: y + box.top };
}"""
CELL = """() => {
  const canvas = document.querySelector(".arw-map canvas"), ranks = document.querySelectorAll(".arw-rank").length;
  return Math.floor((canvas.clientHeight - 19) / ranks);
}"""
FIELDS = """() => {
  const canvas = document.querySelector(".arw-map canvas"), ranks = document.querySelectorAll(".arw-rank").length;
  const cell = Math.floor((canvas.clientHeight - 19) / ranks), left = canvas.clientWidth - 1 - ranks * cell;
  const pen = canvas.getContext("2d"), scale = canvas.width / canvas.clientWidth;
  const colour = (x, y) => [...pen.getImageData(x * scale, y * scale, 1, 1).data].join();
  return Array.from({ length: ranks }, (_, row) =>
    Array.from({ length: ranks }, (_, column) => colour(left + (column + 0.5) * cell, 18 + (row + 0.5) * cell)));
}"""


def test_what_a_host_is_ends_at_a_word(browser: Browser) -> None:
    page = drawn(browser, world(8, 4, False), 700)
    forms = ["Mac Studio (2025) · Apple M3 Ultra · 32 cores", "Apple M3 Ultra · 32 cores", "Mac Studio (2025)"]
    for width in WIDTHS:
        page.set_viewport_size({"width": width, "height": 900})
        page.wait_for_function(f"document.querySelector('.arw-plan').clientWidth <= {width}")
        for one in page.locator(".arw-host-what").all():
            assert one.inner_text() in [*forms, "Apple M3 Ultra", "32 cores", ""]
            assert one.get_attribute("title") == forms[0]
            assert one.evaluate("(node) => node.scrollWidth <= node.clientWidth + 1")
    page.close()


def test_the_table_of_ranks_says_which_are_in_view(browser: Browser) -> None:
    page = drawn(browser, world(64, 8, False), 1006, views=("ranks",))
    said = page.locator(".arw-below")
    said.wait_for(state="visible")
    last = page.evaluate(
        """() => {
        const rows = [...document.querySelectorAll(".arw-status tbody tr")];
        const bottom = document.querySelector(".arw-table-scroll").getBoundingClientRect().bottom;
        const middle = (row) => (row.getBoundingClientRect().top + row.getBoundingClientRect().bottom) / 2;
        return rows.filter((row) => middle(row) < bottom).length - 1; }"""
    )
    assert 5 <= last <= 12 and said.inner_text() == f"ranks 0-{last} of 64: scroll for the others"
    page.evaluate(
        """() => { const table = document.querySelector(".arw-table-scroll"); table.scrollTop = table.scrollHeight; }"""
    )
    page.wait_for_function(
        """document.querySelector(".arw-below").textContent.endsWith("-63 of 64: scroll for the others")"""
    )
    show(page, world(4, 1, False))
    said.wait_for(state="hidden")
    page.close()


def test_the_figures_of_a_slim_host_are_named_for_who_hears_or_points_at_them(browser: Browser) -> None:
    page = drawn(browser, world(8, 4, False), 330)
    host = page.locator('.arw-host[data-head="slim"]').first
    heard = host.aria_snapshot()
    assert "memory" in heard and "en3" in heard
    assert host.locator(".arw-label").first.bounding_box()["width"] <= 1, "there is no room to show it"  # type: ignore[index]
    titles = [host.locator(pair).get_attribute("title") for pair in (".arw-host-memory", ".arw-host-network")]
    assert titles == ["memory 92.0 GB of 256 GB", "en3: all traffic of the interface, from every program"]
    page.close()


def test_what_is_known_only_later_is_shown_and_has_its_room(browser: Browser) -> None:
    now = world(2, 2, False)  # two cables between the same two ranks
    early = replace(
        now,
        hosts=tuple(replace(one, interface=None) for one in now.hosts),
        links=tuple(replace(one, nominal=None) for one in now.links),
    )
    page = drawn(browser, early, 1006)
    assert page.locator(".arw-caption").text_content() == "thunderbolt · 2 cables"
    height = page.locator(".arw-host-head").first.bounding_box()["height"]  # type: ignore[index]
    show(page, now)
    assert page.locator(".arw-caption").text_content() == "thunderbolt · 2 cables · 40 Gbit/s each"
    assert page.locator(".arw-host-head").first.bounding_box()["height"] > height + 10  # type: ignore[index]
    page.close()


def test_only_many_links_are_faint_and_never_those_that_are_slow_or_missing(browser: Browser) -> None:
    strengths = """() => Object.fromEntries([...document.querySelectorAll(".arw-line")].map((line) => {
      const { from, to } = line.dataset, { opacity } = getComputedStyle(line);
      const group = getComputedStyle(line.ownerSVGElement).opacity;
      return [`${from} ${to}`, [line.dataset.link, opacity * group, Number(line.getAttribute("stroke-width"))]];
    }))"""
    page = drawn(browser, world(4, 1, True), 1006)
    few = page.evaluate(strengths)
    assert len(few) == 12 and {opacity for _, opacity, _ in few.values()} == {1}
    now = world(8, 1, True)
    show(page, replace(now, links=some_of_each(now)))
    slow, missing, idle, *others = page.evaluate(strengths).values()
    assert [slow[0], missing[0], idle[0]] == ["slow", "missing", "idle"] and slow[1] == missing[1] == idle[1] == 1
    assert {(state, opacity) for state, opacity, _ in others} == {("busy", 0.7)}
    assert min(width for _, _, width in (slow, missing, idle, *others)) >= 1
    page.close()


def some_of_each(now: Snapshot) -> tuple[LinkView, ...]:
    """A link that is slow, one that is missing, and one that is idle; the others are busy."""
    links = [replace(view, nominal=40e9) for view in now.links]
    links[:3] = [replace(links[0], nominal=1e9), replace(links[1], rate=None, sent=None), replace(links[2], rate=0.0)]
    return tuple(links)


CONTRASTS = """() => {
  const parts = (colour) => colour.match(/[\\d.]+/g).map(Number);
  const over = ([red, green, blue, alpha = 1], ground) =>
    [red, green, blue].map((part, i) => part * alpha + ground[i] * (1 - alpha));
  const linear = (part) => (part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4);
  const luminance = (colour) => {
    const [red, green, blue] = colour.map((part) => linear(part / 255));
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
  };
  const ratio = (one, other) => {
    const [low, high] = [luminance(one), luminance(other)].sort((a, b) => a - b);
    return (high + 0.05) / (low + 0.05);
  };
  const colour = (selector) => parts(getComputedStyle(document.querySelector(selector)).backgroundColor);
  const ground = colour(".arw-root").slice(0, 3), host = over(colour(".arw-host"), ground);
  return [...document.querySelectorAll(".arw-line")].map((line) => {
    const { stroke, opacity } = getComputedStyle(line);
    const drawn = (on) => over([...parts(stroke).slice(0, 3), Number(opacity)], on);
    return [line.dataset.link, Math.min(ratio(drawn(ground), ground), ratio(drawn(host), host))];
  });
}"""


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("size", [4, 8], ids=["few", "many"])
def test_every_link_stands_out_from_its_ground_by_3_to_1(browser: Browser, size: int, theme: str) -> None:
    """As WCAG 2.2 wants it of graphics (1.4.11)."""
    now = world(size, 1, True)
    page = drawn(browser, replace(now, links=some_of_each(now)), 1006, theme=theme)
    least: dict[str, float] = {}
    for state, contrast in page.evaluate(CONTRASTS):
        least[state] = min(contrast, least.get(state, 21))
    page.close()
    assert least.keys() == {"slow", "missing", "idle", "busy"}
    assert not {state: round(contrast, 2) for state, contrast in least.items() if contrast < 3}


def test_the_menu_of_every_rank_can_be_focused_also_on_the_smallest_cards(browser: Browser) -> None:
    page = drawn(browser, world(16, 1, True), 466)
    assert page.locator(".arw-rank-tiny").count() == 16
    for rank in range(16):
        more = page.locator(f'.arw-rank[data-rank="{rank}"] .arw-more')
        more.focus()
        assert more.evaluate("(node) => node === document.activeElement && getComputedStyle(node).opacity === '1'")
        card, button = more.locator("..").bounding_box(), more.bounding_box()
        assert card is not None and button is not None
        assert button["width"] == button["height"] == 24 and card["y"] <= button["y"]
        assert button["y"] + 24 <= card["y"] + card["height"]
    page.keyboard.press("Enter")
    page.wait_for_selector(".arw-menu")
    page.close()


def test_a_broken_world_names_the_rank_that_died_and_no_rates_of_links_that_are_gone(browser: Browser) -> None:
    now = streams.snapshot(4, 1, 30.0)
    dead = replace(now.ranks[1], state="dead", cause="killed by SIGKILL; last seen at line 5: mx.eval(loss)")
    gone = tuple(replace(view, rate=None, sent=None) for view in now.links)
    page = drawn(browser, replace(now, state="broken", ranks=(now.ranks[0], dead, *now.ranks[2:]), links=gone), 640)
    assert page.locator('.arw-rank[data-rank="1"] .arw-doing').inner_text() == "killed by SIGKILL"
    assert "last seen at line 5" in page.locator(".arw-advice-text").inner_text()
    assert not [text for text in page.locator(".arw-lines text").all_inner_texts() if text]
    assert "unknown" in page.locator(".arw-links summary").inner_text()
    show(page, replace(now, links=gone))
    page.wait_for_function(
        '[...document.querySelectorAll(".arw-rate")].every((one) => one.textContent.includes("unknown"))'
    )
    page.close()


DASHES = """() => [...document.querySelectorAll(".arw-line")].map((line) => {
  const { strokeDasharray, strokeDashoffset } = getComputedStyle(line);
  return [line.dataset.link, strokeDasharray === "none" ? "whole" : "dashed", parseFloat(strokeDashoffset)];
})"""


def test_the_dashes_of_busy_links_move_with_each_snapshot(browser: Browser) -> None:
    page = drawn(browser, streams.snapshot(4, 1, 30.0), 1006)
    places = list[float]()
    for seconds in (30.5, 31.0, 31.5, 32.0, 32.5):
        now = streams.snapshot(4, 1, seconds)
        links = (replace(now.links[0], rate=0.0, sent=0), *now.links[1:])
        show(page, replace(now, links=links))
        seen = {tuple(each) for each in page.evaluate(DASHES)}
        (place,) = {place for link, _, place in seen if link == "busy"}  # all lines move alike
        assert seen == {("idle", "whole", 0), ("busy", "dashed", place)}
        places.append(place)
    assert [(before - after) % 12 for before, after in pairwise(places)] == [3] * 4, "a quarter of a dash, onward"
    assert not page.evaluate("document.getAnimations().length"), "the page works 60 times a second for one"
    page.close()


def test_lines_are_whole_if_there_are_many(browser: Browser) -> None:
    page = drawn(browser, streams.snapshot(16, 1, 30.0), 1006)
    assert {(link, dashes) for link, dashes, _ in page.evaluate(DASHES)} == {("busy", "whole")}
    page.close()


def test_nothing_moves_where_the_system_is_set_to_reduce_motion(browser: Browser) -> None:
    page = drawn(browser, streams.snapshot(4, 1, 30.0), 1006)
    page.emulate_media(reduced_motion="reduce")
    assert {(link, dashes) for link, dashes, _ in page.evaluate(DASHES)} == {("busy", "whole")}
    page.close()
