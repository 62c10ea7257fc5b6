"""``%distributed auto on``: every cell runs on the ranks, unless it says otherwise."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell

STAYS_HERE = ("%distributed", "%%distributed", "%%rank", "%load_ext", "%reload_ext", "%unload_ext")
LOCAL = "%%local"


def switch(shell: InteractiveShell, on: bool) -> None:
    """Send cells to the ranks from the next one on, or stop doing so."""
    transformers = shell.input_transformers_cleanup
    transformers[:] = [each for each in transformers if each is not to_ranks]
    if on:
        transformers.append(to_ranks)


def to_ranks(lines: list[str]) -> list[str]:
    """Turn a cell's lines into code that runs them on the ranks: an IPython input transformer."""
    if lines and lines[0].startswith((LOCAL, "# " + LOCAL)):  # the second form if IPython transforms a cell twice
        return ["# " + lines[0].removeprefix("# "), *lines[1:]]
    first = next((line.strip() for line in lines if line.strip() and not line.lstrip().startswith("#")), "")
    if not first or first.startswith(STAYS_HERE) or _CALL in first:
        return lines
    return [f"{_CALL}({''.join(lines)!r})\n"]


_CALL = "get_ipython().allranks_magics.run_auto"
