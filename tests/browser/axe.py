"""What axe-core finds on a page."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from playwright.sync_api import Page

OF_LAB = '<div class="lm-Widget'
"""JupyterLab's own boxes: where a table is wider than the page they scroll, and browsers let the keyboard there."""


def serious(page: Page, source: str, within: str = ".arw-root") -> list[str]:
    """What axe-core (`source`) finds there that is serious, and not of JupyterLab itself."""
    if not page.evaluate("'axe' in window"):
        page.evaluate(source)
    found = page.evaluate("async (within) => (await axe.run(within)).violations", within)
    return [
        f"{one['id']}: {one['help']}: {node['html'][:300]}"
        for one in found
        if one["impact"] in ("serious", "critical")
        for node in one["nodes"]
        if not node["html"].startswith(OF_LAB)
    ]
