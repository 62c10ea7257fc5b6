"""Make the pictures of README and docs again: ``python -m tests.browser.images [NAME ...]`` (needs chromium).

Real ranks on this machine in a real JupyterLab, but for `cabling`, which shows the end of `notebooks/recordings`, and
for `hosts` and `many`, which replay worlds of `tests/widgets/streams.py`: `REPLAYED` has their alt text.
`perfetto.png` is Perfetto's own page, with the file of the timeline.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import nbformat
from playwright.sync_api import sync_playwright

from allranks_backends.views import Snapshot
from allranks_widgets.dashboard import VIEWS
from allranks_widgets.recording import read
from tests.browser.lab import Lab, Notebook
from tests.browser.pictures import drawn, send_all, show
from tests.widgets import streams

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Locator, Page

ROOT = Path(__file__).parents[2]
IMAGES = ROOT / "docs" / "images"
WIDTH = 1360
SHARP = 1.5
"""Pixels of the picture for each of the page."""
LOAD, DOWN = "%load_ext allranks", "%distributed down"
TRAIN = """%%distributed
import mlx.nn as nn, mlx.optimizers as optim
mx.random.seed(0)
images = mx.random.uniform(shape=(4096, 64), key=mx.random.key(rank))
labels = (images @ mx.random.normal((64, 10), key=mx.random.key(9))).argmax(1)
model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10))
optimizer = optim.Adam(learning_rate=3e-4)
loss_and_grad = nn.value_and_grad(model, lambda model, x, y: nn.losses.cross_entropy(model(x), y, reduction="mean"))
for epoch in range(1000):
    for at in range(0, 4096, 512):
        loss, grads = loss_and_grad(model, images[at:at + 512], labels[at:at + 512])
        optimizer.update(model, nn.average_gradients(grads))
        mx.eval(model.parameters(), loss)
    log(loss=loss, step=epoch)
    average = mx.distributed.all_sum(loss) / size
    print(f"epoch {epoch}  loss {average.item():.4f}")
"""
LATE = """%%distributed
import time
for batch in range(100):
    if rank == 2 and batch == 3:
        time.sleep(60)  # reads the next file
    mx.eval(mx.distributed.all_sum(mx.ones(1000)))
"""
WARM = "%%distributed\nmx.eval(mx.distributed.all_sum(mx.ones((100, 10))))"
TRACED = """%%distributed --timeline
import time
for n in range(3):
    mark(f"batch {n}")
    with mark("step"):
        with mark("load"):
            time.sleep(0.28 if rank == 1 and n == 1 else 0.02)
        mx.eval(mx.distributed.all_sum(mx.ones((100, 10))))
"""
LOGGED = """%%distributed
import math, time
for step in range(120):
    noise = 0.08 * math.sin(step * (rank + 2)) * math.exp(-step / 40)
    log(loss=math.exp(-step / 30) * (1 + 0.3 * rank) + 0.05 + noise, step=step)
    log(accuracy=1 - math.exp(-step / 40) - 0.05 * rank, step=step)
    time.sleep(0.05)
