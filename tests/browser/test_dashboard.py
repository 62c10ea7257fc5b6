"""The dashboard in JupyterLab: it moves while a cell runs, it answers, it comes back, and everybody can read it."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.browser.axe import serious
from tests.browser.lab import Meter, Notebook
from tests.browser.pictures import open_ranks

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = [pytest.mark.browser, pytest.mark.timeout(300)]

OpenNotebook = Callable[..., Notebook]

SHOW = """
import threading, time
from allranks_widgets import Dashboard
from tests.widgets import streams

asked = []
def act(verb, rank):
    asked.append((verb, rank))
    return f"{{verb}} of rank {{rank}} was done"

dashboard = Dashboard(on_action=act)
began = time.time()
dashboard.history([streams.snapshot({size}, {hosts}, n, at=began - 200) for n in range(200)])
dashboard.output(streams.training({size}))
dashboard.show(streams.snapshot({size}, {hosts}, 200.0, at=began - 200))
dashboard
"""
FEED = """
stop = threading.Event()
def feed(rate=5.0):
    n = 0
    while not stop.wait(1 / rate):
        n += 1
        dashboard.show(streams.snapshot({size}, {hosts}, 200 + n / rate, at=began - 200))
threading.Thread(target=feed, daemon=True).start()
"""


def show(size: int, hosts: int = 1) -> str:
    return SHOW.format(size=size, hosts=hosts)


def feed(size: int, hosts: int = 1) -> str:
    return FEED.format(size=size, hosts=hosts)


def frames(notebook: Notebook) -> int:
    return int(notebook.page.locator(".arw-root").get_attribute("data-frames") or 0)


def test_all_pictures_move_while_a_cell_blocks_the_kernel(open_notebook: OpenNotebook) -> None:
    notebook = open_notebook(show(4), feed(4), "time.sleep(600)")
    notebook.begin()
    page = notebook.page
    page.wait_for_selector('.arw-rank[data-state="running"]')
    page.wait_for_selector(".arw-chart canvas")
    before = frames(notebook)
    page.wait_for_function(f'Number(document.querySelector(".arw-root").dataset.frames) > {before + 5}')
    assert page.locator(".arw-rank").count() == 4
    assert "loopback" in (page.locator(".arw-lines").text_content() or "")
    open_ranks(page)
    page.wait_for_function("""document.querySelector(".arw-legend").innerText.includes("GB/s")""")
    page.wait_for_function("""document.querySelector(".arw-list").innerText.includes("step   60  loss 0.3914")""")
    page.wait_for_function("""document.querySelectorAll(".arw-live [role=progressbar]").length === 4""")
    page.evaluate("() => window.panel.sessionContext.session.kernel.interrupt()")


def test_an_action_reaches_the_kernel_while_a_cell_blocks_it(open_notebook: OpenNotebook) -> None:
    notebook = open_notebook(show(4), "time.sleep(600)")
    notebook.begin()
    page = notebook.page
    page.wait_for_selector('.arw-rank[data-rank="2"]')
    open_ranks(page)
    page.wait_for_function("""[...document.querySelectorAll(".jp-InputPrompt")].at(-1).textContent === "[*]:" """)
    # What comes with it says that there is a kernel that can do something.
    page.wait_for_function("""document.querySelector(".arw-list").innerText.includes("step   60")""")
    opener = page.locator('.arw-rank[data-rank="2"] .arw-more')
    opener.focus()
    page.keyboard.press("Enter")
    page.keyboard.press("ArrowDown")
    clicked = time.monotonic()
    page.keyboard.press("Enter")
    page.wait_for_function("""document.querySelector(".arw-said").textContent === "abort of rank 2 was done" """)
    print(f"answered after {(time.monotonic() - clicked) * 1000:.0f} ms, while the cell still blocks the kernel")
    page.evaluate("() => window.panel.sessionContext.session.kernel.interrupt()")


def test_another_width_of_the_page_leaves_the_focus_and_a_click_where_they_were(open_notebook: OpenNotebook) -> None:
    notebook = open_notebook(show(4))
    notebook.run()
    page = notebook.page

    def drawn_again(width: int) -> None:
        page.wait_for_selector(".arw-plan > .arw-lines")
        page.evaluate("""() => { document.querySelector(".arw-plan > .arw-lines").dataset.old = "" }""")
        page.set_viewport_size({"width": width, "height": 1500})
        page.wait_for_selector(".arw-lines[data-old]", state="detached")

    drawn_again(1200)
    page.locator('.arw-rank[data-rank="2"] .arw-more').focus()
    drawn_again(1100)
    page.keyboard.press("Enter")
    page.wait_for_selector(".arw-menu")
    drawn_again(1000)
    page.keyboard.press("Escape")
    page.wait_for_selector(".arw-menu", state="detached")
    page.wait_for_selector('.arw-rank[data-rank="2"] .arw-more:focus')
    page.locator('.arw-rank[data-rank="1"] .arw-rank-main').focus()
    drawn_again(900)
    page.wait_for_selector('.arw-rank[data-rank="1"] .arw-rank-main:focus')
    page.locator('.arw-rank[data-rank="0"] .arw-more').hover()
    page.mouse.down()
    drawn_again(898)
    page.mouse.up()
    page.wait_for_selector(".arw-menu")


def test_a_click_on_a_rank_shows_its_output_only(open_notebook: OpenNotebook) -> None:
    notebook = open_notebook(show(4))
    notebook.run()
    page = notebook.page
    page.locator('.arw-rank[data-rank="2"] .arw-rank-main').click()
    page.wait_for_function("""!document.querySelector(".arw-list").innerText.includes("shard 1:")""")
    assert "shard 2:" in notebook.text(".arw-list")
    page.get_by_role("button", name="rank 2 only").click()
    page.wait_for_function("""document.querySelector(".arw-list").innerText.includes("shard 1:")""")
    page.get_by_role("button", name="Columns").click()
    page.wait_for_selector(".arw-column-head")
    assert page.locator(".arw-column-head").count() == 4


@pytest.mark.parametrize("theme", ["JupyterLab Light", "JupyterLab Dark"])
@pytest.mark.parametrize(("size", "hosts"), [(4, 1), (64, 8)])
def test_axe_finds_nothing_serious(open_notebook: OpenNotebook, axe: str, size: int, hosts: int, theme: str) -> None:
    notebook = open_notebook(show(size, hosts), f"dashboard.output(streams.failing({size}))")
    page = notebook.page
    notebook.run()
    open_ranks(page)
    page.wait_for_selector(".arw-error")
    notebook.theme(theme)
    page.locator(".arw-links summary").click()
    page.wait_for_selector(".arw-links td")
    notebook.settled()
    assert not serious(page, axe)


def test_64_ranks_at_5_hz_leave_the_page_and_the_kernel_free(open_notebook: OpenNotebook, tmp_path: Path) -> None:
    go = tmp_path / "go"
    measure = f"""
