"""Worlds of JACCL in the lab."""

from __future__ import annotations

import ctypes
import importlib.util
import json
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass

import pytest

from allranks import Cluster
from tests.jaccl.lab.build import Built, build, missing
from tests.jaccl.lab.lab import Lab
from tests.needs import need

NewWorld = Callable[..., AbstractContextManager["World"]]


@dataclass
class World:
    lab: Lab
    cluster: Cluster

    def pids(self) -> list[int | None]:
        return [rank.pid for rank in self.cluster.snapshot.ranks]


@pytest.fixture(scope="session")
def built() -> Built:
    need(importlib.util.find_spec("mlx"), "mlx is not installed")
    why = missing()
    need(why is None, why or "")
    return build()


@pytest.fixture(scope="session")
def new_world(built: Built, nothing_left_behind: None) -> NewWorld:
    """Starts a cluster in a lab of its own, with `up` of its `ranks`; keywords in capitals are variables of all."""

    @contextmanager
    def start(backend: str, *, ranks: int = 2, wires: int = 1, up: int | None = None, **env: str) -> Iterator[World]:
        lab = Lab(built, ranks, wires)
        with pytest.MonkeyPatch.context() as patch:
            for name, value in lab.env(**env).items():
                patch.setenv(name, value)
            _install(built)
            hosts = json.loads(lab.hostfile().read_text())[:up]
            cluster = Cluster(hostfile=json.dumps(hosts), backend=backend, name=f"lab{os.getpid()}")
            try:
                yield World(lab, cluster.up())
            finally:
                cluster.down()
                lab.close()

    return start


def _install(built: Built) -> None:
    """In this process, which says what can run here; without the lab's variables it says what it said before."""
    import mlx.core

    assert mlx.core
    assert ctypes.CDLL(str(built.glue)).jaccl_lab_install() == 0


@pytest.fixture(scope="module")
def mesh2(new_world: NewWorld) -> Iterator[World]:
    """Two ranks, shared by the tests of a file."""
    with new_world("jaccl") as world:
        yield world
