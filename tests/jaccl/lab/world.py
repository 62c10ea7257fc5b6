"""A cluster of JACCL in a lab of its own."""

from __future__ import annotations

import ctypes
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import pytest

from allranks import Cluster

from .build import Built
from .lab import Lab


@dataclass
class World:
    lab: Lab
    cluster: Cluster
    marks: bool = True
    """Whether the driver lets aborted collectives deliver NaN."""

    def pids(self) -> list[int | None]:
        return [rank.pid for rank in self.cluster.snapshot.ranks]


@contextmanager
def start(
    built: Built,
    backend: str,
    *,
    ranks: int = 2,
    wires: int = 1,
    fewer: frozenset[int] = frozenset(),
    up: int | None = None,
    **env: str,
) -> Iterator[World]:
    """Start `up` of so many `ranks`, all by default; `env` is for all processes, this one included."""
    lab = Lab(built, ranks, wires, fewer)
    with pytest.MonkeyPatch.context() as patch:
        for name, value in lab.env(**env).items():
            patch.setenv(name, value)
        _install(built)
        hosts = json.loads(lab.hostfile().read_text())[:up]
        cluster = Cluster(hostfile=json.dumps(hosts), backend=backend, name=f"lab{os.getpid()}")
        try:
            yield World(lab, cluster.up(), marks=env.get("LAB_RDMA_ERR") != "silent")
        finally:
            cluster.down()
            lab.close()


def _install(built: Built) -> None:
    """In this process, which says what can run here; without the lab's variables it says what it said before."""
    import mlx.core

    assert mlx.core
    assert ctypes.CDLL(str(built.glue)).jaccl_lab_install() == 0
