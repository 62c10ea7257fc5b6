"""What the placeholders must be safe for while arrays that are left pending are computed."""

from __future__ import annotations

import os
import sys
import weakref

import mlx.core as mx
import pytest

from allranks.rank.collectives import poison
from allranks.rank.world.left_pending import LeftBehind, asked


def test_floats_get_nan_unless_indices_are_computed_on_the_way() -> None:
    table, index = mx.ones(9), mx.array([1]) + 1
    plain, taken = mx.ones(3) + 1, table[index]
    for array, pattern in ((plain, poison.NAN), (taken, poison.ZEROS), (index, poison.ZEROS)):
        assert poison.pattern(asked([weakref.ref(array)])) == pattern
    assert poison.pattern(asked([])) == poison.ZEROS


@pytest.mark.skipif(sys.platform != "linux", reason="looks at /proc")
def test_numbers_of_descriptors_are_taken_and_given_back() -> None:
    behind, array = LeftBehind(), mx.ones(3) + 1
    number = os.dup(0)
    os.close(number)
    behind.keep(object(), [number], [weakref.ref(array)])
    assert os.readlink(f"/proc/self/fd/{number}") == os.devnull
    mx.eval(array)
    behind.keep(object(), [], [])
    assert not os.path.exists(f"/proc/self/fd/{number}")
