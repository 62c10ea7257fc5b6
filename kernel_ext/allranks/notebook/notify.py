"""Notifies the user when a long cell ends or needs attention: by bell, browser, shell command or HTTP request."""

from __future__ import annotations

import contextvars
import json
import logging
import os
import subprocess
import tempfile
import threading
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from allranks.errors import UsageError
from allranks.units import duration_text

from .ipython_shell import running_shell

WITHIN = 20.0
"""Timeout, in seconds, for a command or a request."""
LONGEST = 1_000
"""Limit for the characters of a notification; Discord refuses more than 2,000."""
JSON_HOSTS = ("slack.com", "discord.com")
"""Hosts whose webhooks take JSON; all other hosts get plain text."""
ASK_IN_PAGE = """if ("Notification" in window) Notification.requestPermission();"""
SHOW_IN_PAGE = """
if ("Notification" in window && Notification.permission === "granted") new Notification("allranks", { body: %s });
"""


@dataclass(frozen=True)
class Notifier:
    """How the user is notified, and how long a cell must take for that. Raises UsageError for an invalid `url`."""

    bell: bool = False
    """Ring the terminal's bell, outside of a kernel."""
    browser: bool = False
    """Show a browser notification, in a kernel."""
    command: str | None = field(default=None, repr=False)
    """Run this command in a shell, with the text in ``$ALLRANKS_TEXT``."""
    url: str | None = field(default=None, repr=False)
    """Send the text to this URL by POST: to ntfy, or to a webhook of Slack or Discord."""
    over: float = 30.0
    """Notify of a cell's end if the cell took this many seconds or more."""

    def __post_init__(self) -> None:
        if self.url is not None and not _is_address(self.url):
            raise UsageError("the url must be an address that begins with https:// or http://.")

    def ended(self, label: str, status: str, why: str, seconds: float) -> None:
        """Notify of the end of a cell, unless the cell was short or the user stopped it."""
        if seconds >= self.over and status != "stopped":
            how = "succeeded" if status == "ok" else f"failed: {why}"
            self.send(f"{label} {how} ({duration_text(seconds)})")

    def needs_attention(self, text: str) -> None:
        """Notify of a running cell that hangs, or waits for the user."""
        self.send(text)

    def send(self, text: str) -> None:
        """Send a notification now. If the command or the URL fails, that is printed below the calling notebook cell."""
        text = text.replace("\0", "")[:LONGEST]
        try:
            self._show(text)
            if self.command is not None or self.url is not None:
                run = contextvars.copy_context().run
                threading.Thread(target=run, args=(self._send, text), name="allranks-notify").start()
        except Exception:  # a failed notification must not end a cell
            logging.getLogger("allranks").exception("a notification could not be sent")

    def ask_page(self) -> None:
        """Have the browser ask to allow notifications; some browsers ask only after a click or a key press."""
        if self.browser:
            self._run_in_page(ASK_IN_PAGE)

    def _show(self, text: str) -> None:
        if self.browser:
            self._run_in_page(SHOW_IN_PAGE % json.dumps(text))
        if self.bell and not _has_kernel():
            print("\a", end="", flush=True)

    @staticmethod
    def _run_in_page(script: str) -> None:
        if _has_kernel():
            from IPython.display import Javascript, display

            shown = display(Javascript(script), display_id=True)  # type: ignore[no-untyped-call]
            shown.update({}, raw=True)  # or a saved notebook would run the script again when it is opened

    def _send(self, text: str) -> None:
        if self.command is not None and (why := _run(self.command, text)):
            print(f"Not notified: the command {why}.")
        if self.url is not None and (why := _post(self.url, text)):
            print(f"Not notified: {urlsplit(self.url).hostname} {why}.")

    def __str__(self) -> str:
        ways = [name for name, is_on in (("bell", self.bell), ("browser", self.browser)) if is_on]
        ways += ["command"] if self.command is not None else []
        ways += [f"POST to {urlsplit(self.url).hostname}"] if self.url is not None else []
        length = duration_text(self.over)
        return f"Notifications of cells that take {length} or longer, and of hangs: {', '.join(ways)}."


def _has_kernel() -> bool:
    return hasattr(running_shell(), "kernel")


def _is_address(url: str) -> bool:
    try:
        parts = urlsplit(url)
    except ValueError:
        return False
    return parts.scheme in ("http", "https") and bool(parts.hostname) and url.isprintable() and " " not in url


def _run(command: str, text: str) -> str:
    """Run a command; returns why it failed, empty if it succeeded."""
    environment = {**os.environ, "ALLRANKS_TEXT": text}
    with tempfile.TemporaryFile() as said:  # not a pipe, which a background program would keep open
        try:
            done = subprocess.run(
                command, shell=True, env=environment, stdout=subprocess.DEVNULL, stderr=said, timeout=WITHIN
            )
        except subprocess.TimeoutExpired:
            return f"took longer than {WITHIN:g} s"
        except (OSError, ValueError) as error:
            return f"cannot be run ({type(error).__name__})"
        said.seek(0)
        last = (said.read().decode(errors="replace").strip().splitlines() or [""])[-1]
    return f"ended with exit code {done.returncode}{f' ({last})' if last else ''}" if done.returncode else ""


def _post(url: str, text: str) -> str:
    """Post the text; returns why it failed, empty if it succeeded. Does not repeat the URL, which may be secret."""
    import urllib.error  # slower to import than the other modules here
    import urllib.request
    from http.client import HTTPException

    class NoRedirect(urllib.request.HTTPRedirectHandler):
        """Refuses redirects, since urllib's redirected request would have no text."""

        def redirect_request(self, *_: object, **__: object) -> None:
            return None

    host = urlsplit(url).hostname or ""
    as_json = any(host == each or host.endswith(f".{each}") for each in JSON_HOSTS)
    data = json.dumps({"text": text, "content": text}) if as_json else text
    kind = "application/json" if as_json else "text/plain; charset=utf-8"
    headers = {"Content-Type": kind, "User-Agent": "allranks"}
    try:
        request = urllib.request.Request(url, data.encode(), headers, method="POST")
        with urllib.request.build_opener(NoRedirect).open(request, timeout=WITHIN):
            return ""
    except urllib.error.HTTPError as error:
        return f"answered {error.code} {error.reason}"
    except (OSError, HTTPException, ValueError) as error:
        return f"cannot be reached ({type(error).__name__})"
