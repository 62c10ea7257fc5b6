"""What can be set for a cluster is declared once: keywords, what is typed, what is stored and the docs agree."""

from __future__ import annotations

import inspect
import json
import os
import re
from dataclasses import fields
from pathlib import Path
from typing import Any, get_type_hints

import numpy as np
import pytest

from allranks import Cluster
from allranks.cluster_settings import Settings
from allranks.magics.parsers import line_parser, parse, values_of
from allranks.typed_options import choices, flag, typed
from allranks.up_options import UpOptions

DOCS = Path(__file__).parents[1] / "docs" / "magics.md"
NAMES = [each.name for each in fields(UpOptions)]


def typed_after_up(line: str) -> UpOptions:
    options = parse(line_parser(), f"up {line}")
    assert options is not None
    return UpOptions(**values_of(options, UpOptions))


def settings(**options: Any) -> Settings:
    return Settings.of(UpOptions(**options), [], "auto", {})


def test_each_option_is_a_keyword_with_its_type_and_default() -> None:
    parameters, declared = inspect.signature(Cluster).parameters, inspect.signature(UpOptions).parameters
    assert list(parameters) == list(declared) == NAMES
    hints = get_type_hints(UpOptions)
    for name, parameter in parameters.items():
        assert parameter.default == declared[name].default and parameter.annotation == hints[name]
    assert [each.kind for each in parameters.values()] == [each.kind for each in declared.values()]
    assert parameters["n"].kind is inspect.Parameter.POSITIONAL_OR_KEYWORD
    assert parameters["hosts"].kind is inspect.Parameter.KEYWORD_ONLY


def test_an_unknown_keyword_names_the_nearest() -> None:
    with pytest.raises(TypeError, match=r"^Cluster\(\): unknown option 'backnd'. Did you mean 'backend'\?$"):
        Cluster(2, backnd="ring")  # type: ignore[call-arg]  # which mypy knows, too


def test_what_is_typed_has_the_values_that_a_script_gives() -> None:
    assert typed_after_up("") == UpOptions() and list(typed(UpOptions)) == NAMES
    line = (
        "--hosts a,b --ranks-per-host 2 --backend mpi --env A=1 --env B=x=y --python p --cwd d --connections 3 "
        "--mpi-arg=-x --mpi-arg C --keep --lease 90s --check strict --ordered --sync --name lab"
    )
    assert typed_after_up(line) == UpOptions(
        hosts=["a", "b"],
        ranks_per_host=2,
        backend="mpi",
        env={"A": "1", "B": "x=y"},
        python="p",
        cwd="d",
        connections=3,
        mpi_args=("-x", "C"),
        keep=True,
        lease="90s",
        check="strict",
        ordered=True,
        sync=True,
        name="lab",
    )
    assert typed_after_up("-n 3 --join f --timeout 5 --no-sync") == UpOptions(3, join="f", timeout=5.0)
    assert typed_after_up("--hostfile h") == UpOptions(hostfile="h")
    assert typed_after_up("--ipp-profile p") == UpOptions(ipp_profile="p")


def test_the_table_in_the_docs_has_each_option_with_its_words_and_its_default() -> None:
    section = DOCS.read_text(encoding="utf-8").partition("{ #distributed-up }")[2].partition("\n### ")[0]
    rows = dict(re.findall(r"^\| `(--?[a-z-]+)(.*)$", section, re.MULTILINE))
    rows = {name: row.replace("\\|", "|") for name, row in rows.items()}
    declared = {flag(name, how): (name, kind, how) for name, (kind, how) in typed(UpOptions).items()}
    assert rows.keys() == declared.keys()
    defaults = {each.name: each.default for each in fields(UpOptions)}
    for option, (name, kind, how) in declared.items():
        row, default = rows[option], defaults[name]
        if kind is bool:
            assert row.startswith("` |") or how.negatable, "a switch has no value"
        elif words := choices(kind):
            assert row.startswith(f" {'|'.join(words)}`")
        else:
            assert row.startswith(" "), "its value is shown"
        assert not how.negatable or f"`--no-{option[2:]}`" in row
        assert how.repeat is None or "repeatable" in row
        if isinstance(default, str) and not choices(kind):
            assert f"default `{default}`" in row or f"`{default}` (the default)" in row


def test_what_is_stored_is_what_is_read(tmp_path: Path) -> None:
    asked: dict[str, Any] = {
        "cwd": tmp_path,
        "env": os.environ,
        "connections": np.int64(2),
        "mpi_args": {"-x": 1}.keys(),
        "lease": "1h",
    }
    written = settings(**asked)
    stored = json.loads(json.dumps(written.stored()))
    read = Settings.read(stored)
    assert read.options == UpOptions(
        cwd=str(tmp_path), env=dict(os.environ), connections=2, mpi_args=["-x"], lease="1h"
    )
    assert read.stored() == stored and (read.lease, read.token, read.cwd) == (3600, written.token, str(tmp_path))
    with pytest.raises(TypeError):
        Settings.read({**stored, "options": {**stored["options"], "of_another_version": 1}})


@pytest.mark.parametrize(
    ("other", "alike"),
    [
        ({"name": "lab", "lease": 5, "keep": True}, True),
        ({"env": {"A": "1"}}, False),
        ({"cwd": "/"}, False),
        ({"python": "python"}, False),
        ({"connections": 2}, False),
        ({"mpi_args": ["-x"]}, False),
        ({"check": "strict"}, False),
        ({"ordered": True}, False),
        ({"sync": True}, False),
    ],
    ids=str,
)
def test_clusters_are_alike_whose_options_are_but_for_their_name_and_lease(other: dict[str, Any], alike: bool) -> None:
    assert (settings(**other).like() == settings().like()) == alike
    assert Settings.read(settings(**other).stored()).like() == settings(**other).like()
