"""``%distributed VERB``, ``%%distributed`` and ``%%rank``: parse and delegate, nothing else."""

from __future__ import annotations

import argparse
import contextvars
import threading
from collections.abc import Sequence
from keyword import iskeyword
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from IPython.core.magic import Magics, cell_magic, line_magic, magics_class
from IPython.display import display

from allranks.check_arguments import writable
from allranks.cluster.cell import Cell
from allranks.cluster.cell_queue import QueuedCell
from allranks.cluster.cell_result import CellResult
from allranks.cluster.cluster import Cluster
from allranks.errors import AllranksError, CellInterrupted, NoCluster, UsageError
from allranks.head.world.detached_cluster_file import left_behind
from allranks.messages.cell_options import CellOptions
from allranks.notebook.front_end import shown_in
from allranks.notebook.notify import Notifier
from allranks.pickling.pickle_values import can_travel
from allranks.up_options import UpOptions

from . import auto, completion
from .parsers import cell_parser, line_parser, parse, values_of
from .verbs import OF_IPYTHON, VERBS, Verbs, end

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell

LOOKED_AT = 4 << 20
"""Maximum number of bytes of a pickled variable that are examined before advising to push it."""


@magics_class
class DistributedMagics(Verbs, Magics):
    """The notebook's cluster and its magics."""

    def __init__(self, shell: InteractiveShell) -> None:
        super().__init__(shell)
        self.cluster: Cluster | None = None
        self.ended: Cluster | None = None
        self.up_with: UpOptions | None = None
        self.owes_load = False
        self.notifier: Notifier | None = None
        self._lines = line_parser()
        self._cells = {name: cell_parser(name) for name in ("distributed", "rank")}
        type(self).distributed.__doc__ = self._lines.format_help()  # for %distributed?

    @line_magic
    def distributed(self, line: str) -> None:
        """`%distributed VERB -h` shows the options of a verb."""
        options = parse(self._lines, line)
        if options is None:
            return
        if options.verb is None:
            self._lines.print_help()
            return
        try:
            VERBS[options.verb](self, options)
        except CellInterrupted:
            raise
        except KeyboardInterrupt:  # without the frames of allranks
            raise CellInterrupted from None

    @cell_magic("distributed")  # type: ignore[arg-type]
    def distributed_cell(self, line: str, cell: str) -> None:
        """%%distributed: run the cell on all ranks, or on those of -r. `%%distributed -h` says more."""
        self._cell("distributed", line, cell)

    @cell_magic("rank")  # type: ignore[arg-type]
    def rank_cell(self, line: str, cell: str) -> None:
        """%%rank 0: run the cell on one rank (or on 0,2-3)."""
        self._cell("rank", line, cell)

    @cell_magic
    def local(self, line: str, cell: str) -> None:
        """%%local: run the cell here in the notebook while `%distributed auto on` sends the others to the ranks."""
        result = self.shell.run_cell(cell)  # which also shows an error
        if error := result.error_before_exec or result.error_in_exec:
            raise AllranksError(f"the cell raised {type(error).__name__}.")

    def run_auto(self, cell: str) -> None:
        """Run a cell on the ranks. With ``%distributed auto on``, `auto.to_ranks` makes cells call this method."""
        try:
            self._need()
        except NoCluster as error:
            raise NoCluster(f"{error} Or run cells here again: %distributed auto off.") from None
        self._run(cell, self._cells["distributed"].parse_args([]))

    def _cell(self, name: str, line: str, cell: str) -> None:
        options = parse(self._cells[name], line)
        if options is None:
            return
        if not cell.strip():
            raise UsageError(f"%%{name}: the cell is empty.")
        # The magic's own line stays as a comment, so that tracebacks count lines as the notebook does. A cell magic
        # for the rank must remain the first line.
        head = "" if cell.lstrip().startswith("%%") else f"# %%{name} {line}".rstrip() + "\n"
        self._run(head + cell, options)

    def _run(self, code: str, options: argparse.Namespace) -> None:
        cluster = self._need()
        ranks = cluster.choose_ranks(options.ranks)
        if (out := options.out) is not None and (not out.isidentifier() or iskeyword(out) or out in OF_IPYTHON):
            raise UsageError(f"--out {options.out}: not a valid variable name.")
        if options.lazy and options.timeline is None:
            raise UsageError("--lazy needs --timeline: it records collectives without evaluating each immediately.")
        if options.timeline:
            options.timeline = str(writable("--timeline", options.timeline))
        if options.name and options.after is None:
            raise UsageError("--name needs --after: it names a cell in the queue.")
        waits = not options.no_wait and options.after is None
        given: dict[str, Any] = {
            **values_of(options, CellOptions),
            "ranks": ranks,
            "want_values": options.out is not None,
            "timeline": "lazy" if options.lazy else options.timeline is not None,
            **shown_in(self.shell, ranks, cluster.has_widget, wait=waits),
        }
        if options.after is not None:
            queued = cluster.queue.add(code, after=options.after or None, name=options.name or "", **given)
            print(cluster.queue.after_text(queued))
            self._follow_in_background(queued, options)
            return
        cell = cluster.begin(code, **given)
        if options.no_wait:
            self._follow_in_background(cell, options)
            return
        result = self._finish(cell, options)
        if options.out is not None:
            self.shell.user_ns[options.out] = result
        for name in dict.fromkeys(error.missing_name for error in result.errors.values()):
            if name in self.shell.user_ns and name not in self.shell.user_ns_hidden:
                value = self.shell.user_ns[name]
                if isinstance(value, ModuleType):
                    imported = value.__name__ if value.__name__ == name else f"{value.__name__} as {name}"
                    print(f"{name} is a module that the notebook has imported: import {imported} in the cell.")
                elif not can_travel(value, for_rank=False, look_at=LOOKED_AT):
                    kind = type(value).__name__
                    print(f"{name} is a notebook variable, and a {kind} cannot be sent to the ranks: define it there.")
                else:
                    print(f"{name} is a notebook variable: copy it to the ranks with %distributed push {name}.")
        for name in dict.fromkeys(error.missing_module for error in result.errors.values()):
            if name and not cluster.auto_sync and any(Path(path).exists() for path in (name, f"{name}.py")):
                print(f"{name} is beside the notebook, not where the ranks work: %distributed sync --on brings it.")
        result.check()

    @staticmethod
    def _finish(cell: Cell | QueuedCell, options: argparse.Namespace) -> CellResult:
        try:
            return cell.finish()
        finally:  # show the timeline of a stopped cell, too
            if cell.result is not None and (timeline := cell.result.timeline) is not None:
                display(timeline)  # type: ignore[no-untyped-call]
                if options.timeline:
                    timeline.save(options.timeline)

    def _follow_in_background(self, cell: Cell | QueuedCell, options: argparse.Namespace) -> None:
        if options.out is not None:
            self.shell.user_ns[options.out] = cell

        def follow() -> None:
            try:
                self._finish(cell, options).check()
            except NoCluster:
                pass  # ended by `down`, as the user knows
            except (AllranksError, CellInterrupted) as error:
                self.shell.showtraceback((type(error), error, None))

        # In this cell's context, so that ipykernel shows the output below it and not below the next one.
        context = contextvars.copy_context()
        threading.Thread(target=context.run, args=(follow,), name=f"allranks-cell-{cell.label}", daemon=True).start()


