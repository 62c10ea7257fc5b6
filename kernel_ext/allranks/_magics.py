"""``%distributed VERB``, ``%%distributed`` and ``%%rank``: parse and delegate, nothing else."""

from __future__ import annotations

import argparse
import contextvars
import re
import threading
from collections.abc import Sequence
from typing import Any

from IPython.core.magic import Magics, cell_magic, line_magic, magics_class
from IPython.display import display

from . import _auto, _completion, _discover, _doctor
from ._arguments import writable
from ._cell import Cell
from ._comms import page_has_widgets
from ._fold import Block
from ._freeing import RELEASE_WITHIN
from ._keyboard import can_ask
from ._parsers import cell_parser, line_parser, parse
from ._result import CellResult
from ._show import Show
from .cluster import Cluster
from .errors import AllranksError, CellInterrupted, NoCluster, RemoteError, UsageError


def _counted(ranks: int) -> str:
    return f"{ranks} {'rank' if ranks == 1 else 'ranks'}"


def _missing_name(error: RemoteError) -> str:
    """The name that a NameError is about; empty for other errors."""
    found = re.match(r"name '(\w+)' is not defined", error.evalue) if error.ename == "NameError" else None
    return found[1] if found else ""


@magics_class
class DistributedMagics(Magics):
    """The notebook's cluster and the magics that work on it."""

    shell: Any

    def __init__(self, shell: Any) -> None:
        super().__init__(shell)
        self.cluster: Cluster | None = None
        self.ended: Cluster | None = None
        """The one that `down` ended last."""
        self._lines = line_parser()
        self._cells = {name: cell_parser(name) for name in ("distributed", "rank")}

    @line_magic
    def distributed(self, line: str) -> None:
        """%distributed VERB: up, status, down, push, pull, interrupt, auto. `%distributed VERB -h` says more."""
        options = parse(self._lines, line)
        if options is None:
            return
        if options.verb is None:
            self._lines.print_help()
            return
        try:
            getattr(self, f"_{options.verb}")(options)
        except CellInterrupted:
            raise
        except KeyboardInterrupt:  # without the frames of ours that waited
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
        result = self.shell.run_cell(cell)  # which shows what it raises
        if error := result.error_before_exec or result.error_in_exec:
            raise AllranksError(f"the cell raised {type(error).__name__}.")

    def run_auto(self, cell: str) -> None:
        """A cell without a magic, with `auto on`."""
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
        if options.out is not None and not options.out.isidentifier():
            raise UsageError(f"--out {options.out}: that is no variable name.")
        if options.lazy and options.timeline is None:
            raise UsageError("--lazy is for --timeline: it records without evaluating collectives at once.")
        if options.timeline:
            writable("--timeline", options.timeline)
        widgets = page_has_widgets(self.shell)
        has_widget = cluster.has_widget if widgets else None
        screen = Show(ranks, live=hasattr(self.shell, "kernel"), has_widget=has_widget)
        typing = can_ask(self.shell)
        cell = cluster.begin(
            code,
            ranks=ranks,
            want_values=options.out is not None,
            screen=screen,
            # The number in the notebook's margin; IPython 9.18 counts execution_count up before it runs the cell.
            count=len(self.shell.user_ns["In"]) - 1,
            max_output=int(options.max_output * 1e6),
            check=options.check,
            ordered=options.ordered,
            profile=options.profile,
            timeline="lazy" if options.lazy else options.timeline is not None,
            breakpoints=typing,
            widgets=widgets,
            read=input if typing and not options.no_wait else None,
        )
        if options.no_wait:
            self._follow_in_background(cell, options)
            return
        result = self._finish(cell, options)
        if options.out is not None:
            self.shell.user_ns[options.out] = result
        for name in dict.fromkeys(map(_missing_name, result.errors.values())):
            if name in self.shell.user_ns and name not in self.shell.user_ns_hidden:
                print(f"{name} is a variable of the notebook: %distributed push {name} brings it to the ranks.")
        result.check()

    @staticmethod
    def _finish(cell: Cell, options: argparse.Namespace) -> CellResult:
        try:
            return cell.finish(options.timeout)
        finally:  # of a cell that was stopped, too
            if cell.result is not None and (timeline := cell.result.timeline) is not None:
                display(timeline)  # type: ignore[no-untyped-call]
                if options.timeline:
                    timeline.save(options.timeline)

    def _follow_in_background(self, cell: Cell, options: argparse.Namespace) -> None:
        if options.out is not None:
            self.shell.user_ns[options.out] = cell

        def follow() -> None:
            try:
                self._finish(cell, options).check()
            except AllranksError as error:
                self.shell.showtraceback((type(error), error, None))

        # In this cell's context, so that ipykernel shows the output below it and not below the next one.
        context = contextvars.copy_context()
        threading.Thread(target=context.run, args=(follow,), name=f"allranks-cell-{cell.number}", daemon=True).start()

    def _need(self) -> Cluster:
        if self.cluster is None or self.cluster.state == "down":
            raise NoCluster("no ranks are up. Start some with %distributed up -n 4.")
        return self.cluster

    # The verbs.

    def _up(self, options: argparse.Namespace) -> None:
        if self.cluster is not None and self.cluster.state != "down":
            raise UsageError(
                f"{self.cluster.size} {self.cluster.backend} {'rank is' if self.cluster.size == 1 else 'ranks are'} up "
                "already. %distributed down ends what is there, before you start others."
            )
        cluster = Cluster(
            options.n,
            backend=options.backend,
            hosts=options.hosts,
            hostfile=options.hostfile,
            ranks_per_host=options.ranks_per_host,
            join=options.join,
            profile=options.profile,
            timeout=options.timeout,
            env=dict(options.env),
            python=options.python,
            cwd=options.cwd,
            connections=options.connections,
            mpi_args=options.mpi_arg,
            name=options.name,
            keep=options.keep,
            check=options.check,
            ordered=options.ordered,
        )
        if options.join or options.profile:
            from ._bench import Progress

            with Progress(live=hasattr(self.shell, "kernel")) as progress:
                self.cluster = cluster.up(progress)
        else:
            self.cluster = cluster.up()
        if cluster.chosen_because:
            print(f"backend: {cluster.chosen_because}")
        display(cluster)  # type: ignore[no-untyped-call]

    def _attach(self, options: argparse.Namespace) -> None:
        if self.cluster is not None and self.cluster.state != "down":
            raise UsageError("this notebook has a cluster already. End it with %distributed down first.")
        self.cluster = cluster = Cluster.attach(options.name)
        display(cluster)  # type: ignore[no-untyped-call]
        for cell in cluster.adopted_cells(lambda ranks: Show(ranks, live=hasattr(self.shell, "kernel"))):
            print(f"cell {cell.number} of the notebook before:")
            cell.finish().check()

    def _status(self, _: argparse.Namespace) -> None:
        display(self._need())  # type: ignore[no-untyped-call]

    def _down(self, _: argparse.Namespace) -> None:
        cluster = self.ended = self._need()
        self.cluster = None
        cluster.down()
        print(f"{_counted(cluster.size)} ended.")

    def _heal(self, options: argparse.Namespace) -> None:
        print(self._need().heal(source=options.source, kill=options.kill or ()))

    def _resize(self, options: argparse.Namespace) -> None:
        print(self._need().resize(options.size, source=options.source))

    def _rewire(self, options: argparse.Namespace) -> None:
        print(self._need().rewire(options.backend, connections=options.connections))

    def _bench(self, options: argparse.Namespace) -> None:
        from ._arguments import parse_size
        from ._bench import Progress
        from ._bench_result import BenchResult

        cluster = self._need()
        smallest, largest = parse_size(options.min), parse_size(options.max)
        earlier = BenchResult.load(options.against) if options.against else None
        if options.save:
            writable("--save", options.save)
        with Progress(live=hasattr(self.shell, "kernel")) as progress:
            result = cluster.bench(
                options.ops,
                smallest=smallest,
                largest=largest,
                seconds=options.seconds,
                compare=options.compare,
                connections=options.connections,
                progress=progress,
            )
        display(result)  # type: ignore[no-untyped-call]
        if options.save:
            result.save(options.save)
        if earlier is not None:
            print("\n".join(result.against(earlier)))

    def _doctor(self, options: argparse.Namespace) -> None:
        display(_doctor.asked_by(options))  # type: ignore[no-untyped-call]

    def _break(self, options: argparse.Namespace) -> None:
        self._need().break_collectives(ranks=options.ranks)

    def _watch(self, options: argparse.Namespace) -> None:
        display(self._need().watch(*options.views))  # type: ignore[no-untyped-call]

    def _interrupt(self, _: argparse.Namespace) -> None:
        if still := self._need().interrupt(within=RELEASE_WITHIN):
            print(f"{still}: still there. %distributed heal --kill RANKS ends and replaces them.")

    def _push(self, options: argparse.Namespace) -> None:
        cluster = self._need()
        if absent := [name for name in options.names if name not in self.shell.user_ns]:
            raise UsageError(f"the notebook has no variable {', '.join(absent)}.")
        cluster.push({name: self.shell.user_ns[name] for name in options.names}, ranks=options.ranks)

    def _pull(self, options: argparse.Namespace) -> None:
        cluster = self._need()
        ranks = cluster.choose_ranks(options.ranks)
        for name in options.names:
            values = cluster.pull(name, ranks=ranks)
            self.shell.user_ns[name.rpartition(".")[2]] = values[0] if len(values) == 1 else values

    def _scatter(self, options: argparse.Namespace) -> None:
        cluster = self._need()
        if absent := [name for name in options.names if name not in self.shell.user_ns]:
            raise UsageError(f"the notebook has no variable {', '.join(absent)}.")
        cluster.scatter({name: self.shell.user_ns[name] for name in options.names})

    def _gather(self, options: argparse.Namespace) -> None:
        cluster = self._need()
        for name in options.names:
            self.shell.user_ns[name.rpartition(".")[2]] = cluster.gather(name, ranks=options.ranks)

    def _vars(self, options: argparse.Namespace) -> None:
        display(self._need().vars(*options.names))  # type: ignore[no-untyped-call]

    def _diff(self, options: argparse.Namespace) -> None:
        differences = self._need().diff(options.name)
        for each in differences:
            print(f"{each.path}: {each.said}")
        if not differences:
            print(f"{options.name} is alike on all ranks, as far as it can be compared.")

    def _discover(self, options: argparse.Namespace) -> None:
        _discover.run(options, display, "%distributed discover")

    def _timeline(self, options: argparse.Namespace) -> None:
        timeline = self._need().last_timeline
        if timeline is None:
            raise UsageError("no cell was recorded yet. %%distributed --timeline records the one it stands in.")
        if options.file is None:
            display(timeline)  # type: ignore[no-untyped-call]
            return
        timeline.save(options.file)
        print(f"{options.file}: open it in https://ui.perfetto.dev or chrome://tracing.")

    def _debug(self, options: argparse.Namespace) -> None:
        cluster = self._need()
        rank = cluster.to_debug() if options.rank is None else options.rank
        if not can_ask(self.shell):
            raise UsageError(
                "%distributed debug asks for commands, and nobody can type here. From Python: "
                f'allranks.current().debug({rank}).ask("where").'
            )
        debugger = cluster.debug(rank)
        screen = Show([rank], live=False)
        text = debugger.text
        try:
            while debugger.open:
                screen.blocks([Block("text", (rank,), text)] if text else [])
                typed = debugger.ask_user(input)
                text = debugger.ask(typed) if typed is not None else ""
        finally:
            print(debugger.leave())

    def _console(self, options: argparse.Namespace) -> None:
        print(self._need().console(options.rank))

    def _auto(self, options: argparse.Namespace) -> None:
        self._need()
        _auto.switch(self.shell, options.switch == "on")


def load(shell: Any) -> None:
    """Add the magics, and completion and inspection that know the ranks' names."""
    if _loaded(shell) is not None:
        return
    magics = DistributedMagics(shell)
    shell.register_magics(magics)
    shell.allranks_magics = magics
    _completion.install(shell, lambda: magics.cluster)


def unload(shell: Any) -> None:
    """End the cluster and take the magics away."""
    magics = _loaded(shell)
    if magics is None:
        return
    if magics.cluster is not None:
        magics.cluster.down()
    _auto.switch(shell, False)
    _completion.remove(shell)
    for kind, names in (("line", ["distributed"]), ("cell", ["distributed", "rank", "local"])):
        for name in names:
            shell.magics_manager.magics[kind].pop(name, None)
    del shell.allranks_magics


def _loaded(shell: Any) -> DistributedMagics | None:
    return getattr(shell, "allranks_magics", None)


def current(shell: Any) -> Cluster | None:
    """The notebook's cluster."""
    magics = _loaded(shell)
    return magics.cluster if magics is not None else None


__all__: Sequence[str] = ["current", "load", "unload"]
