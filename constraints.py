"""Renews constraints.txt, the exact versions that the Makefile installs, or compares it with an environment.

`python -m constraints renew` has uv resolve pyproject.toml with all extras, for every platform and every Python that
`requires-python` allows. A package has several lines, with markers, where its newest version differs between Pythons.
`python -m constraints compare` compares the file with the environment of the running Python. Both print what moved.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from importlib.metadata import distributions
from pathlib import Path

FILE = Path(__file__).with_name("constraints.txt")
HEADER = "# Written by `make constraints`: the versions that the Makefile installs.\n"
NOT_PINNED = {"allranks", "pip", "setuptools"}
"""Ours, and what `python -m venv` itself installs."""

Versions = Mapping[str, frozenset[str]]
"""Maps the normalized name of a package to its versions."""


def renew() -> None:
    uv = Path(sys.executable).with_name("uv")
    command = [str(uv), "pip", "compile", "--quiet", "--universal", "--all-extras", "--group=install"]
    command += ["--no-annotate", "--no-header", "--no-emit-index-url", "pyproject.toml"]
    compiled = subprocess.run(command, cwd=FILE.parent, stdout=subprocess.PIPE, text=True)
    if compiled.returncode:
        sys.exit(compiled.returncode)
    before = FILE.read_text(encoding="utf-8") if FILE.exists() else ""
    after = HEADER + compiled.stdout
    FILE.write_text(after, encoding="utf-8")
    unmoved = "nothing moved" if after == before else "no version moved, only markers"
    print("\n".join(moves(versions(before), versions(after))) or unmoved)


def compare() -> None:
    """Pins of packages that this environment does not have are ignored: they are of other extras or platforms."""
    pinned = versions(FILE.read_text(encoding="utf-8"))
    installed = {normalized(each.name): frozenset([each.version]) for each in distributions()}
    moved = {name: found for name, found in installed.items() if not found <= pinned.get(name, frozenset())}
    moved = {name: found for name, found in moved.items() if name not in NOT_PINNED}
    report = moves({name: pinned[name] for name in moved if name in pinned}, moved)
    print("\n".join(report) or "all versions are those of constraints.txt")


def versions(text: str) -> Versions:
    """The pins of a constraints file: lines of the form `name==version ; marker`."""
    found: dict[str, frozenset[str]] = {}
    for name, version in re.findall(r"^([\w.-]+)==([^\s;]+)", text, re.MULTILINE):
        found[normalized(name)] = found.get(normalized(name), frozenset()) | {version}
    return found


def normalized(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def moves(before: Versions, after: Versions) -> Iterator[str]:
    """One line for each package whose versions differ."""
    for name in sorted(before.keys() | after.keys()):
        old, new = (", ".join(sorted(side.get(name, ()))) for side in (before, after))
        if not old:
            yield f"{name} {new} added"
        elif not new:
            yield f"{name} {old} removed"
        elif old != new:
            yield f"{name} {old} -> {new}"


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["renew"]:
            renew()
        case ["compare"]:
            compare()
        case _:
            sys.exit("usage: python -m constraints renew | compare")
