"""Feeds dashboards: one thread sends the Snapshot, and the output of cells, to every dashboard of a cluster."""

from __future__ import annotations

import logging
import re
import threading
import weakref
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from allranks.head.state.cell_run import CellRun
from allranks.head.state.logged import Row
from allranks_backends.views import Snapshot

from .fold import Block
from .ipython_shell import running_shell
from .safe_text import clean, plain

EVERY = 0.1
"""Seconds between two updates of dashboards."""
KEEP_ITEMS = 50_000
"""Limit for output items that wait to be drawn; if drawing falls behind, the oldest are dropped."""

Item = dict[str, object]


class Screen(Protocol):
    """The display of a cell's output (`show_blocks.Show`)."""

    def blocks(self, blocks: list[Block]) -> None: ...
    def live_lines(self, lines: dict[int, str]) -> None: ...
    def logged(self, rows: Sequence[Row], run: CellRun | None = None) -> None: ...
    def close(self) -> None: ...


class CellEnd(Protocol):
    """How a cell ended (`cluster.cell_result.CellResult`)."""

    @property
    def ok(self) -> bool: ...
    @property
    def seconds(self) -> float: ...


class Viewer(Protocol):
    """A dashboard, or a recorder."""

    def show(self, snapshot: Snapshot) -> None: ...
    def output(self, items: Sequence[Item]) -> None: ...
    def logged(self, rows: Sequence[Row]) -> None: ...
    def flush(self) -> None: ...
    def refresh(self) -> None: ...


class Watch:
    """The dashboards of one cluster.

    `snapshot` returns the cluster's current state. `logged` takes the position that it returned last, and returns the
    new position and the values logged since.
    """

    def __init__(
        self, snapshot: Callable[[], Snapshot], logged: Callable[[int], tuple[int, Sequence[Row]]] = lambda at: (at, ())
    ) -> None:
        self._snapshot, self._logged = snapshot, logged
        self._dashboards: weakref.WeakKeyDictionary[Viewer, int] = weakref.WeakKeyDictionary()
        """By dashboard, the position in the logged values up to which it has received them."""
        self._changing = threading.Lock()
        """Held when the feeding thread starts or ends: a dashboard must not be added to a thread that is ending."""
        self._items: deque[Item] = deque(maxlen=KEEP_ITEMS)
        self._wake = threading.Event()
        self._thread: threading.Thread | None = None
        self._drawing = threading.Lock()
        """Held while dashboards are drawn: their position in the logged values must not be read twice, and output must
        keep its order."""

    def add(self, dashboard: Viewer) -> None:
        """Feed one more dashboard, as long as it is referenced elsewhere."""
        dashboard.show(self._snapshot())
        seen, rows = self._logged(0)  # so that the first drawing has all logged values
        if rows:
            dashboard.logged(rows)
        with self._changing:
            self._dashboards[dashboard] = seen
        self.go_on()

    def go_on(self) -> None:
        """Start the thread that feeds the dashboards, if there are any and it does not run."""
        with self._changing:
            if self._dashboards and (self._thread is None or not self._thread.is_alive()):
                self._wake.clear()
                self._thread = threading.Thread(target=self._feed, name="allranks-watch", daemon=True)
                self._thread.start()
            if self._dashboards and (shell := running_shell()) is not None:
                shell.events.register("post_run_cell", self.refresh)  # once: what is registered already is left

    def take_all(self) -> list[Viewer]:
        """Stop feeding the dashboards, since their cluster has ended, and return them."""
        with self._changing:
            viewers = self._viewers()
            self._dashboards.clear()
        return viewers

    @property
    def watched(self) -> bool:
        """Whether there is a dashboard to feed."""
        return len(self._dashboards) > 0

    def put(self, item: Item) -> None:
        """Queue an item of a cell's output, if there is a dashboard."""
        if self.watched:
            self._items.append(item)

    def refresh(self, _result: object = None) -> None:
        """Update what the notebook saves, at the end of a cell of the notebook (IPython's ``post_run_cell``).

        It must not wait for the thread: nbclient, with which papermill and nbconvert run notebooks, drops updates that
        come between two cells.
        """
        if self.watched:
            self._bring(refresh=True)

    def stop(self) -> None:
        """Show that the cluster is down, and end the thread."""
        if (shell := running_shell()) is not None and self.refresh in shell.events.callbacks["post_run_cell"]:
            shell.events.unregister("post_run_cell", self.refresh)
        thread = self._thread
        self._wake.set()
        if thread is not None:
            thread.join(2.0)

    def _viewers(self) -> list[Viewer]:
        """The dashboards still referenced. They are copied at once, since another thread may add one (CPython 3.11)."""
        return [viewer for each in self._dashboards.keyrefs() if (viewer := each()) is not None]

    def _ends(self, last: bool) -> bool:
        """Whether the thread ends, since nothing is left to feed; a dashboard added later starts another thread."""
        with self._changing:
            if self.watched and not last:
                return False
            self._thread = None
            return True

    def _feed(self) -> None:
        last = False
        while not self._ends(last):
            last = self._wake.wait(EVERY)
            self._bring(refresh=last, flush=last)

    def _bring(self, refresh: bool = False, flush: bool = False) -> None:
        """Send every dashboard the snapshot, the output that waits, and new logged values. `refresh`: also have them
        update what the notebook saves; `flush`: also have them send what they hold back."""
        with self._drawing:
            items: list[Item] = []
            while self._items:
                items.append(self._items.popleft())
            snapshot = self._snapshot()
            for dashboard in self._viewers():
                try:
                    if items:
                        dashboard.output(items)
                    dashboard.show(snapshot)
                    self._dashboards[dashboard], rows = self._logged(self._dashboards[dashboard])
                    if rows:
                        dashboard.logged(rows)
                    if refresh:
                        dashboard.refresh()
                    if flush:
                        dashboard.flush()
                except Exception:  # its page or its comm is gone; the other dashboards go on
                    logging.getLogger("allranks").exception("a dashboard could not be drawn and was disconnected")
                    self._dashboards.pop(dashboard, None)


