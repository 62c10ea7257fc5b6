"""JupyterLab in a browser: one server, one Chromium, a notebook on a page for each test."""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Any

import nbformat

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

ROOT = Path(__file__).parents[2]
SETTINGS = {
    "apputils-extension/notification": '{"fetchNews": "false"}',  # it asks in a corner that covers the page
    "notebook-extension/tracker": '{"windowingMode": "none"}',  # else cells that are not in view are hidden
}
OPEN = """async ([path, kernel]) => {
  const { commands } = window.jupyterapp;
  const kernelPreference = kernel ? undefined : { shouldStart: false, autoStartDefault: false };
  const panel = await commands.execute("docmanager:open", { path, factory: "Notebook", kernelPreference });
  window.panel = panel;
  await panel.context.ready;
  if (kernel) { await panel.sessionContext.ready; await panel.sessionContext.session?.kernel?.info; }
}"""
RUN = """async () => { await window.jupyterapp.commands.execute("notebook:run-all-cells"); }"""
SETTLED = """async () => {
  const drawn = () => new Promise((done) => requestAnimationFrame(() => setTimeout(done)));
  const ends = (one) => one.playState === "running" && Number.isFinite(one.effect?.getComputedTiming().endTime);
  await drawn();
  for (let moving; (moving = document.getAnimations().filter(ends)).length; await drawn())
    await Promise.all(moving.map((one) => one.finished.catch(() => {})));
}"""
THEME = """async (theme) => { await window.jupyterapp.commands.execute("apputils:change-theme", { theme }); }"""


class Lab:
    """A running JupyterLab with its own settings."""

    def __init__(self, folder: Path) -> None:
        self.notebooks = folder / "notebooks"
        self.notebooks.mkdir(parents=True)
        self.token = secrets.token_hex(16)
        places = {f"JUPYTER_{name}_DIR": str(folder / name.lower()) for name in ("CONFIG", "DATA", "RUNTIME")}
        path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
        env = {**os.environ, **places, "IPYTHONDIR": str(folder / "ipython"), "PYTHONPATH": path}
        for plugin, setting in SETTINGS.items():
            file = folder / "user_settings" / "@jupyterlab" / f"{plugin}.jupyterlab-settings"
            file.parent.mkdir(parents=True)
            file.write_text(setting)
        self._log = (folder / "lab.log").open("wb")
        command = [sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root", "--expose-app-in-browser"]
        command += [
            "--port=0",  # what it gets is in its runtime folder: a port chosen here might be taken meanwhile
            f"--IdentityProvider.token={self.token}",
            f"--ServerApp.root_dir={self.notebooks}",
        ]
        command += [f"--LabApp.{kind}_dir={folder / kind}" for kind in ("workspaces", "user_settings")]
        self.process = subprocess.Popen(command, env=env, stdout=self._log, stderr=self._log, cwd=self.notebooks)
        info = folder / "runtime" / f"jpserver-{self.process.pid}.json"
        deadline = time.monotonic() + 180
        while True:
            try:
                self.url = f"http://127.0.0.1:{json.loads(info.read_text())['port']}"
                urllib.request.urlopen(f"{self.url}/api?token={self.token}", timeout=30).close()
                return
            except (OSError, ValueError):  # not there yet, or not whole
                if self.process.poll() is not None or time.monotonic() > deadline:
                    self.close()
                    raise
                time.sleep(0.1)

    def close(self) -> None:
        self.process.terminate()  # it shuts its kernels down
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self._log.close()

    def notebook(self, browser: Browser, name: str, *cells: str) -> Notebook:
        """A new notebook with these cells, open and with a kernel."""
        notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
        notebook.metadata.kernelspec = {"name": "python3", "display_name": "Python 3", "language": "python"}
        nbformat.write(notebook, self.notebooks / f"{name}.ipynb")
        return Notebook(self, browser, f"{name}.ipynb")


class Notebook:
    """One notebook on a page of its own."""

    def __init__(self, lab: Lab, browser: Browser, path: str, kernel: bool = True) -> None:
        self.lab, self.path = lab, path
        self.page: Page = browser.new_page(viewport={"width": 1360, "height": 1500})
        self.page.set_default_timeout(90_000)
        self.open(kernel)

    def open(self, kernel: bool = True) -> None:
        """Load JupyterLab and the notebook, as a user does after a reload."""
        name = self.path.removesuffix(".ipynb")
        self.page.goto(f"{self.lab.url}/lab/workspaces/{name}?reset&token={self.lab.token}")
        self.page.wait_for_function("window.jupyterapp !== undefined")
        self.page.evaluate("() => window.jupyterapp.restored")
        self.page.evaluate(OPEN, [self.path, kernel])

    def run(self) -> None:
        """Run all cells, and wait for their end."""
        self.page.evaluate(RUN)

    def begin(self) -> None:
        """Run all cells and do not wait."""
        self.page.evaluate(f"() => {{ window.running = ({RUN})(); }}")

    def finish(self) -> None:
        self.page.evaluate("() => window.running")

    def execute(self, code: str) -> None:
        """Run code that is in no cell, and wait for its end."""
        self.page.evaluate("(code) => window.panel.sessionContext.session.kernel.requestExecute({ code }).done", code)

    def save(self) -> None:
        self.page.evaluate("() => window.panel.context.save()")

    def theme(self, name: str) -> None:
        self.page.evaluate(THEME, name)
        theme = "dark" if "Dark" in name else "light"
        self.page.wait_for_selector(f'.arw-root[data-theme="{theme}"]')

    def settled(self) -> None:
        """Wait until no colour fades and nothing moves any more."""
        self.page.wait_for_selector("#jupyterlab-splash", state="detached")
        self.page.evaluate(SETTLED)

    def text(self, selector: str) -> str:
        return self.page.locator(selector).first.inner_text()

    def close(self) -> None:
        self.page.evaluate("() => window.panel.sessionContext.shutdown()")
        self.page.close()


LAY_OUT = """() => {
  for (let round = 0; round < 20; round++) {
    const box = document.createElement("div");
    box.style.cssText = "position: absolute; visibility: hidden; width: 600px";
    for (let each = 0; each < 500; each++) {
      const word = document.createElement("span");
      word.textContent = `word ${each} of ${round} `;
      box.append(word);
    }
    document.body.append(box);
    box.getBoundingClientRect();
    box.remove();
  }
}"""


class Meter:
    """Chromium's counters of a page, from now on."""

    def __init__(self, page: Page) -> None:
        self._page = page
        self._session = page.context.new_cdp_session(page)
        self._session.send("Performance.enable")
        self._first = self.read()

    def read(self) -> dict[str, float]:
        found: list[dict[str, Any]] = self._session.send("Performance.getMetrics")["metrics"]
        return {one["name"]: one["value"] for one in found}

    def busy(self) -> float:
        """Seconds of processor time that the main thread has used since the start, or since the last call.

        What others do on the same machine does not count.
        """
        before, self._first = self._first, self.read()
        return self._first["ThreadTime"] - before["ThreadTime"]

    def unit(self) -> float:
        """Seconds of processor time that it needs now to lay out 10,000 words, a measure of the machine."""
        self.busy()
        self._page.evaluate(LAY_OUT)
        return self.busy()
