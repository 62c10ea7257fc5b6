"""``python -m benchmarks [NAMES...] [--repeat N] [--quick] [--json FILE] [--keep]``: measure, and print the tables.

A figure is a ratio of medians over rounds in which both sides took turns. A missed bar is printed as a miss, and a
ratio that is worse than the one kept in ``figures.json`` is named; neither fails anything: these are no tests.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from . import (
    allreduce,
    busbw,
    cell,
    editrun,
    flood,
    hosts,
    hosts16,
    idle,
    link,
    odd_hosts,
    overhead,
    page,
    page_flood,
    save,
    setup,
    share,
    start,
    step,
    sync,
)
from ._figures import FEWEST, compared, keep
from ._machine import describe_machine, other_work
from ._processes import nothing_left
from ._table import Table, as_text

BENCHMARKS = {
    each.__name__.rpartition(".")[2].replace("_", "-"): each
    for each in (
        start,
        cell,
        flood,
        allreduce,
        idle,
        busbw,
        overhead,
        page,
        page_flood,
        step,
        hosts,
        hosts16,
        link,
        sync,
        share,
        save,
        editrun,
        setup,
        odd_hosts,
    )
}


def main(arguments: list[str] | None = None) -> int:
    options = _options(arguments)
    machine = describe_machine()
    print(" \u00b7 ".join(f"{name} {value}" for name, value in machine.items()), flush=True)
    if busy := other_work():
        print(f"note: {busy}", flush=True)
    tables: list[Table] = []
    status = 0
    try:
        with nothing_left():
            for name in options.names or BENCHMARKS:
                print(f"\n{name}: measuring \u2026", file=sys.stderr, flush=True)
                tables.append(BENCHMARKS[name].measure(options.repeat, quick=options.quick))
                print(f"\n{as_text(tables[-1])}", flush=True)
            if options.keep:
                print(f"\nkept in figures.json: {', '.join(keep(tables, machine)) or 'nothing, for lack of rounds'}")
            elif not options.quick:
                print("\n" + "\n".join(compared(tables, machine)))
    except KeyboardInterrupt:
        print("\ninterrupted; everything that was started has been ended", file=sys.stderr)
        status = 130
    finally:
        if options.json is not None:
            result = {"machine": machine, "quick": options.quick, "tables": [table.as_json() for table in tables]}
            options.json.write_text(json.dumps(result, indent=2) + "\n")
    return status


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description="Measure allranks side by side with what it is compared with, and print the ratios.",
        epilog="; ".join(f"{name}: {(module.__doc__ or '').splitlines()[0]}" for name, module in BENCHMARKS.items()),
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"{', '.join(BENCHMARKS)} (default: all)")
    parser.add_argument("--repeat", type=int, metavar="N", help=f"rounds, at least {FEWEST} (default: as each needs)")
    parser.add_argument("--quick", action="store_true", help="two small rounds, to see that everything works")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures and all samples to FILE too")
    parser.add_argument("--keep", action="store_true", help="keep these ratios in figures.json, in place of comparing")
    options = parser.parse_args(arguments)
    if unknown := [name for name in options.names if name not in BENCHMARKS]:
        parser.error(f"there is no benchmark {unknown[0]!r} ({', '.join(BENCHMARKS)})")
    if options.repeat is not None and options.repeat < FEWEST and not options.quick:
        parser.error(f"--repeat {options.repeat}: a median needs at least {FEWEST} rounds")
    return options


if __name__ == "__main__":
    sys.exit(main())
