"""The shell command ``allranks probe``."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec

from allranks.errors import UsageError
from allranks_backends.hostfile import read_hostfile
from allranks_backends.protocol import BackendError

from .ask_all import LIBRARY, SECTIONS, Probe, Section, Wanted
from .page import page
from .privacy import hidden, hider
from .probe_verdict import Report

NAMES = ("allranks-probe.json", "allranks-probe.md")
EPILOG = """\
It asks what only hardware can answer (RDMA, GPUs), runs a list of checks on two ranks with each backend that this
machine has, and writes a report to attach to an issue. The report has no names of machines or users, no addresses and
no paths, unless --with-names is given. With two Macs: --hosts, or --hostfile for JACCL. Every question has a time
limit; Ctrl-C ends it with what is known.

What a driver does not take back from a killed process may be lost until the machine is restarted. It is asked with one
of each resource; with --skip endings, nothing is killed that holds any.

exit code: 0 if all that was asked was answered as expected, 1 if not, 2 if nothing was asked."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EPILOG
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--out", metavar="FOLDER", help=f"where to write {' and '.join(NAMES)} (here by default)")
    parser.add_argument("--json", action="store_true", help="print the JSON; write files only with --out")
    parser.add_argument("--with-names", action="store_true", help="leave names, addresses and paths in the report")
    parser.add_argument("--hosts", metavar="A,B", default="", help="form worlds on these hosts: names for ssh")
    parser.add_argument("--hostfile", metavar="FILE", help="the same, of a hostfile: JACCL needs one")
    backends = ",".join(Wanted.backends)
    parser.add_argument("--backends", metavar="B,...", default=backends, help=f"of {backends}: these alone")
    parser.add_argument("--skip", metavar="S,...", default="", help=f"leave out: {', '.join(SECTIONS)}")
    parser.add_argument("--library", metavar="FILE", default=LIBRARY, help="the verbs library (%(default)s)")
    parser.add_argument("--patience", metavar="X", type=float, default=1.0, help="multiply all time limits by this")


def main(options: argparse.Namespace) -> int:
    """Run the probe and write the report; return the exit code. Raises UsageError."""
    wanted, out = _wanted(options), _folder(options)
    report = Probe(wanted, lambda text: print(f"allranks: asking: {text}", file=sys.stderr, flush=True)).run()
    if not options.with_names:
        report = hidden(report, hider(wanted.names))
    written = out is None or _written(report, out)
    _print(_json(report) if options.json else page(report))
    return 0 if report.ok and written else 1


def _print(text: str) -> None:
    try:
        print(text, flush=True)
    except BrokenPipeError:  # the reader has closed the pipe, as `| head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _wanted(options: argparse.Namespace) -> Wanted:
    """The questions to ask, by the options. Raises UsageError."""
    if options.hosts and options.hostfile:
        raise UsageError("--hosts and --hostfile cannot be combined: each names the hosts.")
    if options.patience <= 0:
        raise UsageError(f"--patience {options.patience:g}: it must be above 0.")
    hosts = _listed(options.hosts)
    try:
        placed = read_hostfile(options.hostfile).hosts if options.hostfile else ()
    except (BackendError, OSError) as error:
        raise UsageError(f"--hostfile {options.hostfile}: {error}") from None
    return Wanted(
        skip=_chosen("--skip", options.skip, SECTIONS),
        backends=_chosen("--backends", options.backends, Wanted.backends),
        hosts=hosts,
        hostfile=options.hostfile,
        names=[*hosts, *dict.fromkeys(host.name for host in placed if not host.local)],
        library=options.library,
        patience=options.patience,
    )


def _listed(text: str) -> list[str]:
    return [each.strip() for each in text.split(",") if each.strip()]


def _chosen(option: str, text: str, among: Sequence[Section] | Sequence[str]) -> list[Section]:
    chosen = _listed(text)
    if unknown := [each for each in chosen if each not in among]:
        raise UsageError(f"{option} {unknown[0]}: choose of {', '.join(among)}.")
    return chosen  # type: ignore[return-value]


def _folder(options: argparse.Namespace) -> Path | None:
    """The folder for the report, after a trial write; None to write no files. Raises UsageError."""
    if options.json and options.out is None:
        return None
    folder = Path(options.out or ".").expanduser()
    for name in NAMES:
        if (folder / name).exists():
            raise UsageError(f"{folder / name} exists: remove it, or choose another folder with --out FOLDER.")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        trial = folder / f".{NAMES[0]}.trial"
        trial.touch()
        trial.unlink()
    except OSError as error:
        raise UsageError(f"cannot write to {folder} ({error.strerror}): choose another folder with --out.") from None
    return folder


def _written(report: Report, folder: Path) -> bool:
    try:
        for name, text in zip(NAMES, (_json(report), page(report)), strict=True):
            with open(folder / name, "x", encoding="utf-8") as file:
                file.write(text)
    except OSError as error:
        print(f"allranks: cannot write {folder / name} ({error.strerror}). The report follows.", file=sys.stderr)
        return False
    print(f"allranks: wrote {folder / NAMES[0]} and {folder / NAMES[1]}: attach both to an issue.", file=sys.stderr)
    return True


def _json(report: Report) -> str:
    return msgspec.json.format(msgspec.json.encode(report), indent=2).decode() + "\n"
