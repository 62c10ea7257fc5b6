"""The options of the two that draw what they do by chance: `soak` and `programs`."""

from __future__ import annotations

import argparse
import random


def options_of(
    arguments: list[str] | None, doc: str | None, thing: str, count: int, ranks: int, epilog: str = ""
) -> argparse.Namespace:
    """Parse the options of the module with this `doc`, which draws `count` things on `ranks` ranks by default."""
    usage, _, description = (doc or "").partition("\n\n")
    parser = argparse.ArgumentParser(prog=usage.strip("`").partition(" --")[0], description=description, epilog=epilog)
    parser.add_argument(f"--{thing}s", type=int, default=count, metavar="N", help=f"how many (default {count})")
    parser.add_argument("--seed", type=int, default=None, metavar="S", help="what is drawn (default: by chance)")
    parser.add_argument("-n", type=int, default=ranks, help=f"ranks (default {ranks})")
    parser.add_argument("--backend", choices=["ring", "mpi"], default="ring")
    parser.add_argument("--first", type=int, default=1, metavar="K", help=f"begin with {thing} K (default 1)")
    options = parser.parse_args(arguments)
    if options.n < 2 or vars(options)[f"{thing}s"] < 1:
        parser.error(f"it takes at least 2 ranks and 1 {thing}")
    if options.seed is None:
        options.seed = random.SystemRandom().randrange(10_000)
    return options
