"""The dashboard on a plain page, without a notebook: one page for many worlds."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from allranks_backends.views import Snapshot
from allranks_widgets._history import RateHistory
from allranks_widgets.curves import LoggedRow, rows_json
from allranks_widgets.dashboard import STATIC
from allranks_widgets.snapshot_json import to_dict

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

GROUND = {"light": "#ffffff", "dark": "#111111"}
PAGE = """<!doctype html><html lang="en"><title>allranks</title>
<style>body {{ margin: 0; background: {ground}; --jp-layout-color0: {ground} }} {style}</style><main></main></html>"""
DRAW = """async ([source, style, frame, views]) => {
  const { default: widget } = await import(URL.createObjectURL(new Blob([source], { type: "text/javascript" })));
  const encoder = new TextEncoder(), heard = {};
  const traits = { key: String(Math.random()), views, frame: encoder.encode(frame), _esm: source, _css: style };
  const on = (name, call) => (heard[name] ??= []).push(call);
  const off = (name, call) => { heard[name] = heard[name].filter((one) => one !== call); };
  const model = { get: (name) => traits[name], on, off, send() {} };
  window.heard = heard;
  window.show = async (frame) => {
    traits.frame = encoder.encode(frame);
    for (const call of heard["change:frame"]) call();
    const { frames } = document.querySelector(".arw-root").dataset;
    while (document.querySelector(".arw-root").dataset.frames === frames) await new Promise(requestAnimationFrame);
  };
  window.tell = (content, ...buffers) => {
    for (const call of heard["msg:custom"]) call(content, buffers.map((one) => encoder.encode(one)));
  };
  widget.initialize({ model });
  widget.render({ model, el: document.querySelector("main") });
}"""


def drawn(
    browser: Browser,
    snapshot: Snapshot,
    width: int,
    *,
    views: Sequence[str] = ("topology",),
    theme: str = "light",
    clock: bool = False,
) -> Page:
    """A page of that width with these pictures of `snapshot`; `show` draws another one there. `clock`: the test moves
    the page's clock, which stands still from now on."""
    page = browser.new_page(viewport={"width": width, "height": 900})
    if clock:
        page.clock.install(time=0)
    source, style = ((STATIC / f"dashboard.{kind}").read_text(encoding="utf-8") for kind in ("js", "css"))
    page.set_content(PAGE.format(ground=GROUND[theme], style=style))
    page.evaluate(DRAW, [source, style, json.dumps(to_dict(snapshot)), list(views)])
    page.wait_for_selector(".arw-root")
    if clock:
        page.clock.pause_at(60_000)
    return page


def open_ranks(page: Page) -> None:
    """Unfold the table of ranks and the output, which are folded at first where all views are shown."""
    page.get_by_role("button", name="Ranks", exact=True).click()


def show(page: Page, snapshot: Snapshot) -> None:
    """Draw `snapshot` in place of the one before."""
    page.evaluate("(frame) => window.show(frame)", json.dumps(to_dict(snapshot)))


def send_all(
    page: Page,
    *,
    past: Iterable[Snapshot] = (),
    items: list[dict[str, Any]] | None = None,
    rows: Sequence[LoggedRow] = (),
) -> None:
    """What a page gets that was not there from the start: rates, output and what was logged."""
    history = RateHistory()
    history.replace(past)
    message = {"do": "all", "page": None, "number": 1, "now": 0, "acts": True}
    buffers = [json.dumps(history.columns()), json.dumps(items or []), rows_json(rows).decode()]
    page.evaluate("([message, ...buffers]) => window.tell(message, ...buffers)", [message, *buffers])
