"""What a rank's process says of itself."""

from __future__ import annotations

import sys
import types

import pytest

from allranks.rank.meters import Meters


def test_memory_is_known_before_and_after_mlx_is_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "mlx.core", raising=False)
    before = Meters().memory()
    assert before["rss"] and before["rss"] > 1_000_000
    assert before["mlx_active"] is None and before["mlx_peak"] is None
    monkeypatch.undo()
    mx = pytest.importorskip("mlx.core")
    array = mx.ones(1_000_000)
    mx.eval(array)
    after = Meters().memory()
    assert after["mlx_active"] and after["mlx_active"] >= 4_000_000
    assert after["mlx_peak"] and after["mlx_peak"] >= after["mlx_active"]


def test_a_module_that_the_main_thread_is_just_importing_has_no_figures_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mlx.core", types.ModuleType("mlx.core"))
    assert Meters().memory()["mlx_active"] is None
