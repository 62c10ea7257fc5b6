"""``python -m allranks``: what can be done from a shell."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from . import __version__

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
    parser = argparse.ArgumentParser(
        prog="python -m allranks",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"allranks {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    text = "run notebooks/quickstart.ipynb on four local ranks and print what they say"
    commands.add_parser("demo", help=text, description=text.capitalize() + ".")
    if parser.parse_args(arguments).command is None:
        parser.print_help()
        return 0
    from ._demo import demo

    return demo()


if __name__ == "__main__":
    sys.exit(main())
