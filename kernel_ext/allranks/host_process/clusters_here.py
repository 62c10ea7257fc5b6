"""Run from a shell: list this user's clusters on this machine or, given an id, end that cluster's processes here."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence

from allranks.machine.hosted_clusters import end, hosted_clusters, listed


def main(arguments: Sequence[str]) -> None:
    """Print JSON: the clusters, or the names of the processes that were ended.

    `arguments`: ``list`` (the default) or a cluster's id, then further folders to search for descriptions.
    """
    if arguments and arguments[0] != "list":
        found = hosted_clusters(arguments[1:])
        print(json.dumps([name for each in found if each.cluster == arguments[0] for name in end(each)]))
    else:
        print(json.dumps(listed(arguments[1:])))


if __name__ == "__main__":
    main(sys.argv[1:])
