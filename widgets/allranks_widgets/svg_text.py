"""Text in a picture, and the SVG around it: without script or stylesheet, so that a saved notebook shows it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from textwrap import wrap

from .status import printable

WIDTH = 820
"""Width of each picture in pixels."""
LINE, TEXT, GRID, BAD, WORRY = "#2f7fd8", "#767676", "#808080", "#d0433b", "#a8710f"
"""Colours that can be read on a white and on a dark page: a picture does not know the page's colour."""
BETWEEN = 16
"""Height in pixels between two pictures that are stacked."""
EDGE, TITLE, TITLE_CHARACTER = 16, 20, 8.5
"""Pixels around a drawing in a file, and of a line of its title and of one of its characters."""
CHARACTER = 6.5
"""Width of a character in pixels, on average."""


@dataclass(frozen=True)
class Picture:
    """A picture of `WIDTH` times `height` pixels; ``str(picture)`` is its SVG."""

    parts: tuple[str, ...]
    """SVG elements."""
    height: float
    said: str
    """The text alternative."""

    def svg(self, name: str = "") -> str:
        """Return the SVG, with the id `name` if it is not empty."""
        named = f'id="{name}" ' if name else ""
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" {named}role="img" aria-label="{escaped(self.said, 1000)}" '
            # Without a width, the SVG gets the width of the output; JupyterLab would cut a wider picture.
            f'viewBox="0 0 {WIDTH} {self.height:.0f}" font-family="system-ui,sans-serif" font-size="12" '
            f'fill="{TEXT}">{"".join(self.parts)}</svg>'
        )

    def __str__(self) -> str:
        return self.svg()


def stacked(pictures: Sequence[Picture]) -> Picture:
    """Return a picture with these pictures one below the other."""
    parts, height = list[str](), 0.0
    for picture in pictures:
        parts += [f'<g transform="translate(0 {height:.0f})">', *picture.parts, "</g>"]
        height += picture.height + BETWEEN
    return Picture(tuple(parts), height - BETWEEN, " ".join(picture.said for picture in pictures))


def as_file(drawing: str, title: str, below: str) -> str:
    """Return an SVG as the content of a file: on white, with the `title` and, smaller, the line `below` it above.

    `drawing` must have a ``viewBox`` from 0 0 on.
    """
    found = re.search(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', drawing)
    assert found is not None
    width, height = map(float, found.groups())
    lines = wrap(title, int(width / TITLE_CHARACTER))
    top = EDGE + TITLE * (len(lines) + 1)
    size = f'width="{width + 2 * EDGE:.0f}" height="{top + height + EDGE:.0f}"'
    said = "".join(
        f'<text x="{EDGE}" y="{TITLE * (n + 1) + 5}" font-size="16" font-weight="600">{escaped(line, 1000)}</text>'
        for n, line in enumerate(lines)
    )
    inner = drawing.replace("<svg ", f'<svg x="{EDGE}" y="{top}" width="{width:.0f}" height="{height:.0f}" ', 1)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" color="#1a1a1a" fill="#1a1a1a" '
        f'font-family="system-ui,sans-serif"><title>{escaped(title, 1000)}</title><rect {size} fill="#fff"/>{said}'
        f'<text x="{EDGE}" y="{top - 10}" font-size="11" fill-opacity="0.75">{escaped(below, 1000)}</text>'
        f"{inner}</svg>\n"
    )


def svg_text(x: float, y: float, text: str, anchor: str = "start", colour: str = "", weight: str = "") -> str:
    """Return a text whose baseline begins at `x`, `y`; with `anchor` ``end`` or ``middle``, it ends or is centred."""
    how = "".join(
        f' {name}="{value}"'
        for name, value in (("text-anchor", anchor), ("fill", colour), ("font-weight", weight))
        if value and value != "start"
    )
    return f'<text x="{x:.0f}" y="{y:.0f}"{how}>{escaped(text)}</text>'


def cut(text: str, width: float) -> str:
    """Return as much of a text as fits into `width` pixels."""
    room = int(width / CHARACTER)
    return text if len(text) <= room else f"{text[: room - 1]}…"


def escaped(text: str, most: int = 100) -> str:
    """Return text escaped for an SVG, without control characters and cut to `most` characters."""
    text = printable(text)
    return escape(text if len(text) <= most else f"{text[: most - 1]}…")
