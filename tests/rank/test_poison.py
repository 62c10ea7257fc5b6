"""The bytes that an aborted ring delivers, and what ranks enter in another's place."""

from __future__ import annotations

import math

import mlx.core as mx
import numpy as np
import pytest

from allranks.rank.collectives import poison

FLOATS = tuple(poison.FORMATS)


def read(pattern: bytes, dtype: str) -> list[complex]:
    """The numbers that these bytes are."""
    raw = np.frombuffer(pattern * 4, "uint8")
    with mx.stream(mx.cpu):
        values = mx.array(raw).view(getattr(mx, dtype))
        return np.array(values.astype(mx.float32) if dtype == "bfloat16" else values).tolist()  # type: ignore[no-any-return]


@pytest.mark.parametrize("dtype", FLOATS)
def test_a_sum_is_nan_wherever_its_elements_begin(dtype: str) -> None:
    pattern = poison.pattern([("all_sum", dtype)])
    assert all(np.isnan(number) for number in read(pattern, dtype)) and len(set(pattern)) == 1


@pytest.mark.parametrize("dtype", FLOATS)
def test_what_is_compared_is_infinite(dtype: str) -> None:
    assert {complex(n).real for n in read(poison.pattern([("all_max", dtype)]), dtype)} == {math.inf}
    assert {complex(n).real for n in read(poison.pattern([("all_min", dtype)]), dtype)} == {-math.inf}


def test_floats_of_all_kinds_are_nan_together() -> None:
    assert poison.pattern([("all_sum", dtype) for dtype in FLOATS] + [("all_max", "float32")]) == poison.NAN
    assert not poison.is_marked("all_max", "float32", poison.NAN), "the rank's own numbers are left in its share"
    assert poison.is_marked("all_sum", "float32", poison.NAN)


@pytest.mark.parametrize("dtype", ["int32", "uint8", "bool", "None"])
def test_one_integer_makes_zeros_of_all(dtype: str) -> None:
    pattern = poison.pattern([("all_sum", "float32"), ("all_gather", dtype)])
    assert pattern == poison.ZEROS
    assert not poison.is_marked("all_sum", "float32", pattern) and not poison.is_marked("all_gather", dtype, pattern)


def test_what_is_sent_does_not_count() -> None:
    assert poison.pattern([("send", "int32"), ("recv", "float16")]) == poison.NAN
    assert poison.is_marked("send", "int32", poison.NAN)


def test_nothing_known_is_the_safe_choice() -> None:
    assert poison.pattern([]) == poison.ZEROS


@pytest.mark.parametrize("dtype", [*FLOATS, "int8", "uint64", "bool"])
def test_what_is_entered_has_its_dtype(dtype: str) -> None:
    with mx.stream(mx.cpu):
        entered = poison.array(mx, "all_sum", (2,), dtype)
        assert entered.dtype == getattr(mx, "bool_" if dtype == "bool" else dtype)
        numbers = np.array(entered.astype(mx.float32) if dtype == "bfloat16" else entered)
    assert np.isnan(numbers).all() if dtype in FLOATS else not numbers.any()
    assert poison.is_marked("all_max", dtype, None) == (dtype in FLOATS)
