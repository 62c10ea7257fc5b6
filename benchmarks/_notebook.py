"""Cells run as a notebook runs them, in an IPython shell, and timed to the last of their output."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from IPython.core.interactiveshell import InteractiveShell
from IPython.utils.capture import RichOutput, capture_output
from traitlets.config import Config

import allranks

DEFAULT = "_default"
"""What `plain_magics` appends to the names of ipyparallel's magics on a second cluster."""


@dataclass(frozen=True)
class Done:
    """A cell that ran to its end."""

    seconds: float
    stdout: str
    outputs: list[RichOutput]


class Notebook:
    """A shell with allranks loaded and its cluster up."""

    def __init__(self, shell: InteractiveShell, cluster: allranks.Cluster) -> None:
        self.shell, self.cluster = shell, cluster

    def cell(self, magic: str, line: str, code: str) -> Done:
        """Run ``%%magic line`` on ``code``, and capture all its output."""
        with capture_output() as captured:
            before = time.perf_counter()
            self.shell.run_cell_magic(magic, line, code)
            seconds = time.perf_counter() - before
        return Done(seconds, captured.stdout, captured.outputs)

    def activate(self, client: Any, suffix: str = "") -> None:
        """Make ``%%px`` (with ``suffix`` appended) run on the engines of ``client``."""
        client[:].activate(suffix=suffix)


@contextmanager
def notebook(n: int) -> Iterator[Notebook]:
    """A notebook with ``n`` ring ranks, of which ``%%px`` is the engines' plain ipyparallel."""
    settings = Config()
    settings.HistoryManager.enabled = False
    shell = InteractiveShell.instance(config=settings)
    with capture_output():
        shell.run_line_magic("load_ext", "allranks")
        shell.run_line_magic("distributed", f"up -n {n} --backend ring")
    try:
        cluster = allranks.current()
        assert cluster is not None
        here = Notebook(shell, cluster)
        here.activate(cluster.client)
        yield here
    finally:
        with capture_output():
            shell.run_line_magic("unload_ext", "allranks")
        InteractiveShell.clear_instance()
