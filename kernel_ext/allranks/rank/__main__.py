"""``python -m allranks.rank --join FILE``: run as a rank that mpirun, a scheduler or the macOS host process started.

FILE (0600) was written by ``%distributed up --join FILE`` (see `join`), or holds a RankConfig as JSON. If FILE has
``ranks``, these are the settings of all ranks, and ``--number`` or the launcher's environment selects one of them.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from allranks.machine.private_files import make_private, offered, redirect_to_log
from allranks.messages.host_messages import RankConfig
from allranks.rank.process.import_engine import import_engine
from allranks.rank.process.join_from_scheduler import FILE_WITHIN, RANK_VARIABLES, join, launched_as, read_join_file


def _number(given: int | None) -> int:
    """The rank of this process: `given`, or else the launcher's number. Ends the process if neither is known."""
    number = launched_as() if given is None else given
    if number is None:
        sys.exit(f"allranks: none of {', '.join(RANK_VARIABLES)} is set; was this started by mpirun?")
    return number


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m allranks.rank", description=__doc__)
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument("--join", type=Path, metavar="FILE", help="written by the notebook; - for stdin")
    where.add_argument("--cluster", metavar="ID", help="the cluster whose settings the host process keeps here")
    parser.add_argument("--number", type=int, metavar="RANK", help="which rank, where the launcher does not say")
    parser.add_argument("--uuid", help="of the rank: the process ends where another one has taken its place")
    options = parser.parse_args()
    file = options.join if options.join is not None else offered(options.cluster) / f"{_number(options.number)}.json"
    settings = read_join_file(file, within=FILE_WITHIN if options.join is not None else 0.0)
    if "urls" in settings:
        sys.exit(join(settings, None if str(file) == "-" else file))
    if "ranks" in settings:
        settings = settings["ranks"][_number(options.number)]
    try:
        config = RankConfig(**settings)
    except TypeError:
        sys.exit(f"allranks: {file} is not a join file. %distributed up --join writes one.")
    if options.uuid not in (None, config.uuid):
        sys.exit(f"allranks: rank {config.rank} has been started again meanwhile.")
    make_private(Path(config.directory))
    redirect_to_log(config.directory)
    import_engine().run(config)  # imported only now: a process that only joins does not need it


if __name__ == "__main__":
    main()
