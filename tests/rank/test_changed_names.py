"""What is noted of the user's names as a cell begins."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import mlx.optimizers as optim
import pytest
from mlx.nn.layers.base import Module

from allranks.rank.arrays.invalid_arrays import arrays_in, may_hold
from allranks.rank.cell import changed_names
from allranks.rank.cell.changed_names import CellNames
from allranks.rank.collectives.ledger import Ledger
from allranks.rank.metrics.log import LogFunction
from allranks.rank.world.given_names import GivenNames


def names_of(user_ns: dict[str, Any]) -> CellNames:
    ledger = Ledger()
    log: LogFunction = lambda **_values: None  # noqa: E731
    return CellNames(user_ns, GivenNames(user_ns, ledger, log, lambda: None, lambda: None), ledger)


def test_names_of_earlier_cells_are_looked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    looked_at, is_numbered = list[str](), changed_names._is_numbered

    def noted(name: str) -> bool:
        looked_at.append(name)
        return is_numbered(name)

    monkeypatch.setattr(changed_names, "_is_numbered", noted)
    user_ns: dict[str, Any] = {"x": 1, "_i7": "x = 1", "_7": 1}
    names = names_of(user_ns)
    names.begin()
    assert sorted(looked_at) == ["_7", "_i7", "log", "x"]
    looked_at.clear()
    user_ns["_i8"] = "y = 2"
    user_ns["y"] = 2
    names.begin()
    assert sorted(looked_at) == ["_i8", "y"]


def test_values_with_arrays_are_searched_for_them() -> None:
    model = Module()
    model.weight = mx.ones(2)
    optimizer = optim.Adam(learning_rate=0.1)
    optimizer.init(model.parameters())
    for value in (mx.ones(2), [mx.ones(2)], (mx.ones(2),), {"a": [mx.ones(2)]}, model, optimizer):
        assert may_hold(value) and list(arrays_in(value)), value
    others: tuple[object, ...] = (1, "a", mx, len, names_of)
    assert not any(may_hold(other) or list(arrays_in(other)) for other in others)


def test_a_name_is_bound_as_before_until_it_is_rebound() -> None:
    first, second = mx.ones(2), mx.ones(2)
    user_ns: dict[str, Any] = {"a": first, "held": [second], "f": len, "_i7": "a", "_x": 3}
    names = names_of(user_ns)
    names.begin()
    assert all(names.was_bound(name) for name in user_ns)
    user_ns["a"] = second
    del user_ns["_x"]
    assert not names.was_bound("a") and not names.was_bound("_x") and names.was_bound("held")
    names.begin()
    assert names.was_bound("a") and not names.was_bound("_x")
    user_ns["_x"] = 3
    assert not names.was_bound("_x")
    names.begin()
    assert names.was_bound("_x")


def test_arrays_are_noted_in_containers_too_but_not_the_text_of_the_cells() -> None:
    alone, held, in_history = mx.ones(2), mx.ones(2), mx.ones(2)
    history: list[Any] = ["", "a = 1", in_history]
    names = names_of({"a": alone, "held": {"x": [held]}, "In": history, "_ih": history})
    names.begin()
    assert {id(alone), id(held)} == names._arrays.keys()


def test_an_array_made_by_the_cell_and_changed_in_place_counts_as_made_by_it() -> None:
    """Before a collective that is then aborted, as in ``total = mx.zeros(1)`` and ``total += all_sum(...)``."""
    before = mx.ones(1) + 1
    user_ns: dict[str, Any] = {"before": before}
    names = names_of(user_ns)
    names.begin()
    made = user_ns["total"] = user_ns["held"] = mx.zeros(1)
    made += mx.ones(1)
    made[0] = before[0]
    assert made is user_ns["total"] and [id(each) for each in names._made_and_left(user_ns)] == [id(made)] * 2
