"""The dashboard: topology, ranks, throughput and log of a world as one Jupyter widget, drawn from Snapshots.

The front end is one bundle made from ``widgets/js-src``. It receives:

- the trait ``frame``: the last Snapshot as JSON;
- messages ``{"do": ...}``: ``output`` (items), ``logged`` (rows), ``all`` (everything again, for one page or all),
  ``said`` (answer to an action), ``beat`` (the kernel is alive).

Its requests arrive over the control channel as ``allranks_widget``, so that they are handled while a cell runs. A front
end without a control channel sends them as messages of the widget.
"""

from __future__ import annotations

import json
import threading
import time
import uuid
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from html import escape
from pathlib import Path
from typing import Any

import anywidget
import traitlets

from allranks_backends.views import RankView, Snapshot

from ._history import RateHistory
from ._kept import Json, KeptOutput
from ._saved_copy import SavedCopy
from ._snapshot_tables import logged_html, logged_text, snapshot_html, snapshot_text
from .curve_picture import Drawn
from .curves import Curves, LoggedRow, rows_json
from .snapshot_json import to_dict
from .svg_text import WIDTH, Picture, cut, stacked, svg_text
from .throughput_picture import throughput_picture
from .topology_picture import topology_picture

STATIC = Path(__file__).parent / "static"
VIEWS = ("topology", "ranks", "throughput", "log")
PICTURES = ("topology", "throughput", "log")
"""The views that `Dashboard.picture` can draw; the ranks are in the topology."""
VERBS = ("interrupt", "abort", "heal")
FASTEST = 0.1
"""Minimum number of seconds between two frames."""
BEAT = 1.0
"""Seconds between two messages that only say that the kernel is alive."""
COUNTED = ("since", "stalled", "silent", "away", "compiling")
"""Fields of a rank that count seconds: they go on while nothing happens, and the page counts on."""
HANGS_AFTER = 2.0
"""Seconds in a collective after which the page names the ranks that are missing in it (snapshot.js)."""
MESSAGE_TYPE = "allranks_widget"
MESSAGE_BYTES = 1_000_000
"""Output is sent in messages of about this size, so that a page can draw in between."""
NO_BUNDLE = (
    "The dashboard cannot be drawn: its JavaScript was not bundled when allranks was installed. "
    "With a network connection, run in its folder: python -m pip install -e . "
    "The table below the cell and %distributed status show the same as text."
)

NO_WIDGET = (
    ".jp-OutputArea-child:not(:has(.arw-root)):has(+ .jp-OutputArea-child + .jp-OutputArea-child .arw-saved-%s)"
    " { display: none }"
)
"""Style that hides "Loading widget..." and "Error displaying widget", which JupyterLab shows above the saved picture if
the kernel is gone."""
NO_PAGE = (
    "A terminal shows no live pictures: this is the state now. To see it again: %distributed status. "
    "To save a picture: pathlib.Path('topology.svg').write_text(allranks.current().watch().picture())"
)
NOTHING_LOGGED = "Nothing has been logged yet: call log(loss=...) in a cell."

Action = Callable[[str, int | None], str | None]
"""Called with a verb and a rank (None for all ranks); the text that it returns or raises is shown."""

_open: weakref.WeakValueDictionary[str, Dashboard] = weakref.WeakValueDictionary()


def _front_end() -> str:
    """Return the bundle, or a module that says that the bundle is missing."""
    bundle = STATIC / "dashboard.js"
    if bundle.exists():
        return bundle.read_text(encoding="utf-8")
    return f"export default {{ render({{ el }}) {{ el.textContent = {json.dumps(NO_BUNDLE)}; }} }};"


def _style() -> str:
    sheet = STATIC / "dashboard.css"
    return sheet.read_text(encoding="utf-8") if sheet.exists() else ""


