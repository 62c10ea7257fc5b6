"""``allranks``, or ``python -m allranks``: the commands for a shell."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict

from allranks import __version__

from .errors import AllranksError, Busy, CellInterrupted
from .machine.lease import BUSY_STATUS

DESCRIPTION = "Interactive MLX clusters for Jupyter. The ranks are started from a notebook or a script, not from here."
EPILOG = """\
in a notebook:
  %load_ext allranks
  %distributed up -n 4

in a script:
  import allranks
  with allranks.Cluster(n=4) as cluster:
      print(cluster.run("mx.distributed.all_sum(mx.ones(10))")[0].value)
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    try:
        return _run(arguments)
    except AllranksError as error:
        print(f"allranks: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt as stopped:  # also while modules are imported
        print(f"allranks: {str(stopped) or 'stopped'}.", file=sys.stderr)
        return 130


def _run(arguments: Sequence[str] | None) -> int:
    parser = _parser()
    options = parser.parse_args(arguments)
    if options.command is None:
        parser.print_help()
        return 0
    done: int = options.run(options)
    return done


def _parser() -> argparse.ArgumentParser:
    from allranks.discovery import clusters_command, discover, doctor
    from allranks.environments import setup
    from allranks.probe import probe_command

    parser = argparse.ArgumentParser(
        prog="python -m allranks",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"allranks {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")

    def add(name: str, run: Callable[[argparse.Namespace], int], text: str) -> argparse.ArgumentParser:
        command = commands.add_parser(name, help=text, description=f"{text[0].upper()}{text[1:]}.")
        command.set_defaults(run=run)
        return command

    add("demo", _demo, "run the quickstart notebook on four local ranks and print its output")
    text = "diagnose this machine or other hosts and suggest fixes; exits with 1 if ranks could not run there"
    doctor.add_arguments(add("doctor", _diagnose, text))
    text = "find how hosts are connected, and write a hostfile; exits with 1 if they cannot form a world yet"
    discover.add_arguments(add("discover", _look, text))
    text = "make environments on hosts that match this one; exits with 1 if a host has none"
    setup.add_arguments(makes := add("setup", _set_up, text))
    makes.add_argument("--json", action="store_true", help="print JSON")
    lists = add("list", _list, "list the clusters that run on this machine, or on other hosts, and their notebooks")
    ends = add("down", _end, "end a cluster, wherever its notebook is; exits with 1 if ranks may be left")
    clusters_command.add_arguments(lists, ends)
    text = "report what this machine's RDMA, GPUs and backends do, to attach to an issue; takes about five minutes"
    probe_command.add_arguments(add("probe", probe_command.main, text))
    experiment = add("experiment", _experiment, "run an experiment, or continue it")
    experiment.add_argument("file", metavar="FILE", help="the experiment in TOML: see docs/experiments.md")
    experiment.add_argument("--again", choices=["failed", "changed", "all"], help="run these again")
    return parser


def _demo(_: argparse.Namespace) -> int:
    from .demo import demo

    return demo()


def _experiment(options: argparse.Namespace) -> int:
    from allranks.experiment.toml_file import main as run_experiment

    return run_experiment(options.file, options.again)


def _list(options: argparse.Namespace) -> int:
    from allranks.discovery.clusters_command import list_clusters

    return _told_of_stop(list_clusters, options)


def _end(options: argparse.Namespace) -> int:
    from allranks.discovery.clusters_command import end

    return _save_and_end(options) if options.save is not None else _told_of_stop(end, options)


def _told_of_stop(run: Callable[[argparse.Namespace], int], options: argparse.Namespace) -> int:
    try:
        return run(options)
    except KeyboardInterrupt:
        print("allranks: stopped. What still runs: allranks list", file=sys.stderr)
        return 130


def _save_and_end(options: argparse.Namespace) -> int:
    """Take over a cluster that has lost its notebook, save its variables, and end it. Returns the exit code."""
    from allranks.cluster.cluster import Cluster

    if options.hosts or options.force or options.json or options.python:
        print("allranks: --save takes no other option.", file=sys.stderr)
        return 2
    try:
        cluster = Cluster.attach(options.name)
        try:
            cluster.await_ended_cells()
            print(cluster.save(options.save, complete=True), flush=True)
        except BaseException:  # also Ctrl-C
            cluster.let_go()
            raise
    except (AllranksError, CellInterrupted) as error:
        print(f"allranks: {error} Nothing was ended.", file=sys.stderr)
        return BUSY_STATUS if isinstance(error, Busy) else 2
    cluster.down()
    left = f", but not on {', '.join(cluster.not_ended)}, which cannot be reached" if cluster.not_ended else ""
    print(f"{cluster.name} has ended{left}.")
    return 1 if cluster.not_ended else 0


def _diagnose(options: argparse.Namespace) -> int:
    from allranks.discovery.doctor import asked_by

    diagnosis = asked_by(options)
    print(diagnosis)
    return 0 if diagnosis.ok else 1


def _look(options: argparse.Namespace) -> int:
    from allranks.discovery.discover import run

    return 0 if run(options, print, "python -m allranks discover") else 1


def _set_up(options: argparse.Namespace) -> int:
    from allranks.bench.measure import Progress
    from allranks.environments.setup import asked_by

    with Progress(live=False) as progress:
        made = asked_by(options, progress if sys.stderr.isatty() else lambda _text: None)
    print(json.dumps(asdict(made), indent=2) if options.json else made)
    return 0 if made.ok else 1


if __name__ == "__main__":
    sys.exit(main())