import dataclasses, json, os
ready = [streams.snapshot(64, 8, 200 + n / 5, at=began - 200) for n in range(70)]
while not os.path.exists({str(go)!r}):
    time.sleep(0.1)
before = time.process_time()
for one in ready:
    dashboard.show(one)
    time.sleep(0.2)
took, before = time.process_time() - before, time.process_time()
for one in ready:
    json.dumps(dataclasses.asdict(one))
unit = time.process_time() - before
print(f"kernel {{took / unit:.2f}} times JSON alone, {{took / 14:.4f}} of a core")
print(f"frames of {{len(dashboard.frame)}} bytes")
"""
    notebook = open_notebook(show(64, 8), measure)
    notebook.begin()
    page = notebook.page
    page.wait_for_selector('.arw-rank[data-rank="63"]')
    open_ranks(page)
    notebook.settled()
    meter, count = Meter(page), 'Number(document.querySelector(".arw-root").dataset.frames)'
    seen = [frames(notebook)]
    unit = meter.unit()
    go.touch()
    busy = []
    for button in ("Total", "By rank"):
        page.get_by_role("button", name=button, exact=True).click()
        meter.busy()
        page.wait_for_function(f"{count} >= {seen[-1] + 25}")
        seen.append(frames(notebook))
        busy.append(meter.busy() / (seen[-1] - seen[-2]))
    print(f"64 ranks: main thread {5 * busy[0]:.1%} busy at 5 Hz, with a line for each rank {5 * busy[1]:.1%}")
    unit = max(unit, meter.unit())
    print(f"a frame takes {busy[0] / unit:.2f} and {busy[1] / unit:.2f} of the unit, {unit * 1000:.0f} ms")
    # Wanted are 25% at 5 Hz on a machine at rest, 0.3 of the unit: the figures printed say how it was here.
    assert max(busy) < unit
    page.wait_for_function("""document.querySelector(".jp-OutputArea-output pre")?.textContent.includes("kernel")""")
    said = page.locator(".jp-OutputArea-output pre").last.inner_text()
    print(said)
    assert float(said.split()[1]) < 2


RICH = """
import base64, struct, zlib
def chunk(kind, data):
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
rows = b"".join(b"\\0" + b"\\x30\\x60\\xc0" * 120 for _ in range(90))
png = b"\\x89PNG\\r\\n\\x1a\\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", 120, 90, 8, 2, 0, 0, 0))
png += chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")
html = "<table><tr><td>the table</td></tr></table><script>parent.evil = 1</script><img src=x onerror='parent.evil=1'>"
dashboard.output([
    {"cell": 7, "kind": "live", "lines": {}},
    {"cell": 7, "kind": "display", "ranks": [0, 1, 2, 3], "data": {"image/png": base64.b64encode(png).decode()}},
    {"cell": 7, "kind": "display", "ranks": [1], "data": {"text/html": html, "text/plain": "as text"}},
    {"cell": 7, "kind": "text", "ranks": [2], "stream": "stdout", "text": "<b>no markup</b>\\n"},
])
"""


def test_figures_and_html_are_shown_and_run_nothing(open_notebook: OpenNotebook) -> None:
    notebook = open_notebook(show(4), RICH)
    notebook.run()
    page = notebook.page
    open_ranks(page)
    page.wait_for_function("""document.querySelector(".arw-rich img")?.naturalWidth === 120""")
    frame = page.frame_locator(".arw-rich iframe")
    frame.get_by_text("the table").wait_for()
    page.wait_for_function("""document.querySelector(".arw-list").innerText.includes("<b>no markup</b>")""")
    assert page.evaluate("() => window.evil") is None
    page.wait_for_function(
        """() => {
          const rows = [...document.querySelectorAll(".arw-row")].map((row) => row.getBoundingClientRect());
          rows.sort((one, other) => one.top - other.top);
          return rows.length > 1 && rows.every((row, at) => at === 0 || rows[at - 1].bottom <= row.top + 1);
        }"""
    )  # none on another, once the heights of figures are known


def test_four_times_100_000_lines_stay_responsive(open_notebook: OpenNotebook) -> None:
    notebook = open_notebook(show(4))
    notebook.run()
    page = notebook.page
    open_ranks(page)
    page.wait_for_function("""document.querySelector(".arw-list").innerText.includes("step   60")""")
    notebook.execute("for items in streams.flood(4, 100_000):\n    dashboard.output(items)")
    page.wait_for_function("""/^400\\D000 lines.*done in/.test(document.querySelector(".arw-counts").textContent)""")
    page.locator(".arw-list").scroll_into_view_if_needed()
    notebook.settled()
    meter = Meter(page)
    unit = meter.unit()

    def answered(action: str, done: str) -> float:
        """Milliseconds of the page's processor time from an input to the picture that follows it."""
        meter.busy()
        came: bool = page.evaluate(
            """async ([action, done]) => {
              const at = performance.now();
              eval(action);
              while (!eval(done) && performance.now() < at + 60000) await new Promise(requestAnimationFrame);
              await new Promise((drawn) => requestAnimationFrame(() => setTimeout(drawn)));
              return eval(done);
            }""",
            [action, done],
        )
        assert came, action
        return meter.busy() * 1000

    text = 'document.querySelector(".arw-list").innerText'
    button = "[...document.querySelectorAll('.arw-root button')].find((one) => one.textContent === '{}').click()"
    took = {
        "scroll to the top": answered(
            'document.querySelector(".arw-list").scrollTop = 0', f'{text}.includes("line 0")'
        ),
        "scroll to the middle": answered(
            'document.querySelector(".arw-list").scrollTop = 200000 * 19', f'{text}.includes("line 49999")'
        ),
        "tabs": answered(button.format("Tabs"), "!document.querySelector('.arw-tabs').hidden"),
        "one rank": answered(
            button.format("rank 2"), f'!{text}.includes("rank 0 says") && {text}.includes("rank 2 says")'
        ),
        "columns": answered(button.format("Columns"), "!document.querySelector('.arw-column-heads').hidden"),
        "folded": answered(button.format("Folded"), "document.querySelector('.arw-column-heads').hidden"),
    }
    print({name: f"{value:.0f} ms" for name, value in took.items()})
    heap = meter.read()["JSHeapUsedSize"]
    print(f"heap {heap / 1e6:.0f} MB")
    unit = max(unit, meter.unit())
    print(f"at most {max(took.values()) / unit / 1000:.2f} times the unit, {unit * 1000:.0f} ms")
    # Wanted are 200 ms on a machine at rest, 1.2 times the unit: the figures printed say how it was here.
    assert max(took.values()) / 1000 < 2 * unit
    page.get_by_role("button", name="rank 2 only").click()
    page.locator(".arw-search").fill("line 99999")
    page.wait_for_function("""document.querySelector(".arw-matches").textContent === "4 matches" """)