class Dashboard(anywidget.AnyWidget):
    """Pictures of one world. Any thread may call `show`, and often: it sends at most ten frames a second."""

    _esm = _front_end()
    _css = _style()
    views = traitlets.List(traitlets.Enum(VIEWS), default_value=list(VIEWS)).tag(sync=True)
    frame = traitlets.Bytes(b"").tag(sync=True)
    key = traitlets.Unicode().tag(sync=True)
    """The id by which requests of the page name this widget: the page's view of a model does not contain the id."""

    def __init__(self, views: Sequence[str] = VIEWS, on_action: Action | None = None, *, tables: bool = True) -> None:
        """`tables`: whether tables are saved below the pictures. If not, the caller must show their content as text."""
        super().__init__(views=list(views))
        self._tables = tables
        self.on_action = on_action
        self.snapshot: Snapshot | None = None
        """The last Snapshot shown."""
        self._world: Snapshot | None = None
        """The last Snapshot before the cluster ended, which a saved notebook shows."""
        self.sent = 0
        """Number of frames sent."""
        self._sent_at = float("-inf")
        self._beat_at = float("-inf")
        self._pending = False
        self._held: float | None = None
        """Unix time until which the last frame sent was still right; None if a change followed at once."""
        self._copy = SavedCopy()
        self._display_ids: deque[str] = deque(maxlen=8)
        """Display ids of the pictures and tables saved in the notebook."""
        self._history = RateHistory()
        self._kept = KeptOutput()
        self._curves = Curves()
        self._number = 0
        self._lock = threading.RLock()
        self.on_msg(lambda _widget, content, _buffers: self._asked(content))
        self.key = self.model_id
        _open[self.key] = self
        _listen()

    def show(self, snapshot: Snapshot) -> None:
        """Draw ``snapshot``: send a frame if anything changed, and a heartbeat once a second in any case. Within 0.1 s
        of the last frame, ``snapshot`` is held back: a later call of `show` or `flush` sends the newest Snapshot."""
        with self._lock:
            before, self.snapshot = self.snapshot, snapshot
            if snapshot.state != "down":
                self._history.add(snapshot)
                self._world = snapshot
            elif self._world is not None:
                self._world = replace(self._world, state="down")
            self._copy.shown(snapshot)
            self._save_if_due()
            if before is not None and time.monotonic() - self._beat_at >= BEAT:
                self._beat_at = time.monotonic()
                self.send({"do": "beat"})
            if not self._pending and before is not None and not _changed(before, snapshot):
                self._held = snapshot.at
                return
            self._pending = True
            if time.monotonic() - self._sent_at >= FASTEST:
                self.flush()

    def flush(self) -> None:
        """Send the last Snapshot if it was held back."""
        with self._lock:
            if self._pending and self.snapshot is not None:
                self._pending = False
                self._sent_at = time.monotonic()
                self.sent += 1
                frame = {**to_dict(self.snapshot), "sent": time.time(), "held": self._held}
                self._held = None
                self.frame = json.dumps(frame, separators=(",", ":"), ensure_ascii=False).encode(errors="replace")

    def output(self, items: Sequence[Json]) -> None:
        """Append output to the view of the ranks: items that are already folded, each with its ``cell`` and ``kind``
        (``begin``, ``text``, ``error``, ``display``, ``result``, ``update``, ``clear``, ``cut``, ``live``, ``end``)."""
        with self._lock:
            if any(item["kind"] == "end" for item in items):
                self._copy.cell_ended()
            batch: list[bytes] = []
            size = 0
            for data in self._kept.add(items):
                if batch and size + len(data) > MESSAGE_BYTES:
                    self._send_output(batch)
                    batch, size = [], 0
                batch.append(data)
                size += len(data)
            if batch:
                self._send_output(batch)

    def logged(self, rows: Sequence[LoggedRow]) -> None:
        """Draw values that ranks logged; each row is (rank, name, cell, step, value, Unix time in seconds)."""
        with self._lock:
            self._curves.add(rows)
            self._copy.stale = True
            self._number += 1
            self.send({"do": "logged", "number": self._number}, [rows_json(rows)])

    def history(self, snapshots: Iterable[Snapshot]) -> None:
        """Replace the chart's past with ``snapshots``: the last ten minutes of these, one for each second."""
        with self._lock:
            self._history.replace(snapshots)
            self._send_everything(None)

    def start_over(self, snapshots: Iterable[Snapshot], on_action: Action | None) -> None:
        """Show another world from now on, without data of the previous one. `snapshots` are the new world's past."""
        with self._lock:
            self.on_action = on_action
            self._kept, self._curves, self._copy.stale = KeptOutput(), Curves(), True
            self._number += 1
            self.history(snapshots)

    def _send_output(self, batch: list[bytes]) -> None:
        self._number += 1
        self.send({"do": "output", "number": self._number}, [_list(batch)])

    def _send_everything(self, page: str | None) -> None:
        """Send history, output and curves to one ``page``, which was opened late, or to all pages if None."""
        history = json.dumps(self._history.columns(), separators=(",", ":")).encode()
        head = {"do": "all", "page": page, "number": self._number, "now": time.time(), "acts": bool(self.on_action)}
        self.send(head, [history, _list(self._kept.everything()), self._curves.everything()])

    def _asked(self, content: Json) -> None:
        """Handle a message of the front end, from either channel."""
        if content.get("ask") == "all":
            with self._lock:
                self._send_everything(content.get("page"))
        elif content.get("ask") in VERBS:
            # In a thread of its own: an abort takes a second, and the control channel also carries the stop button.
            threading.Thread(target=self._act, args=(content,), name="allranks-action", daemon=True).start()

    def _act(self, content: Json) -> None:
        failed = False
        try:
            said = (
                self.on_action(content["ask"], content.get("rank")) if self.on_action else "Not connected to a cluster."
            )
        except Exception as error:
            said, failed = str(error) or type(error).__name__, True
        answer = {"do": "said", "page": content.get("page"), "ask": content["ask"], "rank": content.get("rank")}
        self.send({**answer, "text": said or "", "failed": failed})

    def refresh(self) -> None:
        """Update the picture and tables that the notebook saves, if they lack a state or a logged value. Call it at the
        end of a cell of the notebook. `show` updates them, too, from time to time."""
        with self._lock:
            self._save_if_due(at_once=True)

    def _save_if_due(self, at_once: bool = False) -> None:
        if self._display_ids and self._copy.is_due(time.monotonic(), at_once):
            self._save()

    def _save(self) -> None:
        self._publish_saved(self._display_ids, update=True)
        self._copy.saved(time.monotonic())

    def picture(self, view: str = "topology") -> str:
        """Return what a view shows now as the text of an SVG, which needs no kernel and no script.

        `view` is ``topology`` (hosts, ranks and links), ``throughput`` (the last ten minutes) or ``log`` (the curves of
        logged values). The title of the picture says what is most important in it. Raises ValueError if there is no
        picture of this view, or nothing to draw yet.
        """
        if view not in PICTURES:
            raise ValueError(f"no picture of {view!r}: choose from {', '.join(PICTURES)}")
        with self._lock:
            if self.snapshot is None:
                raise ValueError("the dashboard has no data yet")
            if view == "log" and not self._curves:
                raise ValueError(NOTHING_LOGGED)
            return str(self._drawn(view, self._world or self.snapshot))

    def _drawn(self, view: str, snapshot: Snapshot) -> Picture:
        if view == "log":
            curves = Drawn.of(self._curves)
            found = ", ".join(map(str, curves.bands))
            return replace(curves.picture(cut(found, WIDTH / 2), {}, ended=True), said=f"{found}.")
        return throughput_picture(self._history.columns()) if view == "throughput" else topology_picture(snapshot)

    def _saved_picture(self) -> dict[str, str]:
        """Return the picture that stays in a saved notebook, as an SVG and as a line of text."""
        if self.snapshot is None:
            drawn = Picture((svg_text(8, 17, "No data from the ranks yet"),), 24, repr(self))
        elif self._only_log and not self._curves:
            drawn = Picture((svg_text(8, 17, NOTHING_LOGGED),), 24, NOTHING_LOGGED)
        else:
            views = [] if self._only_log else ["topology"]
            views += [view for view in ("throughput",) if view in self.views]
            views += [view for view in ("log",) if view in self.views and self._curves]
            drawn = stacked([self._drawn(view, self._world or self.snapshot) for view in views])
        return {"image/svg+xml": drawn.svg(f"arw-saved-{self.key}"), "text/plain": drawn.said}

    def _ipython_display_(self) -> None:
        """Show three outputs: the live pictures and, unless ``tables`` is False, a static picture and tables, which the
        live pictures hide. Outside a kernel, or if anywidget returns no view, print the tables.

        A notebook opened again without its kernel shows an error in place of a widget, even if the same output has HTML
        (jupyterlab_widgets 3.0, in trusted notebooks).
        """
        view, plain = _widget_view(super()._repr_mimebundle_())
        if view is None or getattr(_shell(), "kernel", None) is None:
            print(repr(self), NO_PAGE, sep="\n\n")
            return
        from IPython.core.display_functions import publish_display_data

        publish_display_data({**view, "text/plain": plain})  # type: ignore[no-untyped-call]
        if not self._tables:
            return
        with self._lock:
            if self._display_ids:
                self._save()  # so that all copies are the same
            display_id = uuid.uuid4().hex
            self._display_ids.append(display_id)
            self._publish_saved([display_id])
            self._copy.saved(time.monotonic())

    def _publish_saved(self, display_ids: Iterable[str], update: bool = False) -> None:
        """Publish what stays in a saved notebook: a picture, and tables.

        The picture is an output of its own, since viewers that show only sanitized HTML remove pictures from HTML, and
        a viewer that can show HTML shows no other type of the same output.
        """
        from IPython.core.display_functions import publish_display_data

        html = f'<div class="arw-saved-{self.key}">{self._html()}</div><style>{NO_WIDGET % self.key}</style>'
        saved = {"picture": self._saved_picture(), "tables": {"text/html": html, "text/plain": repr(self)}}
        for display_id in display_ids:
            for part, data in saved.items():
                transient = {"display_id": f"{display_id}-{part}"}
                publish_display_data(data, transient=transient, update=update)  # type: ignore[no-untyped-call]

    def _html(self) -> str:
        if self.snapshot is None or (self._only_log and not self._curves):
            return escape(repr(self))
        return ("" if self._only_log else snapshot_html(self._world or self.snapshot)) + logged_html(self._curves)

    @property
    def _only_log(self) -> bool:
        """Whether to leave out the ranks: only the log was requested, and the world is whole."""
        return list(self.views) == ["log"] and self.snapshot is not None and self.snapshot.state == "whole"

    def __repr__(self) -> str:
        if self.snapshot is None:
            return "a dashboard without data yet"
        if self._only_log:
            return logged_text(self._curves).strip() or NOTHING_LOGGED
        return snapshot_text(self.snapshot) + logged_text(self._curves)

    def _repr_mimebundle_(self, **kwargs: Any) -> Any:
        bundle = super()._repr_mimebundle_(**kwargs)
        view, _ = _widget_view(bundle)
        return None if view is None else ({**view, "text/plain": repr(self), "text/html": self._html()}, {})


