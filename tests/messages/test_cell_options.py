"""What can be set for a cell is declared once: the keywords, what is typed, and what a rank is sent agree with it."""

from __future__ import annotations

import inspect
from typing import Any

import msgspec
import numpy as np
import pytest

from allranks import Cluster
from allranks.cluster.option_keywords import local_options
from allranks.errors import UsageError
from allranks.lifeline import head_end
from allranks.lifeline.head_end import Lifeline
from allranks.magics.parsers import cell_parser, line_parser, parse, values_of
from allranks.messages import cell_options
from allranks.messages.cell_options import CellOptions, CellRequest
from allranks.messages.requests import RunCell
from allranks_backends.views import AT_REST
from tests.waiting import WITHIN, comes_true

FIELDS = set(CellOptions.__struct_fields__)


@pytest.mark.parametrize("method", ["run", "begin"])
def test_each_option_is_a_keyword(method: str) -> None:
    parameters = inspect.signature(getattr(Cluster, method)).parameters
    assert list(parameters)[:2] == ["self", "code"]
    assert set(parameters) >= FIELDS | {"screen", "count"}
    assert parameters["want_values"].default is True


def test_an_unknown_keyword_names_the_nearest() -> None:
    cluster: Any = Cluster(2)
    with pytest.raises(TypeError, match=r"run\(\): unknown option 'timeouts'. Did you mean 'timeout'\?"):
        cluster.run("1", timeouts=3)
    with pytest.raises(TypeError, match=r"begin\(\): unknown option 'xyzzy'. Known: ranks, timeout, "):
        cluster.begin("1", xyzzy=3)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"check": "sometimes"}, "check='sometimes': must be off, warn or strict."),
        ({"timeline": "slow"}, "timeline='slow': must be True, False or lazy."),
        ({"timeout": "soon"}, "timeout='soon': Expected `float | None`, got `str`."),
        ({"ranks": ["a"]}, r"ranks=\['a'\]: Expected `int`, got `str`."),
        ({"timeout": float("nan")}, "timeout=nan: must be above 0 seconds."),
        ({"timeout": np.float32(-1)}, "timeout=-1: must be above 0 seconds."),
        ({"max_output": -5}, "max_output=-5: must be 0 bytes or more."),
    ],
)
def test_a_value_that_cannot_be_is_refused(given: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        local_options(**given)


def test_an_endless_timeout_is_none(ring2: Cluster) -> None:
    assert local_options(timeout=float("inf")).timeout is None
    assert ring2.run("rank", timeout=float("inf")).ok


def test_numbers_of_numpy_and_ranges_are_as_good_as_others() -> None:
    options = local_options(ranks=range(2), timeout=np.float64(2.5), max_output=1e6, count=np.int64(3))
    assert (options.ranks, options.timeout, options.max_output) == ([0, 1], 2.5, 1_000_000)


def test_what_is_typed_has_the_options_own_values() -> None:
    parser = cell_parser("distributed")
    assert values_of(parser.parse_args([]), CellOptions) == {}
    line = "--timeout 2 --max-output 0.5 --check strict --ordered --timing"
    options = CellOptions(**values_of(parser.parse_args(line.split()), CellOptions))
    assert options == CellOptions(timeout=2.0, max_output=500_000, check="strict", ordered=True, timing=True)


def test_the_names_of_0_1_are_understood_and_shown_nowhere() -> None:
    cells, lines = cell_parser("distributed"), line_parser()
    assert values_of(cells.parse_args(["--profile"]), CellOptions) == {"timing": True}
    up, abort = parse(lines, "up --profile slurm"), parse(lines, "break -r 0")
    assert up is not None and up.ipp_profile == "slurm"
    assert abort is not None and (abort.verb, abort.ranks) == ("abort", [0])
    assert "--profile" not in cells.format_help() + up.parser.format_help() and " break " not in lines.format_help()


def test_what_is_sent_is_what_is_read() -> None:
    request = CellRequest(number=3, count=7, options=CellOptions(ranks=[0], timeline="lazy"), sender="me")
    assert cell_options.read(msgspec.to_builtins(request)) == request


@pytest.mark.parametrize(
    "spoil",
    [{"options": {"timing": "much"}}, {"options": {"unheard_of": 1}}, {"options": None}, {"count": "x"}, {"more": 1}],
    ids=str,
)
def test_what_a_rank_cannot_read_fails_the_cell_with_a_sentence(
    spoil: dict[str, Any], ring2: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert ring2._live.ranks is not None
    line: Lifeline = ring2._live.ranks.lifeline
    with monkeypatch.context() as patch:
        patch.setattr(head_end, "to_builtins", lambda request: {**msgspec.to_builtins(request), **spoil})
        result = ring2.run("spoilt = 1", timeout=WITHIN)
    for rank in result.values():
        assert rank.error is not None and rank.error.ename == "CellRefused"
        assert "this rank cannot read the options of the cell: " in rank.error.evalue
    assert "spoilt" not in ring2.run("dir()").check()[0].value, "and it did not run"
    assert line._thread.is_alive()


def test_what_has_no_number_is_dropped_and_the_next_cell_runs(ring2: Cluster) -> None:
    assert ring2._live.ranks is not None
    line, rank = ring2._live.ranks.lifeline, ring2._live.ranks.monitor.ranks[0]
    spoilt: tuple[Any, ...] = (7, "cell", [], {}, {"number": "x"}, {"number": 1e300, "sender": 3})
    for junk in spoilt:
        line.tell(rank.uuid, RunCell("junk = 1", junk))
    assert comes_true(ring2, lambda now: now.ranks[0].state in AT_REST, WITHIN)
    assert "junk" not in ring2.run("dir()", timeout=WITHIN).check()[0].value
