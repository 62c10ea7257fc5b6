"""The options of ``%distributed``, ``%%distributed`` and ``%%rank``, each with its help."""

from __future__ import annotations

import argparse
import difflib
import math
import re
import shlex
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import fields
from typing import Any, NoReturn, TypeAlias, get_args

from allranks.cluster.run_loggers import LOGGERS
from allranks.discovery import discover as discover_module
from allranks.discovery import doctor
from allranks.environments import setup
from allranks.errors import UsageError
from allranks.messages import cell_options
from allranks.typed_options import choices, flag, typed
from allranks.up_options import BACKENDS, UpOptions, listed
from allranks_backends.hostfile import MOST_RANKS

Verbs: TypeAlias = "argparse._SubParsersAction[Parser]"
GROUPS = {
    "start and stop": ("setup", "up", "attach", "status", "down"),
    "change the world": ("heal", "resize", "rewire"),
    "cells": ("auto", "queue", "interrupt", "abort", "output", "timeline"),
    "variables": ("push", "pull", "scatter", "gather", "vars", "diff", "save", "load"),
    "files": ("sync", "fetch", "share"),
    "watch and debug": ("watch", "notify", "runs", "debug", "console"),
    "hosts and links": ("doctor", "discover", "bench"),
}
"""The verbs as the help lists them."""
OLD_VERBS = {"break": "abort"}
"""Maps verbs of 0.1 to their current names; the old ones still work, and are shown nowhere."""


