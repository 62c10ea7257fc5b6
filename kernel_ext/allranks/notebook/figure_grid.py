"""Shows consecutive figures of several ranks as one grid, each with its ranks as the title."""

from __future__ import annotations

import base64
import html
import re
from collections.abc import Collection, Mapping, Sequence

from allranks_backends.plan import rank_label

from .fold import Block
from .output_writer import Display
from .safe_text import clean

IMAGES = ("image/svg+xml", "image/png", "image/jpeg", "image/gif", "image/webp")
COLUMNS = "grid-template-columns:repeat(auto-fit,minmax(min(100%,280px),1fr))"
GRID = f"display:grid;{COLUMNS};gap:10px;padding:4px var(--jp-code-padding,0)"
TITLE = "font-size:12px;font-weight:600;text-align:left"


def is_figure(block: Block) -> bool:
    """Whether the block is an image with no other representation but text, and without a display id."""
    if block.kind not in ("display", "result") or block.content.get("display_id") is not None:
        return False
    data: Mapping[str, object] = block.content["data"]
    return _mime(data) is not None and data.keys() <= {*IMAGES, "text/plain"}


class Figures(Display):
    """A grid of figures; the title of each names the ranks that show it."""

    def __init__(self, blocks: Sequence[Block], owner: object) -> None:
        super().__init__((), {}, {}, owner)
        self._shown = [(block, _figure(block)) for block in blocks]
        self._draw()

    @property
    def has_titles(self) -> bool:
        return True

    def add(self, block: Block) -> None:
        self._shown.append((block, _figure(block)))
        self._draw()

    def leave(self, ranks: Collection[int]) -> None:
        left = [each._replace(ranks=tuple(rank for rank in each.ranks if rank not in ranks)) for each, _ in self._shown]
        self._shown = [(each, _figure(each)) for each in left if each.ranks]
        self._draw()

    def _draw(self) -> None:
        self.ranks = tuple(sorted(rank for block, _ in self._shown for rank in block.ranks))
        text = "\n".join(f"{rank_label(block.ranks)}: {_words(block)}" for block, _ in self._shown)
        figures = "".join(figure for _, figure in self._shown)
        self.bundle = {"data": {"text/html": f'<div style="{GRID}">{figures}</div>', "text/plain": text}}


def _mime(data: Mapping[str, object]) -> str | None:
    """The MIME type of the image to show; None if there is none."""
    return next((each for each in IMAGES if isinstance(data.get(each), str)), None)


def _words(block: Block) -> str:
    return clean(str(block.content["data"].get("text/plain", "figure")))


def _figure(block: Block) -> str:
    data: Mapping[str, str] = block.content["data"]
    mime = _mime(data)
    assert mime is not None, "see is_figure"
    content = data[mime]
    if mime == "image/svg+xml":
        content = base64.b64encode(content.encode()).decode()
    source = f"data:{mime};base64,{''.join(content.split())}"
    size = _size((block.content.get("metadata") or {}).get(mime))
    image = f'<img src="{html.escape(source)}" alt="{html.escape(_words(block))}"{size} style="max-width:100%">'
    title = f'<figcaption style="{TITLE}">{rank_label(block.ranks)}</figcaption>'
    return f'<figure style="margin:0;min-width:0">{title}{image}</figure>'


def _size(metadata: object) -> str:
    """Width and height as attributes, if they are pixels or percentages; IPython accepts any value."""
    given = metadata if isinstance(metadata, Mapping) else {}
    sizes = {name: str(given[name]) for name in ("width", "height") if name in given}
    return "".join(f' {name}="{size}"' for name, size in sizes.items() if re.fullmatch(r"\d+(\.\d+)?%?", size))
