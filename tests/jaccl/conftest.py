"""Worlds of JACCL in the lab."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial

import pytest

from tests.jaccl.lab.build import Built, build, missing
from tests.jaccl.lab.world import World, start
from tests.needs import need

NewWorld = Callable[..., AbstractContextManager[World]]


@pytest.fixture(scope="session")
def built() -> Built:
    need(importlib.util.find_spec("mlx"), "mlx is not installed")
    why = missing()
    need(why is None, why or "")
    return build()


@pytest.fixture(scope="session")
def new_world(built: Built, nothing_left_behind: None) -> NewWorld:
    """See `tests.jaccl.lab.world.start`."""
    return partial(start, built)
