"""Figures that ranks show one after the other, as one grid with a title for each."""

from __future__ import annotations

import base64
import html
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from allranks_backends.plan import rank_label

from .fold import Block
from .terminal import clean
from .writer import Display

IMAGES = ("image/svg+xml", "image/png", "image/jpeg", "image/gif", "image/webp")
COLUMNS = "grid-template-columns:repeat(auto-fit,minmax(min(100%,280px),1fr))"
GRID = f"display:grid;{COLUMNS};gap:10px;padding:4px var(--jp-code-padding,0)"
TITLE = "font-size:12px;font-weight:600;text-align:left"


def is_figure(block: Block) -> bool:
    """It is an image, and has no form but that and text."""
    if block.kind not in ("display", "result") or block.content.get("display_id") is not None:
        return False
    forms = block.content["data"].keys()
    return not forms.isdisjoint(IMAGES) and forms <= {*IMAGES, "text/plain"}


class Figures(Display):
    """The figures of differing ranks, which titles within label."""

    def __init__(self, blocks: Sequence[Block], owner: object) -> None:
        super().__init__((), {}, {}, owner)
        self._blocks: list[Block] = []
        for block in blocks:
            self.add(block)

    @property
    def has_titles(self) -> bool:
        return True

    def add(self, block: Block) -> None:
        self._blocks.append(block)
        self._draw()

    def leave(self, ranks: Collection[int]) -> None:
        left = [each._replace(ranks=tuple(rank for rank in each.ranks if rank not in ranks)) for each in self._blocks]
        self._blocks = [each for each in left if each.ranks]
        self._draw()

    def _draw(self) -> None:
        self.ranks = tuple(sorted(rank for block in self._blocks for rank in block.ranks))
        text = "\n".join(f"{rank_label(block.ranks)}: {_words(block)}" for block in self._blocks)
        figures = "".join(map(_figure, self._blocks))
        self.bundle = {"data": {"text/html": f'<div style="{GRID}">{figures}</div>', "text/plain": text}}


def _words(block: Block) -> str:
    return clean(str(block.content["data"].get("text/plain", "figure")))


def _figure(block: Block) -> str:
    data: Mapping[str, Any] = block.content["data"]
    mime = next(each for each in IMAGES if each in data)
    content = data[mime]
    if mime == "image/svg+xml":
        content = base64.b64encode(content.encode()).decode()
    source = f"data:{mime};base64,{''.join(content.split())}"
    size = (block.content.get("metadata") or {}).get(mime) or {}
    width = f' width="{int(size["width"])}"' if "width" in size else ""
    image = f'<img src="{html.escape(source)}" alt="{html.escape(_words(block))}"{width} style="max-width:100%">'
    title = f'<figcaption style="{TITLE}">{rank_label(block.ranks)}</figcaption>'
    return f'<figure style="margin:0;min-width:0">{title}{image}</figure>'
