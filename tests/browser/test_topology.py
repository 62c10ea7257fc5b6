"""The picture of hosts, ranks and links: what is in it can be read, however many there are and however wide the page."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from allranks_backends.views import RankState, Snapshot
from tests.browser.pictures import drawn, show
from tests.widgets import streams

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = [pytest.mark.browser, pytest.mark.timeout(300)]

# Widths of the widget in JupyterLab with its file browser, on pages of 700, 900 and 1440 pixels, and without.
WIDTHS = [330, 466, 700, 1006, 1440]
ON_ONE_HOST = [(size, 1) for size in [*range(2, 17), 64, 256]]
ON_SEVERAL = [(size, hosts) for hosts in (2, 3, 4, 8) for size in (hosts, 4 * hosts - 1)] + [(64, 8), (256, 8)]

FOUND = """() => {
  const found = [], root = document.querySelector(".arw-topology").getBoundingClientRect();
  const boxOf = (node) => node.getBoundingClientRect();
  const meets = (a, b, by = 0) => a.left < b.right - by && b.left < a.right - by && a.top < b.bottom - by && b.top < a.bottom - by;
  const words = (node) => { const range = document.createRange(); range.selectNodeContents(node); return range.getBoundingClientRect(); };
  const ranks = [...document.querySelectorAll(".arw-rank")].map((node) => [`rank ${node.dataset.rank}`, boxOf(node), node.dataset.rank]);
  const heads = [...document.querySelectorAll(".arw-host-head span")].filter((node) => !node.children.length && node.textContent);
  const texts = heads.map((node) => [node.textContent, boxOf(node)]).filter(([, box]) => box.width);
  const labels = [...document.querySelectorAll(".arw-lines text")].filter((node) => node.textContent).map((node) => [node.textContent, boxOf(node)]);
  const lines = [...document.querySelectorAll(".arw-line")];
  for (const line of lines) {
    const frame = boxOf(line.ownerSVGElement), length = line.getTotalLength(), { from, to } = line.dataset;
    const box = boxOf(line);
    const near = [...ranks, ...texts, ...labels].filter(([, other]) => meets(box, { left: other.left - 1, right: other.right + 1, top: other.top - 1, bottom: other.bottom + 1 }));
    if (box.left < root.left || box.right > root.right + 1) found.push(`link ${from} to ${to} leaves the picture`);
    for (let at = 0; near.length && at <= length; at += 2) {
      const point = line.getPointAtLength(at), [x, y] = [point.x + frame.left, point.y + frame.top];
      for (const [name, other, rank] of near)
        if (rank !== from && rank !== to && x > other.left && x < other.right && y > other.top && y < other.bottom) found.push(`link ${from} to ${to} crosses ${name}`);
    }
  }
  const all = [...ranks, ...texts, ...labels];
  for (const [name, box] of all) if (box.left < root.left - 1 || box.right > root.right + 1) found.push(`${name} leaves the picture`);
  const edges = [...document.querySelectorAll(".arw-host")].map(boxOf);
  labels.forEach(([name, box], i) => {
    for (const [other, there] of [...ranks, ...texts, ...labels.slice(i + 1)]) if (meets(box, there, 1)) found.push(`${name} lies on ${other}`);
    for (const edge of edges) if (meets(box, edge) && (box.left < edge.left || box.right > edge.right || box.top < edge.top || box.bottom > edge.bottom)) found.push(`${name} lies on the edge of a host`);
  });
  for (const node of heads) if (!node.closest(".arw-host-what") && node.scrollWidth > node.clientWidth + 1 && node.clientWidth) found.push(`${node.textContent} is cut`);
  for (const row of document.querySelectorAll(".arw-host-figures")) if (row.scrollWidth > row.clientWidth + 1) found.push(`${row.textContent} is cut`);
  for (const node of document.querySelectorAll(".arw-rank")) {
    const state = node.querySelector(".arw-state"), more = boxOf(node.querySelector(".arw-more")), shown = boxOf(node);
    const word = boxOf(state).width ? state : node.querySelector(".arw-doing");
    if (!boxOf(word).width) continue;
    const text = words(word);
    if (word.textContent !== node.dataset.state && word !== state) continue;
    if (text.right > shown.right - 1 || (word === state && text.right > more.left + 2)) found.push(`${word.textContent} of rank ${node.dataset.rank} is cut`);
  }
  return [...new Set(found)];
}"""


def world(size: int, hosts: int, mesh: bool) -> Snapshot:
    """With every state, since a word must not be cut, and a line for the interface in the heads of hosts."""
    now = streams.snapshot(size, hosts, 30.0)
    states: list[RankState] = ["unblocked", "waiting", "debugging", "failed", "running", "waiting"]
    ranks = tuple(replace(one, state=states[one.rank % 6], since=0.3 * (one.rank % 6)) for one in now.ranks)
    machines = tuple(replace(one, interface="en3", sent_rate=3.21e9, received_rate=3.18e9) for one in now.hosts)
    links = streams.mesh(size, hosts) if mesh else now.links
    return replace(now, ranks=ranks, links=links, hosts=machines if hosts > 1 else now.hosts)


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("mesh", [False, True], ids=["ring", "mesh"])
def test_no_link_crosses_a_rank_or_a_text_and_no_word_is_cut(browser: Browser, mesh: bool, width: int) -> None:
    page = drawn(browser, world(2, 1, mesh), width)
    found = {}
    for size, hosts in ON_ONE_HOST + ON_SEVERAL:
        if mesh and size > 64:
            continue  # a snapshot of 65,280 links
        now = world(size, hosts, mesh)
        show(page, now)
        assert page.locator(".arw-rank").count() == size
        found[size, hosts] = page.evaluate(FOUND)
        if not mesh or (size <= 16 and width > 1000):
            assert page.locator(".arw-line").count() == len(now.links), "all are drawn"
        elif not page.locator(".arw-line").count():
            assert "too many to draw" in page.locator(".arw-links summary").inner_text()
    page.close()
    wrong = {world: said for world, said in found.items() if said}
    assert not wrong, "\n".join(f"{size} ranks on {hosts}: {'; '.join(said[:4])}" for (size, hosts), said in wrong.items())