def test_a_reload_brings_everything_back(open_notebook: OpenNotebook) -> None:
    notebook = open_notebook(show(4), feed(4))
    notebook.run()
    open_ranks(notebook.page)
    notebook.save()
    notebook.open()
    page = notebook.page
    page.wait_for_selector(".arw-rank")
    page.wait_for_function("""document.querySelector(".arw-list").innerText.includes("step   60  loss 0.3914")""")
    before = frames(notebook)
    page.wait_for_function(f'Number(document.querySelector(".arw-root").dataset.frames) > {before + 3}')
    page.get_by_role("button", name="By rank").click()
    page.wait_for_function("""document.querySelectorAll(".arw-legend-item").length >= 4""")
    assert "effective" not in notebook.text(".arw-legend")


STATIC = 'img[src*="arw-saved-"]'
"""The picture that stands for the live ones in a saved notebook."""


@pytest.mark.parametrize("kernel", [False, True], ids=["no kernel", "another kernel"])
def test_a_saved_notebook_is_readable(open_notebook: OpenNotebook, browser: Browser, kernel: bool) -> None:
    notebook = open_notebook(show(16, 4))
    notebook.run()
    notebook.page.wait_for_selector(".arw-rank")
    # The tables and the static picture, while the live ones are there.
    notebook.page.get_by_text("ready").nth(1).wait_for(state="hidden")
    assert notebook.page.locator(STATIC).count() == 1 and not notebook.page.locator(STATIC).is_visible()
    notebook.save()
    notebook.page.evaluate("() => window.panel.sessionContext.shutdown()")
    saved = Notebook(notebook.lab, browser, notebook.path, kernel=kernel)
    try:
        saved.page.wait_for_function("""document.querySelector(".jp-OutputArea").innerText.includes("thunderbolt")""")
        said = saved.page.locator(".jp-OutputArea").first.inner_text()
        assert re.search(r"3 → 4\s+thunderbolt\s+en3\s+40 Gbit/s", said)
        assert "timed with --timing only" in said
        drawn = saved.page.locator(STATIC)
        assert drawn.evaluate("(image) => image.complete && image.clientWidth > 400 && image.clientHeight > 400")
        instead = saved.page.get_by_text("displaying widget" if kernel else "Loading widget")
        instead.wait_for(state="attached")
        assert not instead.is_visible(), "what JupyterLab shows in place of the live pictures"
        if kernel:
            saved.page.evaluate("() => window.panel.sessionContext.shutdown()")
    finally:
        saved.page.close()