class Nowhere:
    """A screen that shows nothing, for allranks' own cells."""

    def blocks(self, blocks: list[Block]) -> None:
        """See `Screen`."""

    def live_lines(self, lines: dict[int, str]) -> None:
        """See `Screen`."""

    def logged(self, rows: Sequence[Row], run: CellRun | None = None) -> None:
        """See `Screen`."""

    def close(self) -> None:
        """See `Screen`."""


class Tee:
    """Passes a cell's output to its screen and to the dashboards."""

    def __init__(
        self, watch: Watch, screen: Screen | None, number: int, ranks: Sequence[int], code: str, count: int
    ) -> None:
        """`count` is the cell's number in the notebook's margin."""
        self._watch, self._screen, self._number = watch, screen, number
        self._ranks = list(ranks)
        self._live: Mapping[int, str] = {}
        self.result: Callable[[], CellEnd | None] = lambda: None
        """Returns how the cell ended; None while it runs."""
        # Remove the magic's line, which is a comment in the code.
        self._tell("begin", ranks=self._ranks, count=count, code=re.sub(r"\A# %%.*\n", "", code))

    def blocks(self, blocks: list[Block]) -> None:
        """See `Screen`."""
        if self._screen is not None:
            self._screen.blocks(blocks)
        for block in blocks:
            kind = "text" if block.kind == "bar" else block.kind
            self._tell(kind, ranks=list(block.ranks), **_content(block))

    def live_lines(self, lines: dict[int, str]) -> None:
        """See `Screen`."""
        if self._screen is not None:
            self._screen.live_lines(lines)
        if lines != self._live:
            self._live = dict(lines)
            self._tell("live", lines={str(rank): plain(line).strip("\n") for rank, line in lines.items()})

    def logged(self, rows: Sequence[Row], run: CellRun | None = None) -> None:
        """See `Screen`."""
        if self._screen is not None:
            self._screen.logged(rows, run)

    def close(self) -> None:
        """See `Screen`."""
        if self._screen is not None:
            self._screen.close()
        if (result := self.result()) is not None:
            self._tell("end", ok=result.ok, seconds=round(result.seconds, 3))

    def _tell(self, kind: str, **content: object) -> None:
        self._watch.put({"cell": self._number, "kind": kind, **content})


def _content(block: Block) -> dict[str, object]:
    from .output_writer import (  # imports IPython, which a script without pictures does not need
        as_text,
        settled,
        showable,
    )

    content = block.content
    if block.kind == "text":
        return {"stream": block.stream, "text": clean(content)}
    if block.kind == "bar":
        return {"stream": "stdout", "text": clean(as_text(block))}  # bars are written to stderr, and are no errors
    if block.kind == "clear":
        return {"wait": bool(content)}
    if block.kind == "error":
        return {"ename": content["ename"], "evalue": content["evalue"], "traceback": list(content["traceback"])}
    if block.kind == "cut":
        return {"text": as_text(block)}
    content = settled(content, lambda _model: False)
    return {"data": showable(content["data"]), "display_id": content.get("display_id")}
