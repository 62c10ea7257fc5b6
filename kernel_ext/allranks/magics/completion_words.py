"""What users may type after ``%distributed``, ``%%distributed`` and ``%%rank``: verbs, options, and their values.

argparse has no public way to list its options (Python 3.11 to 3.14): ``_actions`` is what completion tools read, too.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Collection, Mapping, Sequence

from allranks_backends.registry import BACKENDS

OF_NOTEBOOK = ("push", "scatter")
"""Verbs that take names of the notebook's variables."""
OF_RANKS = ("pull", "gather", "vars", "diff", "save")
RANK_NUMBERS = ("ranks", "rank", "kill", "source")
"""Argparse names of options that take numbers of ranks."""
BACKENDS_TOO = ("backend", "compare")
CLUSTERS = {"attach": ("name",)}
"""Argparse names, by verb, of arguments that are the name of a cluster without a notebook."""
SEVERAL = ("ranks", "kill", "hosts", "ops", "compare")
"""Argparse names of options with values that are separated by commas."""
OF_RUNS = {"runs": ("names", "rename", "hide", "show")}
"""Argparse names, by verb, of arguments that are the name of a run."""
FILES = (
    "hostfile",
    "join",
    "save",
    "load",
    "against",
    "output",
    "file",
    "path",
    "cwd",
    "python",
    "to",
    "timeline",
    "export",
)
"""Argparse names of arguments that are files or folders, which IPython completes itself."""


def words(
    parser: argparse.ArgumentParser,
    before: Sequence[str],
    word: str,
    *,
    user_ns: Mapping[str, object],
    ranks: Collection[int],
    on_ranks: Callable[[str], Sequence[str]],
    hosts: Callable[[], Sequence[str]],
    clusters: Callable[[], Sequence[str]],
    runs: Callable[[], Sequence[str]],
) -> list[str] | None:
    """Completions of `word` after the words `before` it; None if it is a file, which IPython completes.

    `user_ns` has the notebook's variables, `ranks` the world's ranks. `on_ranks` returns the ranks' variables that
    begin with a word, `hosts` the names of hosts, `clusters` the names of clusters that can be attached, and `runs` the
    names of runs.
    """
    verb = before[0] if before else ""
    verbs = next((each for each in parser._actions if isinstance(each, argparse._SubParsersAction)), None)
    if verbs is not None:
        if verb not in verbs.choices:
            return _beginning(word, [] if verb else verbs.choices)
        parser = verbs.choices[verb]

    def values(action: argparse.Action) -> list[str]:
        if action.choices is not None:
            return list(map(str, action.choices))
        if action.dest in BACKENDS_TOO:
            return [*(["auto"] if action.default == "auto" else []), *BACKENDS]
        if action.dest in CLUSTERS.get(verb, ()):
            return list(clusters())
        if action.dest in OF_RUNS.get(verb, ()):
            return list(runs())
        named = hosts() if action.dest == "hosts" or (verb, action.dest) == ("share", "source") else ()
        numbers = map(str, ranks) if action.dest in RANK_NUMBERS else ()
        return [*numbers, *(_operations() if action.dest == "ops" else ()), *named]

    asked = next((each for each in parser._actions if before and before[-1] in each.option_strings), None)
    if asked is not None and asked.nargs != 0:
        if asked.dest in FILES:
            return None
        return _several(word, values(asked)) if asked.dest in SEVERAL else _beginning(word, values(asked))
    if word.startswith("-"):
        shown = [each for each in parser._actions if each.help != argparse.SUPPRESS]
        return _beginning(word, [name for each in shown for name in each.option_strings if name.startswith("--")])
    given = [each for each in parser._actions if not each.option_strings]
    if len(given) > 1 and any(not each.startswith("-") for each in before[1:]):
        given = given[1:]  # the names after a path
    if any(each.dest in FILES for each in given):
        return None
    if any(each.dest in SEVERAL for each in given):
        return _several(word, [value for each in given for value in values(each)])
    found = [value for each in given for value in values(each)]
    if verb in OF_NOTEBOOK:
        found += [name for name in user_ns if not name.startswith("_")]
    return _beginning(word, found) + (list(on_ranks(word)) if verb in OF_RANKS else [])


def _operations() -> Sequence[str]:
    from allranks.bench.measure import OPS

    return OPS


def _several(word: str, found: Collection[str]) -> list[str]:
    """Same as `_beginning`, for the last of several values: ``0,1`` may become ``0,12``, but not ``0,0``."""
    before, comma, last = word.rpartition(",")
    return [f"{before}{comma}{each}" for each in _beginning(last, found) if each not in before.split(",")]


def _beginning(word: str, found: Collection[str]) -> list[str]:
    return [each for each in found if each.startswith(word)]