"""
KILLED = TRAIN.replace(
    "for epoch in range(1000):",
    "import os\nfor epoch in range(40):\n    if rank == 2 and epoch == 30:\n        os.kill(os.getpid(), 9)",
)
LOSS, BEGAN = 31.0, 19.2
"""Of the curve that ends where the lines of `streams.training` do: 0.3914 at step 60."""
REPLAYED = {
    "hosts": "Eight ranks on eight hosts train: topology, throughput, the logged loss and ranks (a replayed world)",
    "many": "64 ranks on eight hosts train: topology, throughput, the logged loss and ranks (a replayed world)",
}
"""The alt text of each picture for which no ranks ran."""
LAST = 'document.querySelector(".arw-log-name")?.innerText.includes("step {step}")'


def save(what: Locator, name: str) -> None:
    what.screenshot(path=IMAGES / f"{name}.png")
    print(f"docs/images/{name}.png")


def dashboard(lab: Lab, browser: Browser) -> None:
    """Four ranks that train for half a minute."""
    notebook = opened(
        lab, browser, "dashboard", f"{LOAD}\n%distributed up -n 4 --backend ring", "%distributed watch", TRAIN
    )
    notebook.begin()
    notebook.page.wait_for_selector(".arw-log-figure")
    notebook.page.wait_for_timeout(30_000)  # a picture of half a minute takes that long
    save(notebook.page.locator(".arw-root"), "dashboard")
    end(notebook)


def hangs(lab: Lab, browser: Browser) -> None:
    """Three ranks that wait for one."""
    watch = "%distributed watch topology ranks"
    notebook = opened(lab, browser, "hangs", f"{LOAD}\n%distributed up -n 4 --backend ring", watch, LATE)
    notebook.begin()
    notebook.page.wait_for_selector(".arw-advice button:not([hidden])")
    notebook.page.wait_for_function("""/for 8 s/.test(document.querySelector(".arw-advice").innerText)""")
    save(notebook.page.locator(".arw-root"), "hangs")
    end(notebook)


def dead(lab: Lab, browser: Browser) -> None:
    """Four ranks, of which one was killed while they trained."""
    notebook = opened(
        lab, browser, "dead", f"{LOAD}\n%distributed up -n 4 --backend ring", "%distributed watch", KILLED
    )
    notebook.begin()
    notebook.page.get_by_role("button", name="Heal", exact=True).wait_for(timeout=120_000)
    notebook.settled()
    notebook.page.wait_for_timeout(4000)  # the rates are those of the last seconds
    save(notebook.page.locator(".arw-root"), "dead")
    end(notebook)


def log(lab: Lab, browser: Browser) -> None:
    """Two ranks that log a loss and an accuracy."""
    notebook = opened(
        lab, browser, "log", f"{LOAD}\n%distributed up -n 2 --backend ring", "%distributed watch log", LOGGED
    )
    notebook.run()
    notebook.page.wait_for_function(LAST.format(step=119))
    save(notebook.page.locator(".arw-root"), "log")
    end(notebook)


def timeline(lab: Lab, browser: Browser) -> None:
    """A cell of two ranks, of which one is late once."""
    notebook = opened(lab, browser, "timeline", f"{LOAD}\n%distributed up -n 2 --backend ring", WARM, TRACED, DOWN)
    notebook.run()
    notebook.settled()
    cell = notebook.page.locator(".jp-CodeCell").nth(2)
    save(cell.locator(".jp-OutputArea-output", has=notebook.page.locator("svg")).last, "timeline")
    end(notebook)


def quickstart(lab: Lab, browser: Browser) -> None:
    """The first cells of the notebook."""
    cells = nbformat.read(ROOT / "notebooks" / "quickstart.ipynb", as_version=4).cells[1:11]
    path = lab.notebooks / "quickstart.ipynb"
    nbformat.write(nbformat.v4.new_notebook(cells=cells, metadata={"kernelspec": KERNEL}), path)
    notebook = Notebook(lab, browser, path.name)
    notebook.page.set_viewport_size({"width": 1000, "height": 1350})
    notebook.page.evaluate("() => window.jupyterapp.commands.execute('application:toggle-left-area')")
    notebook.run()
    notebook.save()
    notebook.page.locator(".jp-Cell").first.evaluate("(cell) => cell.scrollIntoView()")
    notebook.settled()
    notebook.page.screenshot(path=IMAGES / "quickstart.png")
    print("docs/images/quickstart.png")
    end(notebook)


KERNEL = {"name": "python3", "display_name": "Python 3", "language": "python"}


def cabling(lab: Lab, browser: Browser) -> None:
    """Six ranks on three hosts, as they were recorded."""
    entries = list(read(ROOT / "notebooks" / "recordings" / "cabling.jsonl.gz"))
    shown = [entry.snapshot for entry in entries if entry.snapshot is not None]
    slow = max(at for at, one in enumerate(shown) if one.ranks and all(rank.state != "idle" for rank in one.ranks))
    page = drawn(browser, shown[slow - 5], 1000, views=("topology", "throughput"))
    send_all(page, past=shown[: slow - 4])
    page.wait_for_selector(".arw-chart canvas")
    page.wait_for_timeout(500)
    save(page.locator(".arw-root"), "cabling")
    page.close()


def hosts(_: Lab, browser: Browser) -> None:
    """A rank on each of eight hosts."""
    replay(browser, "hosts", streams.snapshot(8, 8, 200.25), 8)


def many(_: Lab, browser: Browser) -> None:
    """Eight ranks on each of eight hosts."""
    replay(browser, "many", streams.snapshot(64, 8, 200.25), 8)


def replay(browser: Browser, name: str, now: Snapshot, on: int) -> None:
    """Show all views of `now`, after 200 seconds of training on `on` hosts."""
    size = len(now.ranks)
    page = drawn(browser, now, WIDTH, views=VIEWS)
    some = min(size, 8)
    rows = [
        (rank, "loss", 7, step, LOSS / (step + BEGAN) + 0.01 * (rank - (some - 1) / 2), 170 + step / 2)
        for rank in range(some)
        for step in range(61)
    ]
    past = [streams.snapshot(size, on, float(when)) for when in range(200)]
    send_all(page, past=[*past, now], items=streams.training(size), rows=rows)
    page.wait_for_selector(".arw-log-figure canvas")
    page.wait_for_selector(".arw-chart canvas")
    page.wait_for_timeout(1500)  # the first line is drawn once a second
    show(page, now)  # whose times the page has counted on meanwhile
    save(page.locator(".arw-root"), name)
    print(f"![{REPLAYED[name]}](images/{name}.png)")
    page.close()


def opened(lab: Lab, browser: Browser, name: str, *cells: str) -> Notebook:
    """A notebook that is as wide as the page."""
    notebook = lab.notebook(browser, name, *cells)
    notebook.page.set_viewport_size({"width": WIDTH, "height": 2200})
    return notebook


def end(notebook: Notebook) -> None:
    notebook.page.evaluate("() => window.panel.sessionContext.session.kernel.interrupt()")
    notebook.execute("%distributed down")
    notebook.close()


PICTURES = {each.__name__: each for each in (quickstart, dashboard, hangs, cabling, timeline, log, dead, hosts, many)}


def main(names: list[str]) -> None:
    """Make these pictures, or all."""
    if unknown := [name for name in names if name not in PICTURES]:
        raise SystemExit(f"unknown picture {unknown[0]}: choose from {', '.join(PICTURES)}")
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        sharp = cast("Browser", _Sharp(browser))
        lab = Lab(Path(folder) / "lab")
        try:
            for name in names or PICTURES:
                PICTURES[name](lab, sharp)
        finally:
            lab.close()
            browser.close()
    print(f"in {time.monotonic() - began:.0f} s")


class _Sharp:
    """A browser whose pages have more pixels, so that words can be read where a picture is shown smaller."""

    def __init__(self, browser: Browser) -> None:
        self._browser = browser

    def new_page(self, **options: Any) -> Page:
        return self._browser.new_page(**options, device_scale_factor=SHARP)


if __name__ == "__main__":
    main(sys.argv[1:])
