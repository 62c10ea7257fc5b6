"""What may be typed after ``%distributed``, ``%%distributed`` and ``%%rank``: verbs, options, and their values.

argparse has no public way to list its options (Python 3.11 to 3.14): ``_actions`` is what completion tools read, too.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from allranks_backends.registry import BACKENDS

OF_NOTEBOOK = ("push", "scatter")
"""Verbs that take names of the notebook's variables."""
OF_RANKS = ("pull", "gather", "vars", "diff")
RANK_NUMBERS = ("ranks", "rank", "kill", "source")
"""Where options that take numbers of ranks put them."""


def words(
    parser: argparse.ArgumentParser,
    before: Sequence[str],
    word: str,
    *,
    user_ns: Mapping[str, Any],
    ranks: Collection[int],
    on_ranks: Callable[[str], Sequence[str]],
) -> list[str]:
    """What `word` may become, after the words `before` it.

    `user_ns` has the notebook's variables, `ranks` the world's numbers; `on_ranks` gives the ranks' names that begin
    with a word.
    """
    verb = before[0] if before else ""
    verbs = next((each for each in parser._actions if isinstance(each, argparse._SubParsersAction)), None)
    if verbs is not None:
        if verb not in verbs.choices:
            return _beginning(word, [] if verb else verbs.choices)
        parser = verbs.choices[verb]
    asked = next((each for each in parser._actions if before and before[-1] in each.option_strings), None)
    if asked is not None and asked.nargs != 0:
        return _beginning(word, _values(asked, ranks))
    if word.startswith("-"):
        shown = [each for each in parser._actions if each.help != argparse.SUPPRESS]
        return _beginning(word, [name for each in shown for name in each.option_strings if name.startswith("--")])
    found = [value for each in parser._actions if not each.option_strings for value in _values(each, ranks)]
    if verb in OF_NOTEBOOK:
        found += [name for name in user_ns if not name.startswith("_")]
    return _beginning(word, found) + (list(on_ranks(word)) if verb in OF_RANKS else [])


def _values(action: argparse.Action, ranks: Collection[int]) -> list[str]:
    if action.choices is not None:
        return list(map(str, action.choices))
    if action.dest == "backend":
        return [*(["auto"] if action.default == "auto" else []), *BACKENDS]
    return list(map(str, ranks)) if action.dest in RANK_NUMBERS else []


def _beginning(word: str, found: Collection[str]) -> list[str]:
    return [each for each in found if each.startswith(word)]
