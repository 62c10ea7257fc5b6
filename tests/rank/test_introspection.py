"""Completion and inspection: useful, and never evaluating what they look at."""

from __future__ import annotations

import types
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from allranks.rank.debug import introspection

nn: Any = pytest.importorskip("mlx.nn")  # it has no types of its own


class Trap:
    """Every way of being looked at that would run the user's code is a failure."""

    plain = "seen"

    def __init__(self) -> None:
        self.inner = mx.ones(3)

    @property
    def computed(self) -> Any:
        raise AssertionError("a property was evaluated")

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"__getattr__({name!r}) was called")

    def __dir__(self) -> Any:
        raise AssertionError("__dir__ was called")

    def __repr__(self) -> str:
        raise AssertionError("__repr__ was called")

    def __len__(self) -> int:
        raise AssertionError("__len__ was called")

    def method(self, x: int = 1) -> int:
        """Does things."""
        return x


class Net(nn.Module):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.first_layer = nn.Linear(2, 2)
        self.second_layer = nn.Linear(2, 2)


@pytest.fixture
def shell() -> Any:
    user_ns = {
        "learning_rate": 0.1,
        "learned": [1, 2],
        "_hidden": 1,
        "mx": mx,
        "trap": Trap(),
        "net": Net(),
        "array": mx.ones((2, 3), mx.bfloat16),
        "data": np.ones((4, 5), "int8"),
        "table": {"a": 1},
        "größe": 3,
    }
    magics = {"line": {"time": None, "timeit": None}, "cell": {"capture": None}}
    return types.SimpleNamespace(user_ns=user_ns, magics_manager=types.SimpleNamespace(magics=magics))


def names(shell: Any, code: str) -> list[str]:
    return list(introspection.complete(shell, code, len(code)).names)


def test_names_of_the_namespace_builtins_and_keywords(shell: Any) -> None:
    assert names(shell, "lear") == ["learned", "learning_rate"]
    assert "print" in names(shell, "x = pri")
    assert "while" in names(shell, "whi")
    assert names(shell, "grö") == ["größe"]


def test_only_the_part_to_be_replaced_is_named(shell: Any) -> None:
    found = introspection.complete(shell, "y = mx.distributed.all_s", 24)
    assert (found.start, found.end, found.names) == (19, 24, ["all_sum"])


def test_the_cursor_may_stand_inside_the_cell(shell: Any) -> None:
    assert introspection.complete(shell, "lear + 1\nmore", 4).names == ["learned", "learning_rate"]


def test_attributes_of_modules_classes_instances_and_models(shell: Any) -> None:
    assert "distributed" in names(shell, "mx.dis")
    assert names(shell, "trap.comp") == ["computed"]
    assert names(shell, "trap.inn") == ["inner"]
    assert names(shell, "trap.inner.sha") == ["shape"]
    assert names(shell, "net.first") == ["first_layer"]
    assert names(shell, "net.first_layer.wei") == ["weight"]
    assert "astype" in names(shell, "array.as")
    assert "reshape" in names(shell, "data.res")


def test_hidden_names_are_shown_when_asked_for(shell: Any) -> None:
    assert "_hidden" in names(shell, "_hid")
    assert not any(name.startswith("_") for name in names(shell, "trap."))
    assert "__init__" in names(shell, "trap.__in")


def test_magics_after_a_percent_sign(shell: Any) -> None:
    assert names(shell, "%ti") == ["time", "timeit"]
    assert names(shell, "%%cap") == ["capture"]


def test_what_is_unknown_or_a_number_has_no_completions(shell: Any) -> None:
    assert names(shell, "nothing_like_it.x") == []
    assert names(shell, "trap.computed.x") == []
    assert names(shell, "zzz_no_such_name") == []


def inspected(shell: Any, name: str, detail: int = 0) -> str:
    found = introspection.inspect(shell.user_ns, name, detail)
    assert found is not None
    return found["text/plain"]


def test_an_array_is_described_by_shape_and_dtype(shell: Any) -> None:
    assert inspected(shell, "array").startswith("Type:      array\nShape:     (2, 3)\nDtype:     bfloat16")
    assert "Shape:     (4, 5)\nDtype:     int8" in inspected(shell, "data")
    assert "Shape:     (2, 2)" in inspected(shell, "net.first_layer.weight")


def test_a_function_is_described_by_signature_and_docstring(shell: Any) -> None:
    said = inspected(shell, "trap.method")
    assert "Signature: method(self, x: " in said and "Does things." in said
    assert "return x" in inspected(shell, "trap.method", detail=1)


def test_a_default_that_only_printing_could_tell_is_not_printed(shell: Any) -> None:
    def loss(x: int, scale: float = 0.5, like: object = shell.user_ns["trap"], *, name: str = "a") -> None: ...

    shell.user_ns["loss"] = loss
    assert "Signature: loss(x: 'int', scale: 'float' = 0.5, like: 'object' = ..., *, name: 'str' = 'a')" in inspected(
        shell, "loss"
    )


def test_plain_values_and_containers(shell: Any) -> None:
    assert "Value:     0.1" in inspected(shell, "learning_rate")
    assert "Length:    1" in inspected(shell, "table")
    assert "Type:      Trap" in inspected(shell, "trap")


def test_a_plain_value_of_a_class_of_the_users_own_is_not_printed(shell: Any) -> None:
    class Count(int):
        def __repr__(self) -> str:
            raise AssertionError("the user's own code was called")

    shell.user_ns["count"] = Count(3)
    assert "Type:      Count" in inspected(shell, "count")
    assert "Value" not in inspected(shell, "count")


def test_what_only_evaluation_could_tell_is_not_told(shell: Any) -> None:
    assert introspection.inspect(shell.user_ns, "trap.computed", 0) is None
    assert introspection.inspect(shell.user_ns, "nothing_like_it", 0) is None