def test_two_views_show_the_same(open_notebook: OpenNotebook) -> None:
    only: Any = 'from IPython.display import display\ndisplay(dashboard, Dashboard(views=["topology"]))'
    notebook = open_notebook(show(4), only)
    notebook.run()
    page = notebook.page
    page.wait_for_function("""document.querySelectorAll(".arw-root").length === 3""")
    for ranks in page.get_by_role("button", name="Ranks", exact=True).all():
        ranks.click()
    page.wait_for_function(
        """[...document.querySelectorAll(".arw-list")].every((one) => one.innerText.includes("step   60"))"""
    )
    assert page.locator(".arw-none:visible").first.inner_text() == "No data from the ranks yet"


def test_a_view_of_its_own_beside_the_notebook_goes_on(open_notebook: OpenNotebook) -> None:
    """JupyterLab's "Create New View for Cell Output" keeps it in sight while the notebook scrolls."""
    notebook = open_notebook(show(4), feed(4))
    notebook.run()
    page = notebook.page
    page.wait_for_selector('.arw-rank[data-rank="3"]')
    page.evaluate("""async () => {
      window.panel.content.activeCellIndex = 0;
      await window.jupyterapp.commands.execute("notebook:create-output-view");
    }""")
    beside = page.locator(".jp-LinkedOutputView .arw-root")
    beside.wait_for()
    before = int(beside.get_attribute("data-frames") or 0)
    page.wait_for_function(
        f'Number(document.querySelector(".jp-LinkedOutputView .arw-root").dataset.frames) > {before + 3}'
    )
    assert beside.locator(".arw-rank").count() == 4
    beside.get_by_role("button", name="Ranks", exact=True).click()
    page.wait_for_function(
        """document.querySelector(".jp-LinkedOutputView .arw-list").innerText.includes("step   60  loss 0.3914")"""
    )
