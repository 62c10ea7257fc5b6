"""What can be typed after ``%distributed``, ``%%distributed`` and ``%%rank``, each option with its help."""

from __future__ import annotations

import argparse
import difflib
import re
import shlex
from typing import NoReturn

from . import _discover, _doctor
from .errors import UsageError

BACKENDS = "auto, ring, jaccl, jaccl-ring, mpi or nccl"


class Parser(argparse.ArgumentParser):
    """Argparse that raises instead of ending the kernel."""

    def error(self, message: str) -> NoReturn:
        said = _with_suggestion(message)
        raise UsageError(f"{said}{'' if said.endswith('?') else '.'}\n{self.format_usage().strip()}")

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


def line_parser() -> Parser:
    parser = Parser(prog="%distributed", description="Interactive MLX clusters.")
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", parser_class=Parser)

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
    debug.add_argument("-r", "--rank", type=int, metavar="R", help="this rank (default: the first that has anything)")
    console = verbs.add_parser("console", help="the command that opens a console on one rank, in a terminal")
    console.add_argument("-r", "--rank", type=int, required=True, metavar="R", help="this rank")
    auto = verbs.add_parser("auto", help="every cell runs on the ranks")
    auto.add_argument("switch", choices=["on", "off"])
    for each in verbs.choices.values():
        each.set_defaults(parser=each)
    return parser


def cell_parser(name: str) -> Parser:
    parser = Parser(prog=f"%%{name}", description="Run the cell on the ranks.")
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


def parse(parser: Parser, line: str) -> argparse.Namespace | None:
    """The options typed; None where help was asked for, and shown. Raises UsageError, with the verb's own usage."""
    try:
        options, more = parser.parse_known_args(shlex.split(line))
        if more:
            verb: Parser = getattr(options, "parser", parser)
            verb.error(f"{' '.join(more)} means nothing here" + _meant(verb, options, more[0]))
        return options
    except _HelpShown:
        return None
    except ValueError as error:
        if isinstance(error, UsageError):
            raise
        raise UsageError(f"{line}: {error}.") from None


def _meant(verb: Parser, options: argparse.Namespace, word: str) -> str:
    """What was probably meant by a word that `verb` does not take; empty where that cannot be said."""
    counted = any(getattr(options, name, None) for name in ("n", "hosts", "hostfile"))
    if word.isdigit() and getattr(options, "verb", None) == "up" and not counted:
        return f"; did you mean -n {word}?"
    known = re.findall(r"--[a-z][a-z-]*", verb.format_usage())
    close = difflib.get_close_matches(word.partition("=")[0], known, 1)
    return f"; did you mean {close[0]}?" if close else ""