def load(shell: Any) -> None:
    """Add the magics, and completion and inspection that know the ranks' names."""
    if _loaded(shell) is not None:
        return
    magics = DistributedMagics(shell)
    shell.register_magics(magics)
    shell.allranks_magics = magics
    parsers = {"%distributed": magics._lines, **{f"%%{name}": parser for name, parser in magics._cells.items()}}
    completion.install(shell, lambda: magics.cluster, parsers)
    for name, kept in left_behind().items():
        how = f", but {kept.why_not}" if kept.why_not else f". Take it over with %distributed attach {name}"
        print(f"{name} runs without a notebook: {kept}{how}")


def unload(shell: Any) -> None:
    """End the cluster and remove the magics."""
    magics = _loaded(shell)
    if magics is None:
        return
    if magics.cluster is not None and magics.cluster.state != "down":
        print(end(magics.cluster))
    auto.switch(shell, False)
    completion.remove(shell)
    for kind, names in (("line", ["distributed"]), ("cell", ["distributed", "rank", "local"])):
        for name in names:
            shell.magics_manager.magics[kind].pop(name, None)
    del shell.allranks_magics


def _loaded(shell: object) -> DistributedMagics | None:
    return getattr(shell, "allranks_magics", None)


def current(shell: object, ended: bool = False) -> Cluster | None:
    """The notebook's cluster, or with `ended` the last one that ended if there is no other; else None."""
    magics = _loaded(shell)
    return magics.cluster or (magics.ended if ended else None) if magics is not None else None


__all__: Sequence[str] = ["current", "load", "unload"]
