"""What a flood of output costs the notebook's page: how long it takes to answer, and its memory. No line may be lost.

In JupyterLab, in Chromium, while four ranks print `LINES` lines each and after that, without a dashboard and with one.
An interaction (a click into another cell, a key typed there, a turn of the wheel) counts from the input, as the browser
stamps it, until what it changed is drawn. Memory is that of all of Chromium's renderers, over their memory just before
the flood, both after a garbage collection.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import psutil

from allranks.notebook.output_writer import BAR

from ._table import Bar, Row, Table
from .page import missing

if TYPE_CHECKING:
    from tests.browser.lab import Notebook

RANKS = 4
LINES = 1_000_000
INTERACTIONS = 30
"""Interactions of each kind after the flood."""
MILLISECONDS, MEGABYTES = 100.0, 100.0
"""The most that an interaction, and the page's additional memory, are to take."""

UP = f"%load_ext allranks\n%distributed up -n {RANKS} --backend ring"
PRINT = "%%distributed\nfor step in range({lines}):\n    print('step', step, 'of the flood on rank', rank)"
PASS, WATCH = "pass", "%distributed watch"
SAVE = "%distributed output --save {file}"
KINDS = {"click": "click", "keydown": "key", "wheel": "scroll"}
LISTEN = """() => {
  window.took = { click: [], keydown: [], wheel: [] };
  for (const kind of Object.keys(window.took))
    document.addEventListener(kind, (event) => {
      requestAnimationFrame(() => setTimeout(() => window.took[kind].push(performance.now() - event.timeStamp)));
    }, { capture: true, passive: true });
}"""
TAKE = """() => {
  const { took } = window;
  window.took = { click: [], keydown: [], wheel: [] };
  return took;
}"""
BEGIN = """(at) => {
  window.panel.content.activeCellIndex = at;
  window.flooding = true;
  window.jupyterapp.commands.execute("notebook:run-cell").then(() => { window.flooding = false; });
}"""
DRAWN = "() => new Promise((drawn) => requestAnimationFrame(() => setTimeout(drawn)))"


def measure(repeat: int | None, *, quick: bool = False) -> Table:
    """Rounds of one flood."""
    rounds, lines = (repeat or 2, 20_000) if quick else (repeat or 5, LINES)
    table = Table("page-flood", f"the page while {RANKS} ranks print {lines:,} lines each; lower is better")
    if lacking := missing():
        table.notes.append(f"Not measured: {lacking}.")
        return table
    fewest = INTERACTIONS
    for cell, also in ((PASS, ""), (WATCH, ", with a dashboard")):
        floods = [_flood(lines, cell) for _ in range(rounds)]
        table.rows += _rows(floods, also)
        fewest = min([fewest, *(len(times) for flood in floods for times in flood.during.values())])
    table.notes.append(
        f"At least {fewest} interactions of each kind during a flood, {INTERACTIONS} after it. Lines lost: those that "
        "`%distributed output --save` does not write."
    )
    return table


def _rows(floods: list[_Flood], also: str) -> list[Row]:
    rows = [Row(f"the flood, to the last line shown{also}", "s", [flood.seconds for flood in floods])]
    for when in ("during", "after"):
        for kind, name in KINDS.items():
            longest = [max(getattr(flood, when)[kind]) for flood in floods]
            rows.append(Row(f"longest {name} {when}{also}", "ms", longest, bar=Bar("at most", MILLISECONDS, "ours")))
    memory = [flood.megabytes for flood in floods]
    of_page = f"the page's memory over an empty notebook's{also}"
    return [
        *rows,
        Row(of_page, "MB", memory, bar=Bar("at most", MEGABYTES, "ours")),
        Row(f"lines lost{also}", "", [flood.lost for flood in floods], bar=Bar("at most", 0, "ours")),
    ]


class _Flood(NamedTuple):
    seconds: float
    during: dict[str, list[float]]
    """Milliseconds of each interaction by kind of event."""
    after: dict[str, list[float]]
    megabytes: float
    lost: int


def _flood(lines: int, before: str) -> _Flood:
    """One flood, after the cell `before`."""
    from playwright.sync_api import sync_playwright

    from tests.browser.lab import Lab

    folder = Path(tempfile.mkdtemp(prefix="allranks-page-flood-"))
    file = folder / "printed.txt"
    lab = Lab(folder)
    try:
        with sync_playwright() as playwright:
            chromium = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
            print_lines, save = PRINT.format(lines=lines), SAVE.format(file=file)
            notebook = lab.notebook(chromium, "flood", "typed = 0", UP, before, print_lines, save, "%distributed down")
            try:
                _run(notebook, 1)
                _run(notebook, 2)
                notebook.page.evaluate(LISTEN)
                _interact(notebook)
                notebook.page.evaluate(TAKE)
                empty, began = _memory(notebook), time.monotonic()
                notebook.page.evaluate(BEGIN, 3)
                while notebook.page.evaluate("window.flooding"):
                    _interact(notebook)
                seconds, during = time.monotonic() - began, notebook.page.evaluate(TAKE)
                for _ in range(INTERACTIONS):
                    _interact(notebook)
                after, memory = notebook.page.evaluate(TAKE), _memory(notebook)
                _run(notebook, 4)
                _run(notebook, 5)
            finally:
                notebook.close()
                chromium.close()
        lost = RANKS * lines - _written(file)
        return _Flood(seconds, during, after, (memory - empty) / 1e6, lost)
    finally:
        lab.close()
        shutil.rmtree(folder, ignore_errors=True)


def _run(notebook: Notebook, at: int) -> None:
    notebook.page.evaluate(BEGIN, at)
    notebook.page.wait_for_function("!window.flooding", timeout=600_000)


def _interact(notebook: Notebook) -> None:
    """Click into the first cell, type there, and turn the wheel down and up again; wait until each is drawn."""
    page = notebook.page
    editor = page.locator(".jp-Cell .cm-content").first.bounding_box()
    if editor is None or editor["y"] < 0:
        page.evaluate("() => window.panel.content.node.querySelector('.jp-WindowedPanel-outer').scrollTo(0, 0)")
        page.evaluate(DRAWN)
        return
    x, y = (
        editor["x"] + editor["width"] / 2,
        editor["y"] + editor["height"] / 2,
    )  # the buttons of the cell are at its right
    page.mouse.click(x, y)
    page.evaluate(DRAWN)
    page.keyboard.press("1")
    page.evaluate(DRAWN)
    for turned in (40, -400):
        page.mouse.wheel(0, turned)
        page.evaluate(DRAWN)


def _memory(notebook: Notebook) -> int:
    """Bytes that Chromium's renderers alone hold, after a garbage collection in the page."""
    notebook.page.context.new_cdp_session(notebook.page).send("HeapProfiler.collectGarbage")
    renderers = [
        child for child in psutil.Process().children(recursive=True) if "--type=renderer" in " ".join(child.cmdline())
    ]
    return sum(int(child.memory_full_info().uss) for child in renderers)


def _written(file: Path) -> int:
    """Number of lines of the flood in the file that `%distributed output --save` wrote."""
    with file.open(encoding="utf-8") as lines:
        return sum(1 for line in lines if "of the flood on rank" in line.partition(BAR)[2])
