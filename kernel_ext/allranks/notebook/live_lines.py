"""The display area for unfinished lines, such as progress bars."""

from __future__ import annotations

import html
import time
import uuid
from collections.abc import Callable, Iterable, Mapping

from IPython.display import display, update_display

from .fold import Block
from .safe_text import plain

PERIOD = 0.1
"""Seconds between two updates, so that fast bars do not flood the front end."""
# JupyterLab's CSS variables align the lines with text output, which JupyterLab indents by 1ch.
PRE_STYLE = (
    "margin:0;padding:0 min(1ch,2*var(--jp-code-padding,0px));background:transparent;white-space:pre;"
    "font-size:var(--jp-code-font-size,inherit);line-height:var(--jp-code-line-height,inherit)"
)


class LiveArea:
    """A display that is rewritten in place; empty if there is nothing to show."""

    def __init__(self, prefix: Callable[[tuple[int, ...]], tuple[str, str]]) -> None:
        self._prefix = prefix
        self._id: str | None = None
        self._lines: Mapping[int, str] = {}
        self._above: Callable[[], Iterable[Block]] = tuple
        self._shown = ""
        self._shown_at = 0.0
        self._buried = False  # other output has been written below the area

    def want(self, lines: Mapping[int, str], above: Callable[[], Iterable[Block]] = tuple) -> None:
        """Show ``lines`` by rank, equal lines once, below the blocks that ``above`` returns when the area is drawn.

        Draws now if ``PERIOD`` has passed since the last drawing, or if there is nothing to show; else in a later call.
        """
        self._lines, self._above = dict(lines), above
        self.refresh()

    def refresh(self, wrote: bool = False) -> None:
        """Update the display if it is due; ``wrote``: other output was just written below."""
        self._buried |= wrote
        now = time.monotonic()
        if (self._lines or self._above is not tuple) and now - self._shown_at < PERIOD:
            return
        wanted = self._wanted()
        if wanted == self._shown:
            return
        if self._buried and not self._shown:
            self._id = None  # an empty area that gets lines again moves below output written since
        if self._id is None:
            self._id = f"allranks-{uuid.uuid4().hex}"
            self._buried = False
            display(_bundle(wanted), raw=True, display_id=self._id)  # type: ignore[no-untyped-call]
        else:
            update_display(_bundle(wanted), raw=True, display_id=self._id)  # type: ignore[no-untyped-call]
        self._shown, self._shown_at = wanted, now

    def _wanted(self) -> str:
        groups: dict[str, list[int]] = {}
        for rank, line in sorted(self._lines.items()):
            if text := plain(line).strip("\n"):
                groups.setdefault(text, []).append(rank)
        rows = [self._prefix(block.ranks)[0] + plain(block.content).strip("\n") for block in self._above()]
        rows += [self._prefix(tuple(ranks))[0] + text for text, ranks in groups.items()]
        return "\n".join(rows)

    def wiped(self) -> None:
        """Forget the display, since the cell's output was cleared."""
        self._id, self._shown, self._buried = None, "", False


def _bundle(text: str) -> dict[str, str]:
    if not text:
        return {}  # an empty bundle leaves no gap in the output, unlike an empty text
    return {"text/plain": text, "text/html": f'<pre style="{PRE_STYLE}">{html.escape(text)}</pre>'}
