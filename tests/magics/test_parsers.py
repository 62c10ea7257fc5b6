"""What is typed, and what becomes of it before anything is asked of the ranks."""

from __future__ import annotations

import argparse

import pytest

from allranks.errors import UsageError
from allranks.magics.parsers import cell_parser, line_parser, parse, parse_ranks
from allranks.magics.verbs import VERBS


@pytest.mark.parametrize(
    ("text", "ranks"), [("0", [0]), ("0,2-3", [0, 2, 3]), ("3, 1 - 2", [3, 1, 2]), ("9999", [9999])]
)
def test_ranks(text: str, ranks: list[int]) -> None:
    assert parse_ranks(text) == ranks


@pytest.mark.parametrize(
    ("text", "said"),
    [
        *((text, "use 0, 0-3 or 0,2-3") for text in ("", "1-", "-1", "3-1", "0,,1", "²", "a", "0-9999999999")),
        ("0-99999999", "no world has a rank 99999999"),
    ],
)
def test_ranks_that_cannot_be_are_refused_at_once(text: str, said: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match=said):
        parse_ranks(text)


@pytest.mark.parametrize("given", ["-1", "nan", "inf", "four"])
def test_megabytes_that_cannot_be(given: str) -> None:
    with pytest.raises(UsageError, match=f"invalid --max-output '{given}': use a number of megabytes, such as 4"):
        parse(cell_parser("distributed"), f"--max-output {given}")


def test_a_number_of_ranks_that_is_none() -> None:
    with pytest.raises(UsageError, match="invalid -n '²': use a whole number"):
        parse(line_parser(), "up -n ²")


def test_every_verb_has_a_method() -> None:
    (verbs,) = (each for each in line_parser()._actions if isinstance(each, argparse._SubParsersAction))
    assert VERBS.keys() == verbs.choices.keys()