class Parser(argparse.ArgumentParser):
    """Argparse that raises instead of ending the kernel, and takes no abbreviations: ``--n 4`` is not ``--name 4``."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options, allow_abbrev=False)

    def error(self, message: str) -> NoReturn:
        said = _with_suggestion(message)
        raise UsageError(f"{said}{'' if said.endswith('?') else '.'}\n{self.format_usage().strip()}")

    def exit(self, status: int = 0, message: str | None = None) -> NoReturn:
        raise _HelpShown(message or "")


def _with_suggestion(message: str) -> str:
    """Reword an error of argparse (CPython 3.11); for an unknown choice, suggest the one that was probably meant."""
    if number := re.fullmatch(r"argument (.*): invalid (int|float|megabytes) value: (.*)", message):
        kinds = {"int": "a whole number", "float": "a number", "megabytes": "a number of megabytes, such as 4"}
        return f"invalid {number[1]} {number[3]}: use {kinds[number[2]]}"
    found = re.search(r"invalid choice: '(.*?)' \(choose from (.*)\)", message)
    if found is None:
        return re.sub(r"^argument [^:]*: (?=invalid (ranks|numbers|setting) )", "", message)
    choices = [choice.strip("' ") for choice in found[2].split(",")]
    close = difflib.get_close_matches(found[1], choices, 1)
    return (
        f"unknown {found[1]!r}. "
        + (f"Did you mean {close[0]!r}? " if close else "")
        + f"Choose from {', '.join(choices)}"
    )


class _HelpShown(Exception):
    pass


class _LineParser(Parser):
    """Lists its verbs in groups, each with a line of help."""

    def format_help(self) -> str:
        texts = {each.dest: each.help or "" for each in self._verbs._choices_actions}
        width = max(map(len, texts))
        parts = ["usage: %distributed VERB [options]", "%distributed VERB -h shows the options of a verb."]
        for name, verbs in GROUPS.items():
            lines = (f"  {verb.ljust(width)}  {texts[verb]}" for verb in verbs)
            parts.append("\n".join([f"{name}:", *lines]))
        parts.append("%%distributed and %%rank run a cell on the ranks, and have -h, too; %%local runs one here.")
        return "\n\n".join(parts) + "\n"

    @property
    def _verbs(self) -> Verbs:
        return next(each for each in self._actions if isinstance(each, argparse._SubParsersAction))


def parse_ranks(text: str) -> list[int]:
    """Parse ``0,2-3`` to [0, 2, 3]. Raises argparse.ArgumentTypeError."""
    ranks: list[int] = []
    for part in text.replace(" ", "").split(","):
        span = re.fullmatch(r"(\d{1,9})(?:-(\d{1,9}))?", part, re.ASCII)
        first, last = (int(span[1]), int(span[2] or span[1])) if span else (0, -1)
        if last < first:
            raise argparse.ArgumentTypeError(f"invalid ranks {text!r}: use 0, 0-3 or 0,2-3")
        if last >= MOST_RANKS:
            raise argparse.ArgumentTypeError(f"invalid ranks {text!r}: no world has a rank {last}")
        ranks.extend(range(first, last + 1))
    return ranks


def _count(text: str) -> int:
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(f"invalid number {text!r}: use 1 or more")
    return int(text)


def _seconds(text: str) -> float:
    with suppress(ValueError):
        if 0 <= (seconds := float(text)) < math.inf:
            return seconds
    raise argparse.ArgumentTypeError(f"invalid number {text!r}: use seconds, such as 60")


def _counts(text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(f"invalid numbers {text!r}: use 1,2,4") from None


def line_parser() -> Parser:
    parser = _LineParser(prog="%distributed", description="Interactive MLX clusters.")
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", parser_class=Parser)
    for add in (
        _add_start_and_stop,
        _add_change_the_world,
        _add_cells,
        _add_variables,
        _add_files,
        _add_watch_and_debug,
        _add_hosts_and_links,
    ):
        add(verbs)
    for each in verbs.choices.values():
        each.set_defaults(parser=each)
    return parser


def _add_start_and_stop(verbs: Verbs) -> None:
    made = verbs.add_parser("setup", help="make environments on hosts that match this notebook's")
    setup.add_arguments(made)
    up = verbs.add_parser("up", help="start the ranks and form the world")
    up.add_argument("--yes", action="store_true", help="with -n: also far more ranks than cores")
    up.add_argument("--load", metavar="PATH", help="then load what %%distributed save has written")
    up.add_argument("--timing", action="store_true", help="show what each step of the start took")
    add_options(up, UpOptions, {each.name: each.default for each in fields(UpOptions)})
    up.add_argument("--profile", dest="ipp_profile", help=argparse.SUPPRESS)  # its name in 0.1
    attach = verbs.add_parser("attach", help="take over a detached cluster and its running cell")
    attach.add_argument("name", nargs="?", help="needed if several clusters run without a notebook")
    verbs.add_parser("status", help="show hosts, ranks, what each does, and memory")
    down = verbs.add_parser("down", help="stop all ranks and clean up")
    down.add_argument("--save", metavar="PATH", help="first save the ranks' variables, for up --load")


def _add_change_the_world(verbs: Verbs) -> None:
    heal = verbs.add_parser("heal", help="replace dead ranks, re-form the world, report what was kept and lost")
    heal.add_argument("--kill", type=parse_ranks, metavar="RANKS", help="kill stuck ranks; loses their variables")
    _add_source(heal)
    resize = verbs.add_parser("resize", help="grow or shrink the world; ranks that stay keep their variables")
    resize.add_argument("size", type=int, metavar="N")
    resize.add_argument("--yes", action="store_true", help="also far more ranks than cores")
    _add_source(resize)
    rewire = verbs.add_parser("rewire", help="change the backend; ranks keep their variables")
    rewire.add_argument("--backend", help=BACKENDS.removeprefix("auto, "))
    rewire.add_argument("--connections", type=int, help="TCP connections per ring link")


def _add_cells(verbs: Verbs) -> None:
    auto = verbs.add_parser("auto", help="run every cell on the ranks")
    auto.add_argument("switch", choices=["on", "off"])
    queue = verbs.add_parser(
        "queue", help="list, drop or move the cells that wait for others (%%%%distributed --after)"
    )
    change = queue.add_mutually_exclusive_group()
    change.add_argument("--drop", nargs="+", metavar="CELL", help="do not run these cells (numbers or names)")
    change.add_argument("--move", nargs=2, metavar=("CELL", "BEFORE"), help="run CELL before the other one")
    verbs.add_parser("interrupt", help="stop a cell that runs with --no-wait")
    abort = verbs.add_parser("abort", help="abort the collective in which ranks of a --no-wait cell are blocked")
    _add_ranks(abort)
    output = verbs.add_parser("output", help="show, search or save all that the last cell printed")
    _add_ranks(output)
    output.add_argument("--last", type=_count, metavar="N", help="the last N lines of each rank (default 50)")
    output.add_argument("--find", metavar="TEXT", help="the lines with this text (--find=-inf if it begins with -)")
    output.add_argument("--save", metavar="FILE", help="write all of it to a file")
    timeline = verbs.add_parser("timeline", help="show what each rank did when, in the last cell run with --timeline")
    timeline.add_argument(
        "file", nargs="?", metavar="FILE", help="write it for Perfetto or Chrome (.json, .gz), or the picture (.svg)"
    )


def _add_variables(verbs: Verbs) -> None:
    for verb, text in (("push", "copy notebook variables to the ranks"), ("pull", "copy variables from the ranks")):
        move = verbs.add_parser(verb, help=text)
        move.add_argument("names", nargs="+", metavar="NAME")
        _add_ranks(move)
    scatter = verbs.add_parser("scatter", help="split notebook arrays or lists over the ranks")
    scatter.add_argument("names", nargs="+", metavar="NAME")
    gather = verbs.add_parser("gather", help="join the ranks' parts in the notebook, in rank order")
    gather.add_argument("names", nargs="+", metavar="NAME")
    _add_ranks(gather)
    held = verbs.add_parser("vars", help="list the ranks' variables and whether they agree; evaluates nothing")
    held.add_argument("names", nargs="*", default=[], metavar="NAME")
    differ = verbs.add_parser("diff", help="show where a variable differs between ranks, and by how much")
    differ.add_argument("name", metavar="NAME")
    _add_ranks(differ)
    save = verbs.add_parser("save", help="save the ranks' variables and random states to a folder")
    save.add_argument("path", metavar="PATH", help="a folder on each host, or on a disk that they share")
    save.add_argument("names", nargs="*", default=[], metavar="NAME", help="only these variables")
    save.add_argument("--no-wait", action="store_true", help="return the prompt while the files are written")
    load = verbs.add_parser("load", help="load what save has written, on all ranks or on none")
    load.add_argument("path", metavar="PATH")
    load.add_argument("names", nargs="*", default=[], metavar="NAME", help="only these variables, and no random states")


def _add_files(verbs: Verbs) -> None:
    sync = verbs.add_parser("sync", help="bring the notebook's folder to all hosts, and reload changed modules")
    sync.add_argument("--limit", metavar="SIZE", help="send up to so much: 200M, 2G (default 50M)")
    sync.add_argument(
        "--include", action="append", default=[], metavar="PATTERN", help="send these files too, though left out"
    )
    sync.add_argument("--overwrite", action="store_true", help="replace files that others have written there")
    switch = sync.add_mutually_exclusive_group()
    switch.add_argument("--on", action="store_true", default=None, help="from now on before each cell, as up --sync")
    switch.add_argument("--off", dest="on", action="store_false", help="no longer before each cell")
    fetch = verbs.add_parser("fetch", help="bring files of the ranks here, by rank where they differ")
    fetch.add_argument("pattern", metavar="PATTERN", help="e.g. 'runs/*.npz' or '/tmp/**/trace.json'")
    _add_ranks(fetch)
    fetch.add_argument("--to", metavar="DIR", help="default: fetched, beside the notebook")
    fetch.add_argument("--overwrite", action="store_true", help="replace files that are in DIR already")
    share = verbs.add_parser("share", help="bring a model or data that one host has to all others, from host to host")
    share.add_argument(
        "path", metavar="PATH", help="a file, a folder, or a Hugging Face id: mlx-community/Qwen3-0.6B-4bit"
    )
    share.add_argument("--from", dest="source", metavar="R|HOST", help="who has it (default: here, else the first)")
    share.add_argument("--to", metavar="DIR", help="default: the same path, or the Hugging Face cache")
    share.add_argument("--overwrite", action="store_true", help="replace files that others have written there")


def _add_watch_and_debug(verbs: Verbs) -> None:
    watch = verbs.add_parser("watch", help="the live dashboard: topology, ranks, throughput, log")
    watch.add_argument(
        "views", nargs="*", default=[], metavar="PICTURE", help="topology, ranks, throughput or log (default: all)"
    )
    notify = verbs.add_parser("notify", help="get notified when a long cell ends, hangs or is at a breakpoint")
    notify.add_argument("--browser", action="store_true", help="by a notification of the browser")
    notify.add_argument("--bell", action="store_true", help="by the terminal's bell (not in a notebook)")
    notify.add_argument("--command", metavar="CMD", help="by this shell command, with the text in $ALLRANKS_TEXT")
    notify.add_argument("--url", metavar="URL", help="by a POST request: ntfy, or a webhook of Slack or Discord")
    notify.add_argument(
        "--over", type=_seconds, metavar="S", help="of cells that take S seconds or longer (default 30)"
    )
    state = notify.add_mutually_exclusive_group()
    state.add_argument("--test", action="store_true", help="send one now")
    state.add_argument("--off", action="store_true", help="no longer")
    runs = verbs.add_parser("runs", help="list, compare, rename, hide and export runs: cells that called log")
    runs.add_argument(
        "names", nargs="*", default=[], metavar="RUN", help="show this run (number or name), beside a second one"
    )
    change = runs.add_mutually_exclusive_group()
    change.add_argument("--rename", nargs=2, metavar=("RUN", "NAME"), help="give a run a name")
    change.add_argument("--hide", nargs="+", metavar="RUN", help="leave runs out of charts, and list them last")
    change.add_argument("--show", nargs="+", metavar="RUN", help="undo --hide")
    change.add_argument("--export", metavar="FILE", help="write all values, or those of RUN ..., to .csv or .parquet")
    runs.add_argument(
        "--as", dest="logger", choices=list(LOGGERS), help="with --export: write a folder with this library"
    )
    runs.add_argument("--force", action="store_true", help="with --export: replace what is there")
    debug = verbs.add_parser("debug", help="debug a rank: at its breakpoint, or after an error")
    debug.add_argument(
        "-r", "--rank", type=int, metavar="R", help="default: the first at a breakpoint or with an error"
    )
    console = verbs.add_parser("console", help="print the command that opens a console on one rank in a terminal")
    console.add_argument("-r", "--rank", type=int, required=True, metavar="R", help="the rank")


def _add_hosts_and_links(verbs: Verbs) -> None:
    doctor.add_arguments(verbs.add_parser("doctor", help="diagnose hosts and suggest fixes"))
    discover = verbs.add_parser("discover", help="find how hosts are connected, draw it, write a hostfile")
    discover_module.add_arguments(discover)
    bench = verbs.add_parser("bench", help="measure collectives: time and bandwidth by size")
    bench.add_argument("--ops", type=listed, default=["all_sum"], metavar="OPS", help="e.g. all_sum,all_gather,send")
    bench.add_argument("--min", default="1K", metavar="SIZE", help="smallest array: 1K, 4MiB (default 1K)")
    bench.add_argument("--max", default="64M", metavar="SIZE", help="largest array (default 64M)")
    bench.add_argument("--seconds", type=float, default=0.3, metavar="S", help="seconds per size, about (default 0.3)")
    bench.add_argument(
        "--compare", type=listed, default=[], metavar="BACKENDS", help="measure these too, e.g. ring,mpi"
    )
    bench.add_argument(
        "--connections", type=_counts, default=[], metavar="N,N", help="measure a ring with these, e.g. 1,2,4"
    )
    bench.add_argument("--save", metavar="FILE", help="save the results as JSON, or their chart (.svg)")
    bench.add_argument("--against", metavar="FILE", help="compare with saved results")


def _add_ranks(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-r", "--ranks", type=parse_ranks, help="only these ranks, e.g. 0,2-3")


def _add_source(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--from", type=int, dest="source", metavar="R", help="copy rank R's variables to new ranks")


def cell_parser(name: str) -> Parser:
    parser = Parser(prog=f"%%{name}", description="Run the cell on the ranks.")
    if name == "rank":
        parser.add_argument("ranks", type=parse_ranks, metavar="RANKS", help="ranks, e.g. 0 or 0,2-3")
    else:
        _add_ranks(parser)
    parser.add_argument("-o", "--out", metavar="NAME", help="store the CellResult in this notebook variable")
    parser.add_argument("--no-wait", action="store_true", help="return the prompt immediately; output keeps appearing")
    parser.add_argument(
        "--after", nargs="?", const="", metavar="CELL", help="run it once CELL (default: the last one) has succeeded"
    )
    parser.add_argument("--name", metavar="NAME", help="with --after: what to call it in the queue")
    add_options(parser, cell_options.CellOptions, {})
    for old, option in cell_options.OLD_NAMES.items():
        parser.add_argument(f"--{old}", dest=option, action="store_true", default=None, help=argparse.SUPPRESS)
    parser.add_argument(
        "--timeline", nargs="?", const="", metavar="FILE", help="also show (or write) what each rank did when"
    )
    parser.add_argument("--lazy", action="store_true", help="with --timeline: keep evaluation lazy")
    return parser


def add_options(parser: Parser, declared: type, defaults: Mapping[str, object]) -> None:
    """Add the options of a class to the parser."""
    options = typed(declared)
    exclusive = parser.add_mutually_exclusive_group() if any(how.exclusive for _, how in options.values()) else parser
    for name, (kind, how) in options.items():
        given: dict[str, Any] = {"dest": name, "help": how.help, "default": None if how.repeat else defaults.get(name)}
        if how.negatable:
            given |= {"action": argparse.BooleanOptionalAction}
        elif bool in (kind, *get_args(kind)):
            given |= {"action": "store_true"}
        elif words := choices(kind):
            given |= {"choices": words}
        else:
            given |= {"type": how.parse or (get_args(kind) or (kind,))[0], "metavar": how.metavar}
        if how.repeat is not None:
            given |= {"action": "append"}
        (exclusive if how.exclusive else parser).add_argument(flag(name, how), **given)


def values_of(options: argparse.Namespace, declared: type) -> dict[str, Any]:
    """The options of this class that were typed or have a default, by name."""
    given = {name: (getattr(options, name), how.repeat) for name, (_, how) in typed(declared).items()}
    return {
        name: repeat(value) if repeat is not None else value
        for name, (value, repeat) in given.items()
        if value is not None
    }


def parse(parser: Parser, line: str) -> argparse.Namespace | None:
    """Parse the typed options; returns None if help was shown. Raises UsageError with the verb's own usage."""
    try:
        words = shlex.split(line.rstrip().rstrip(";"), comments=True)
        options, more = parser.parse_known_args([OLD_VERBS.get(word, word) for word in words[:1]] + words[1:])
        if more:
            verb: Parser = getattr(options, "parser", parser)
            kind = "option" if more[0].startswith("-") else "argument"
            verb.error(f"unknown {kind} {more[0]}" + _meant(verb, options, more))
        return options
    except _HelpShown:
        return None
    except ValueError as error:
        if isinstance(error, UsageError):
            raise
        raise UsageError(f"{line}: {error}.") from None


def _meant(verb: Parser, options: argparse.Namespace, words: Sequence[str]) -> str:
    """Suggest what the user probably meant by words that `verb` does not take; empty if that is unknown."""
    known = re.findall(r"--?[a-z][a-z-]*", verb.format_usage())
    if close := difflib.get_close_matches(words[0].partition("=")[0], known, 1):
        return f". Did you mean {close[0]}?"
    counted = any(getattr(options, name, None) for name in ("n", "hosts", "hostfile"))
    number = next((word for word in words if word.isdigit()), None)
    if number is not None and getattr(options, "verb", None) == "up" and not counted:
        return f". Did you mean -n {number}?"
    return ""
