"""What the notebook's page costs: its main thread while a dashboard is fed, and a cell until its output is drawn.

In JupyterLab, in Chromium. The dashboard gets five frames a second of ranks that train, made in advance. Processor time
is measured for the page's main thread and for the kernel. A cell's time in the page counts from the command to run it
until its output is drawn; the kernel's own time is what ipykernel notes in its replies.
"""

from __future__ import annotations

import importlib.util
import shutil
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from ._table import Bar, Row, Table

if TYPE_CHECKING:
    from tests.browser.lab import Notebook

HZ = 5
FRAMES = 50
"""Frames of a round."""
CELLS = 15
WORLDS = {4: (1, 5.0), 64: (8, 10.0), 256: (32, None)}
"""Hosts, and the most that the page's main thread is to take, in percent of a core, by the number of ranks."""
KERNEL = 1.0
"""The most that the kernel is to take for four ranks, in percent of a core."""
UP_RATIO, CELL_RATIO = 1.3, 1.5

SHOW = """
import time
from pathlib import Path
from allranks_widgets import Dashboard
from tests.widgets import streams

def feed(count, hz, file):
    ready = [streams.snapshot({size}, {hosts}, 200 + n / hz, at=began - 200) for n in range(count)]
    used = time.process_time()
    for each in ready:
        dashboard.show(each)
        time.sleep(1 / hz)
    Path(file).write_text(str(time.process_time() - used))

dashboard, began = Dashboard(), time.time()
dashboard.history([streams.snapshot({size}, {hosts}, n, at=began - 200) for n in range(200)])
dashboard.output(streams.training({size}))
dashboard.show(streams.snapshot({size}, {hosts}, 200.0, at=began - 200))
dashboard
"""
SHOWN = 'Number(document.querySelector(".arw-root").dataset.frames)'
RUN_CELL = """async (at) => {
  const { content, sessionContext } = window.panel;
  let own = 0;
  const heard = (_, { msg, direction }) => {
    if (direction === "recv" && msg.header.msg_type === "execute_reply" && msg.metadata.started)
      own = (new Date(msg.header.date) - new Date(msg.metadata.started)) / 1000;
  };
  const { kernel } = sessionContext.session;
  kernel.anyMessage.connect(heard);
  content.activeCellIndex = at;
  const began = performance.now();
  await window.jupyterapp.commands.execute("notebook:run-cell");
  await new Promise((drawn) => requestAnimationFrame(() => setTimeout(drawn)));
  const seconds = (performance.now() - began) / 1000;
  kernel.anyMessage.disconnect(heard);
  return [seconds, own];
}"""


def measure(repeat: int | None, *, quick: bool = False) -> Table:
    """Rounds of `FRAMES` frames for each world, and of cells in turn."""
    rounds, frames, cells = (repeat or 2, 10, 3) if quick else (repeat or 5, FRAMES, CELLS)
    table = Table("page", f"the notebook's page in JupyterLab, {HZ} frames a second; lower is better")
    if lacking := missing():
        table.notes.append(f"Not measured: {lacking}.")
        return table
    from playwright.sync_api import sync_playwright

    from tests.browser.lab import Lab

    folder = Path(tempfile.mkdtemp(prefix="allranks-page-"))
    lab = Lab(folder)
    try:
        with sync_playwright() as playwright:
            chromium = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
            for size, (hosts, limit) in WORLDS.items():
                code = SHOW.format(size=size, hosts=hosts)
                notebook = lab.notebook(chromium, f"dashboard-{size}", code)
                table.rows += _dashboard(notebook, size, limit, rounds, frames, folder)
                notebook.close()
            up = ["%load_ext allranks\n%distributed up -n 4 --backend ring", "%%distributed\npass", "pass"]
            for_cells = lab.notebook(chromium, "cells", *up, "%distributed down")
            table.rows += _cells(for_cells, rounds, cells)
            for_cells.close()
            chromium.close()
    finally:
        lab.close()
        shutil.rmtree(folder, ignore_errors=True)
    return table


def missing() -> str:
    """What a benchmark of the page lacks here; empty if nothing."""
    for package in ("playwright", "jupyterlab"):
        if importlib.util.find_spec(package) is None:
            return f"{package} is not installed (pip install {package})"
    return "" if shutil.which("chromium") else "chromium is not installed (apt install chromium)"


def _dashboard(notebook: Notebook, size: int, limit: float | None, rounds: int, frames: int, folder: Path) -> list[Row]:
    """Shares of a core that the page's main thread and the kernel take for the dashboard of `size` ranks."""
    from tests.browser.lab import Meter

    notebook.run()
    notebook.page.wait_for_selector(f'.arw-rank[data-rank="{size - 1}"]')
    notebook.settled()
    meter, used = Meter(notebook.page), folder / f"used-{size}"
    page, kernel = list[float](), list[float]()
    for _ in range(rounds):
        used.unlink(missing_ok=True)
        shown = notebook.page.evaluate(SHOWN)
        meter.busy()
        began = time.monotonic()
        notebook.execute(f"feed({frames}, {HZ}, {str(used)!r})")
        notebook.page.wait_for_function(f"{SHOWN} > {shown}")
        passed = time.monotonic() - began
        page.append(100 * meter.busy() / passed)
        kernel.append(100 * float(used.read_text()) / passed)
    core, ranks = "% of a core", f"{size} ranks"
    return [
        Row(f"{ranks}: main thread of the page", core, page, bar=Bar("at most", limit, "ours") if limit else None),
        Row(f"{ranks}: kernel", core, kernel, bar=Bar("at most", KERNEL, "ours") if size == min(WORLDS) else None),
    ]


def _cells(notebook: Notebook, rounds: int, cells: int) -> list[Row]:
    """The start and a trivial cell, to their drawn output; a cell's time counts beyond the kernel's own."""

    def run(at: int) -> tuple[float, float]:
        seconds, own = notebook.page.evaluate(RUN_CELL, at)
        return float(seconds), float(own)

    up, own_up, ours, plain = list[float](), list[float](), list[float](), list[float]()
    for _ in range(rounds):
        seconds, own = run(0)
        up.append(seconds)
        own_up.append(own)
        for _ in range(cells):
            for at, samples in ((1, ours), (2, plain)):
                seconds, own = run(at)
                samples.append(seconds - own)
        run(3)
    return [
        Row("up -n 4, to the page", "s", up, own_up, "the kernel's own time", Bar("at most", UP_RATIO)),
        Row("`pass` on four ranks, beyond the kernel", "s", ours, plain, "plain `pass`", Bar("at most", CELL_RATIO)),
    ]
