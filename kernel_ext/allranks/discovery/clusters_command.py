"""``allranks list`` and ``allranks down``: list and end clusters from a shell."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Mapping

from allranks.errors import AllranksError
from allranks.units import duration_text, ranks_text
from allranks_widgets.table import text_table

from .running_clusters import Ending, RunningCluster, command_to_end, end_cluster, running_clusters

HEADINGS = ("name", "id", "ranks", "hosts", "up for", "notebook")


def add_arguments(lists: argparse.ArgumentParser, ends: argparse.ArgumentParser) -> None:
    """Add the options of ``list`` and ``down`` to their parsers."""
    ends.add_argument("name", metavar="NAME", help="the cluster's name, or the beginning of its id")
    ends.add_argument("--force", action="store_true", help="also if a notebook is attached")
    ends.add_argument("--save", metavar="PATH", help="first save the ranks' variables, for up --load")
    for parser in (lists, ends):
        parser.add_argument("--hosts", metavar="A,B", default="", help="look on these hosts, too: names for ssh")
        parser.add_argument("--python", metavar="P", help="the Python that has allranks on those hosts")
        parser.add_argument("--json", action="store_true", help="print JSON")


def list_clusters(options: argparse.Namespace) -> int:
    """Print the running clusters; returns the exit code: 1 if a host could not be asked. Raises UsageError."""
    found = running_clusters(_hosts(options), options.python)
    if options.json:
        print(json.dumps([each.as_json() for each in found.clusters], indent=2))
    elif found.clusters:
        print(text_table(HEADINGS, [_row(each) for each in found.clusters]))
    else:
        print(f"No cluster runs on {', '.join(['this machine', *(set(_hosts(options)) - found.unreached.keys())])}.")
    for sentence in found.unreadable:
        print(f"allranks: {sentence}", file=sys.stderr)
    return _complain(found.unreached)


def end(options: argparse.Namespace) -> int:
    """End a cluster; returns the exit code: 1 if ranks may be left, 2 if nothing was done."""
    try:
        ending = end_cluster(options.name, _hosts(options), options.python, force=options.force)
    except AllranksError as error:
        print(f"allranks: {error}", file=sys.stderr)
        if options.json:
            print(json.dumps({"name": options.name, "refused": str(error)}, indent=2))
        return 2
    if options.json:
        told = {"name": ending.name, "id": ending.id, "ended": ending.ended, "unreached": ending.unreached}
        print(json.dumps(told, indent=2))
    else:
        print(ending)
    return _complain(ending.unreached, ending)


def _hosts(options: argparse.Namespace) -> list[str]:
    return [name.strip() for name in options.hosts.split(",") if name.strip()]


def _row(each: RunningCluster) -> tuple[str, ...]:
    told = each.cluster
    since = min(part.cluster.since for part in each.parts)
    kind = ranks_text(told.size, told.backend)
    return told.name, told.cluster, kind, ", ".join(told.hosts), duration_text(time.time() - since), each.notebook


def _complain(unreached: Mapping[str, str], ending: Ending | None = None) -> int:
    for host, why in unreached.items():
        print(f"allranks: {host} could not be asked: {why}.", file=sys.stderr)
    if unreached and ending is not None:
        again = command_to_end(ending.id, ending.pythons)
        print(f"allranks: ranks may still run there. To end them: {again}", file=sys.stderr)
    return 1 if unreached else 0
