"""``%distributed VERB``, ``%%distributed`` and ``%%rank``: parse and delegate, nothing else."""

from __future__ import annotations

import argparse
import contextvars
import difflib
import re
import shlex
import threading
from collections.abc import Sequence
from typing import Any, NoReturn

from IPython.core.magic import Magics, cell_magic, line_magic, magics_class
from IPython.display import display

from . import _auto, _completion, _discover, _doctor
from ._arguments import writable
from ._cell import Cell
from ._comms import page_has_widgets
from ._fold import Block
from ._keyboard import can_ask
from ._result import CellResult
from ._show import Show
from .cluster import Cluster
from .errors import AllranksError, NoCluster, RemoteError, UsageError

BACKENDS = "auto, ring, jaccl, jaccl-ring, mpi or nccl"


class _Parser(argparse.ArgumentParser):
    """Argparse that raises instead of ending the kernel."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{_with_suggestion(message)}.\n{self.format_usage().strip()}")

    def exit(self, status: int = 0, message: str | None = None) -> NoReturn:
        raise _HelpShown(message or "")


def _with_suggestion(message: str) -> str:
    """Argparse's complaint about a choice, with the one that was probably meant."""
    found = re.search(r"invalid choice: '(.*?)' \(choose from (.*)\)", message)
    if found is None:
        return message
    choices = [choice.strip("' ") for choice in found[2].split(",")]
    close = difflib.get_close_matches(found[1], choices, 1)
    return f"there is no {found[1]!r}" + (f"; did you mean {close[0]!r}?" if close else "") + f" ({', '.join(choices)})"


class _HelpShown(Exception):
    pass


def parse_ranks(text: str) -> list[int]:
    """``0,2-3`` as [0, 2, 3]."""
    ranks: list[int] = []
    for part in text.replace(" ", "").split(","):
        first, dash, last = part.partition("-")
        if not first.isdigit() or (dash and not last.isdigit()) or (dash and int(last) < int(first)):
            raise argparse.ArgumentTypeError(f"{text!r} are no ranks: write 0, 0-3 or 0,2-3")
        ranks.extend(range(int(first), int(last or first) + 1))
    return ranks


