"""``python -m allranks demo``: the quickstart notebook, run without a browser and shown as a terminal session."""

from __future__ import annotations

import os
import re
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from allranks.notebook.safe_text import clean, plain

if TYPE_CHECKING:
    from nbformat import NotebookNode

_IN_WHEEL = Path(__file__).resolve().with_name("quickstart.ipynb")
_IN_CHECKOUT = Path(__file__).resolve().parents[2] / "notebooks" / "quickstart.ipynb"
NOTEBOOK = _IN_WHEEL if _IN_WHEEL.is_file() else _IN_CHECKOUT
RANKS = "application/vnd.allranks.ranks+json"
"""MIME type with which `LAST_CELL` publishes the number of ranks, after the notebook's own cells."""
LAST_CELL = "from allranks.demo import tell_ranks\ntell_ranks()"
CELL_WITHIN = 120
"""Timeout of a cell in seconds. No cell takes more than a few seconds."""


def demo(notebook: Path = NOTEBOOK) -> int:
    """Run ``notebook`` in the current folder, print its cells and their outputs, and return the exit code.

    The exit code is 1 if a cell fails (unless it is tagged ``raises-exception``) or takes too long, or if the kernel
    dies, 2 if nothing could be run, and 130 after Ctrl-C. The notebook's kernel, and with it the ranks, is ended in any
    case.
    """
    if not notebook.is_file():
        return _complain(f"{notebook} is missing. It is part of allranks: reinstall it.", 2)
    try:
        import nbformat
        from jupyter_client.kernelspec import KernelSpecManager
        from nbclient import NotebookClient
        from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError
    except ImportError as error:
        return _complain(f"the demo needs {error.name}: pip install 'allranks[demo]'", 2)

    session = _Session(in_colour=sys.stdout.isatty() and "NO_COLOR" not in os.environ)
    began = time.monotonic()
    client = NotebookClient(
        nbformat.read(notebook, as_version=4),  # type: ignore[no-untyped-call]
        timeout=CELL_WITHIN,
        resources={"metadata": {"path": os.getcwd()}},
        extra_arguments=["--log-level=CRITICAL"],
    )
    # Without folders to search, the only kernel is ipykernel's own "python3", which runs in this interpreter.
    client.create_kernel_manager().kernel_spec_manager = KernelSpecManager(kernel_dirs=[])
    try:
        with client.setup_kernel():
            for index, cell in enumerate(client.nb.cells):
                session.show_cell(cell)
                try:
                    client.execute_cell(cell, index)
                finally:
                    session.show_outputs(cell)
            client.nb.cells.append(last := nbformat.v4.new_code_cell(LAST_CELL))  # type: ignore[no-untyped-call]
            client.execute_cell(last, len(client.nb.cells) - 1)
    except CellExecutionError as error:
        return _complain(f"a cell of {notebook.name} failed with {error.ename}; see above.", 1)
    except CellTimeoutError:
        return _complain(f"a cell of {notebook.name} did not finish within {CELL_WITHIN} s.", 1)
    except DeadKernelError:
        return _complain(f"the kernel that ran {notebook.name} died.", 1)
    except KeyboardInterrupt:
        return _complain("stopped.", 130)
    ranks = next((output.data[RANKS] for output in last.outputs if RANKS in output.get("data", {})), 0)
    print(f"\n{notebook.name} ran on {ranks} ranks in {time.monotonic() - began:.1f} s")
    return 0


def tell_ranks() -> None:
    """In the notebook's kernel: publish how many ranks its cluster has, or had."""
    from IPython.core.display_functions import publish_display_data

    import allranks

    if (cluster := allranks.current(ended=True)) is not None:
        publish_display_data({RANKS: cluster.size})  # type: ignore[no-untyped-call]


def _complain(message: str, code: int) -> int:
    sys.stdout.flush()
    print(f"allranks: {message}", file=sys.stderr)
    return code


class _Session:
    """Prints the notebook's cells in order: headings, code as at IPython's prompt, and outputs as text."""

    def __init__(self, in_colour: bool) -> None:
        self._in_colour = in_colour
        self._cells = 0

    def show_cell(self, cell: NotebookNode) -> None:
        if cell.cell_type == "markdown":
            for heading in re.findall(r"^#+ (.*)", cell.source, re.MULTILINE):
                self._say(f"\n\x1b[1m── {heading} ──\x1b[0m")
        elif cell.cell_type == "code":
            self._cells += 1
            first = f"In [{self._cells}]: "
            rest = "...: ".rjust(len(first))
            self._say(f"\n\x1b[32m{first}\x1b[0m" + cell.source.replace("\n", f"\n\x1b[32m{rest}\x1b[0m"))

    def show_outputs(self, cell: NotebookNode) -> None:
        for output in cell.get("outputs", ()):
            if text := _text_of(output):
                self._say(text.removesuffix("\n"))

    def _say(self, text: str) -> None:
        print(clean(text) if self._in_colour else plain(text), flush=True)


def _text_of(output: NotebookNode) -> str:
    match output.output_type:
        case "stream":
            return str(output.text)
        case "error":
            return "\n".join(output.traceback)
        case _:
            return str(output.data.get("text/plain", ""))