def _widget_view(bundle: Any) -> tuple[dict[str, object] | None, str]:
    """Return the widget's part of anywidget's bundle (None without a bundle), and a line of text to show instead."""
    data = bundle[0] if isinstance(bundle, tuple) else bundle
    if data is None:
        return None, ""
    return {mime: held for mime, held in data.items() if mime.startswith("application/")}, "allranks dashboard"


def _shell() -> object:
    """Return the IPython shell of this process; None if there is no shell."""
    try:
        from IPython.core.getipython import get_ipython
    except ImportError:
        return None
    return get_ipython()


def _changed(before: Snapshot, after: Snapshot) -> bool:
    """Whether anything but `Snapshot.at` and the seconds of `COUNTED` changed."""
    if before.ranks != after.ranks:
        if len(before.ranks) != len(after.ranks):
            return True
        for old, new in zip(before.ranks, after.ranks, strict=True):
            if old == new:
                continue
            counted = {name: getattr(new, name) for name in COUNTED}
            if not all(_counts_on(getattr(old, name), seconds) for name, seconds in counted.items()):
                return True
            if _hangs(old) != _hangs(new) or replace(old, **counted) != new:
                return True
    return replace(before, at=after.at, ranks=after.ranks) != after


def _counts_on(before: float | None, after: float | None) -> bool:
    """Whether a count of seconds went on, rather than began, began again or ended."""
    return before is after is None or (before is not None and after is not None and after >= before)


def _hangs(rank: RankView) -> bool:
    return rank.state == "waiting" and rank.collective is not None and (rank.since or 0.0) >= HANGS_AFTER


def _list(batch: list[bytes]) -> bytes:
    return b"[" + b",".join(batch) + b"]"


def _listen() -> None:
    """Receive our messages on the control channel of the kernel, if this process is a kernel."""
    handlers = getattr(getattr(_shell(), "kernel", None), "control_handlers", None)
    if handlers is not None:
        handlers[MESSAGE_TYPE] = _heard


def _heard(_stream: object, _ident: object, message: Json) -> None:
    """Pass a message on the control channel to the dashboard that it names, if that still exists."""
    content = message["content"]
    dashboard = _open.get(content.get("key"))
    if dashboard is not None:
        dashboard._asked(content)