def _setting(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise argparse.ArgumentTypeError(f"{text!r} is no NAME=VALUE")
    return name, value


def _listed(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _counts(text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} are no numbers: write 1,2,4") from None


def _line_parser() -> _Parser:
    parser = _Parser(prog="%distributed", description="Interactive MLX clusters.")
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", parser_class=_Parser)

    up = verbs.add_parser("up", help="start the ranks and form the world")
    where = up.add_mutually_exclusive_group()
    where.add_argument("-n", type=int, help="ranks on this machine (default 2)")
    where.add_argument("--hosts", type=_listed, help="one rank on each of these, comma-separated")
    where.add_argument("--hostfile", help="mlx's JSON hostfile, or MPI's 'host slots=n'")
    up.add_argument("--join", metavar="FILE", help="a scheduler starts -n ranks, which find the way in this new file")
    up.add_argument("--profile", metavar="P", help="ranks beside the engines of a running ipyparallel cluster")
    up.add_argument("--timeout", type=float, default=600.0, metavar="S", help="seconds to wait for those (default 600)")
    up.add_argument("--ranks-per-host", type=int, default=1, help="ranks on each of --hosts or --hostfile")
    up.add_argument("--backend", default="auto", help=BACKENDS)
    up.add_argument("--env", type=_setting, action="append", default=[], metavar="K=V", help="set in every rank")
    up.add_argument("--python", help="interpreter of the ranks (default: the notebook's)")
    up.add_argument("--cwd", help="folder the ranks work in (default: the notebook's)")
    up.add_argument("--connections", type=int, default=1, help="TCP connections of a ring link")
    up.add_argument("--mpi-arg", action="append", default=[], metavar="A", help="passed to mpirun; may be repeated")
    up.add_argument("--keep", action="store_true", help="outlive the notebook, for attach")
    up.add_argument("--check", choices=["off", "warn", "strict"], default="warn", help="if ranks' collectives differ")
    up.add_argument("--ordered", action="store_true", help="evaluation order cannot swap the results of collectives")
    up.add_argument("--name", default="main", help="what the cluster is called")

    attach = verbs.add_parser("attach", help="take over a kept cluster, its running cell included")
    attach.add_argument("name", nargs="?", default="main")
    verbs.add_parser("status", help="hosts, ranks, state and collective, epoch, memory")
    verbs.add_parser("down", help="end everything this cluster started, leave nothing behind")
    heal = verbs.add_parser("heal", help="replace dead ranks, form the world anew, say what was kept and lost")
    heal.add_argument("--kill", type=parse_ranks, metavar="RANKS", help="end these first: for ranks that are stuck")
    heal.add_argument("--from", type=int, dest="source", metavar="R", help="give new ranks the variables of rank R")
    resize = verbs.add_parser("resize", help="grow or shrink the world; ranks that stay keep their variables")
    resize.add_argument("size", type=int, metavar="N")
    resize.add_argument("--from", type=int, dest="source", metavar="R", help="give new ranks the variables of rank R")
    rewire = verbs.add_parser("rewire", help="same ranks and variables, other backend")
    rewire.add_argument("--backend", help=BACKENDS.removeprefix("auto, "))
    rewire.add_argument("--connections", type=int, help="TCP connections of a ring link")
    bench = verbs.add_parser("bench", help="measure the collectives: time and bandwidth by size")
    bench.add_argument("--ops", type=_listed, default=["all_sum"], metavar="OPS", help="e.g. all_sum,all_gather,send")
    bench.add_argument("--min", default="1K", metavar="SIZE", help="smallest array: 1K, 4MiB (default 1K)")
    bench.add_argument("--max", default="64M", metavar="SIZE", help="largest array (default 64M)")
    bench.add_argument("--seconds", type=float, default=0.3, metavar="S", help="about what a size takes (default 0.3)")
    bench.add_argument("--compare", type=_listed, default=[], metavar="BACKENDS", help="try these too, e.g. ring,mpi")
    bench.add_argument(
        "--connections", type=_counts, default=[], metavar="N,N", help="try a ring with these, e.g. 1,2,4"
    )
    bench.add_argument("--save", metavar="FILE", help="keep the figures as JSON")
    bench.add_argument("--against", metavar="FILE", help="say what changed since those were saved")
    _doctor.add_arguments(verbs.add_parser("doctor", help="what is wrong with the hosts, and how to mend it"))
    free = verbs.add_parser("break", help="free ranks blocked in a collective of a cell that runs with --no-wait")
    free.add_argument("-r", "--ranks", type=parse_ranks, help="only these, e.g. 0,2-3")
    watch = verbs.add_parser("watch", help="the live dashboard: topology, ranks, throughput, log")
    watch.add_argument("views", nargs="*", metavar="PICTURE", help="topology, ranks, throughput or log (default: all)")
    verbs.add_parser("interrupt", help="stop a cell that runs with --no-wait")
    for verb, text in (("push", "copy notebook variables to the ranks"), ("pull", "copy variables from the ranks")):
        move = verbs.add_parser(verb, help=text)
        move.add_argument("names", nargs="+", metavar="NAME")
        move.add_argument("-r", "--ranks", type=parse_ranks, help="only these, e.g. 0,2-3")
    scatter = verbs.add_parser("scatter", help="give each rank its part of notebook arrays or lists")
    scatter.add_argument("names", nargs="+", metavar="NAME")
    gather = verbs.add_parser("gather", help="join the ranks' parts in the notebook, in rank order")
    gather.add_argument("names", nargs="+", metavar="NAME")
    gather.add_argument("-r", "--ranks", type=parse_ranks, help="only these, e.g. 0,2-3")
    held = verbs.add_parser("vars", help="what lives on the ranks, and whether they agree; evaluates nothing")
    held.add_argument("names", nargs="*", metavar="NAME")
    differ = verbs.add_parser("diff", help="where replicas of a variable differ, and how far")
    differ.add_argument("name", metavar="NAME")
    discover = verbs.add_parser("discover", help="find out what joins the hosts, draw it, write a hostfile")
    _discover.add_arguments(discover)
    timeline = verbs.add_parser("timeline", help="what each rank did when, in the last cell that ran with --timeline")
    timeline.add_argument("file", nargs="?", metavar="FILE", help="write it there, for Perfetto or Chrome (.json, .gz)")
    debug = verbs.add_parser("debug", help="look back at what a rank raised, or go to the breakpoint it stands at")
    debug.add_argument("-r", "--rank", type=int, required=True, metavar="R", help="this rank")
    console = verbs.add_parser("console", help="the command that opens a console on one rank, in a terminal")
    console.add_argument("-r", "--rank", type=int, required=True, metavar="R", help="this rank")
    auto = verbs.add_parser("auto", help="every cell runs on the ranks")
    auto.add_argument("switch", choices=["on", "off"])
    return parser


def _cell_parser(name: str) -> _Parser:
    parser = _Parser(prog=f"%%{name}", description="Run the cell on the ranks.")
    if name == "rank":
        parser.add_argument("ranks", type=parse_ranks, metavar="RANKS", help="these ranks, e.g. 0 or 0,2-3")
    else:
        parser.add_argument("-r", "--ranks", type=parse_ranks, help="only these ranks, e.g. 0,2-3")
    parser.add_argument("-o", "--out", metavar="NAME", help="keep the CellResult in this notebook variable")
    parser.add_argument("--no-wait", action="store_true", help="give the prompt back at once; output goes on appearing")
    parser.add_argument("--timeout", type=float, metavar="S", help="stop the cell after S seconds")
    parser.add_argument(
        "--max-output", type=float, default=4.0, metavar="MB", help="text kept of each rank (default 4)"
    )
    parser.add_argument("--check", choices=["off", "warn", "strict"], help="what if ranks enter different collectives")
    parser.add_argument("--ordered", action="store_true", default=None, help="evaluation order cannot swap results")
    parser.add_argument("--profile", action="store_true", help="time each collective (slower): transfer and wait")
    parser.add_argument(
        "--timeline", nargs="?", const="", metavar="FILE", help="the same, and show (and write) what each rank did when"
    )
    parser.add_argument("--lazy", action="store_true", help="with --timeline: evaluate nothing at once")
    return parser


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
        self._lines = _line_parser()
        self._cells = {name: _cell_parser(name) for name in ("distributed", "rank")}

    @line_magic
    def distributed(self, line: str) -> None:
        """%distributed VERB: up, status, down, push, pull, interrupt, auto. `%distributed VERB -h` says more."""
        options = self._parse(self._lines, line)
        if options is None:
            return
        if options.verb is None:
            self._lines.print_help()
            return
        getattr(self, f"_{options.verb}")(options)

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
        options = self._parse(self._cells[name], line)
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

    @staticmethod
    def _parse(parser: _Parser, line: str) -> argparse.Namespace | None:
        try:
            return parser.parse_args(shlex.split(line))
        except _HelpShown:
            return None
        except ValueError as error:
            if isinstance(error, UsageError):
                raise
            raise UsageError(f"{line}: {error}.") from None

    # The verbs.

    def _up(self, options: argparse.Namespace) -> None:
        if self.cluster is not None and self.cluster.state != "down":
            raise UsageError(
                f"{self.cluster.size} {self.cluster.backend} ranks are up already. "
                "End them with %distributed down before you start others."
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
        print(f"{cluster.size} ranks ended.")

    def _heal(self, options: argparse.Namespace) -> None:
        print(self._need().heal(source=options.source, kill=options.kill or ()))

    def _resize(self, options: argparse.Namespace) -> None:
        print(self._need().resize(options.size, source=options.source))

    def _rewire(self, options: argparse.Namespace) -> None:
        print(self._need().rewire(options.backend, connections=options.connections))

    def _bench(self, options: argparse.Namespace) -> None:
        from ._arguments import parse_size
        from ._bench import Progress
        from ._figures import BenchResult

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
        self._need().interrupt()

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
        cluster, rank = self._need(), options.rank
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
