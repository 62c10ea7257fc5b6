"""Tells the user of a long cell that it has ended, or needs somebody: by bell, browser, command or HTTP request."""

from __future__ import annotations

import contextvars
import json
import os
import subprocess
import threading
from dataclasses import dataclass
from urllib.parse import urlsplit

from IPython.display import Javascript, display

from allranks.units import duration_text

WITHIN = 20.0
"""Seconds that a command or a request may take."""
JSON_HOSTS = ("slack.com", "discord.com")
"""Hosts whose webhooks take JSON; all others get plain text."""
IN_PAGE = """
if ("Notification" in window) {
    Notification.requestPermission().then((answer) => {
        if (answer === "granted") new Notification("allranks", { body: %s });
    });
}
"""


@dataclass(frozen=True)
class Notifier:
    """How the user is told, and from which length of a cell on."""

    bell: bool = False
    """Ring the terminal's bell."""
    browser: bool = False
    """Show a notification of the browser, which asks for permission once."""
    command: str | None = None
    """Run this in a shell. It finds the text in ``$ALLRANKS_TEXT``."""
    url: str | None = None
    """Send the text to this address by POST: to ntfy, or to a webhook of Slack or Discord."""
    over: float = 30.0
    """Seconds that a cell takes at least for its end to be told."""

    def ended(self, label: str, status: str, why: str, seconds: float) -> None:
        """A cell has ended; a short one is not told, nor is one that the user has stopped."""
        if seconds >= self.over and status != "stopped":
            how = "succeeded" if status == "ok" else f"failed: {why}"
            self.tell(f"{label} {how} ({duration_text(seconds)})")

    def needs_somebody(self, label: str, why: str) -> None:
        """A running cell hangs, or waits for the user."""
        self.tell(f"{label}: {why.strip()}")

    def tell(self, text: str) -> None:
        """Tell it now, in all ways. What fails is printed, below the cell of the context in which this is called."""
        if self.bell:
            print("\a", end="", flush=True)
        if self.browser:
            shown = display(Javascript(IN_PAGE % json.dumps(text)), display_id=True)  # type: ignore[no-untyped-call]
            shown.update({"text/plain": ""}, raw=True)  # else a saved notebook would tell it again when it is opened
        if self.command is not None or self.url is not None:
            run = contextvars.copy_context().run
            threading.Thread(target=run, args=(self._send, text), name="allranks-notify", daemon=True).start()

    def _send(self, text: str) -> None:
        if self.command is not None and (why := _run(self.command, text)):
            print(f"Not notified: {self.command!r} {why}.")
        if self.url is not None and (why := _post(self.url, text)):
            print(f"Not notified: {urlsplit(self.url).hostname} {why}.")

    def __str__(self) -> str:
        ways = [name for name, is_on in (("bell", self.bell), ("browser", self.browser)) if is_on]
        ways += [f"command {self.command!r}"] if self.command is not None else []
        ways += [f"POST to {urlsplit(self.url).hostname}"] if self.url is not None else []
        length = duration_text(self.over)
        return f"Notifications of cells that take {length} or longer, and of hangs: {', '.join(ways)}."


def _run(command: str, text: str) -> str:
    """Why it failed; empty where it did not."""
    environment = {**os.environ, "ALLRANKS_TEXT": text}
    try:
        done = subprocess.run(command, shell=True, env=environment, capture_output=True, text=True, timeout=WITHIN)
    except subprocess.TimeoutExpired:
        return f"took longer than {WITHIN:g} s"
    last = (done.stderr.strip().splitlines() or [""])[-1]
    return f"ended with exit code {done.returncode}{f' ({last})' if last else ''}" if done.returncode else ""


def _post(url: str, text: str) -> str:
    """Why it failed; empty where it did not."""
    import urllib.request  # takes longer than the rest here

    host = urlsplit(url).hostname or ""
    as_json = any(host == each or host.endswith(f".{each}") for each in JSON_HOSTS)
    data = json.dumps({"text": text, "content": text}) if as_json else text
    kind = "application/json" if as_json else "text/plain; charset=utf-8"
    headers = {"Content-Type": kind, "User-Agent": "allranks"}
    try:
        request = urllib.request.Request(url, data.encode(), headers, method="POST")
        with urllib.request.urlopen(request, timeout=WITHIN):
            return ""
    except (OSError, ValueError) as error:
        return f"cannot be reached ({error})"
