"""Random states and the environment: carried over a restart, and copied with the variables of another rank."""

from __future__ import annotations

import pytest

from allranks import Cluster
from tests.faults.kept import WITHIN

CHANGED = """
import os, random
import numpy as np
mx.random.seed(1000 + rank), random.seed(2000 + rank), np.random.seed(3000 + rank)
mx.random.uniform(shape=(3,)).tolist(), random.random(), np.random.rand()
os.environ["ASKED_FOR"] = f"by {rank}"
os.environ.pop("LEFT_OUT", None)
"""
NEXT = """
import copy, os, random
import numpy as np
before = random.getstate(), np.random.get_state(), [key.tolist() for key in mx.random.state]
seen = (
    mx.random.uniform(shape=(2,)).tolist(), random.random(), float(np.random.rand()),
    os.environ.get("ASKED_FOR"), os.environ.get("LEFT_OUT"),
)
mx.random.seed(before[2][0][0] << 32 | before[2][0][1]), random.setstate(before[0]), np.random.set_state(before[1])
del before
"""


def seen(cluster: Cluster) -> list[object]:
    """What each rank would draw next, and its environment; nothing is drawn."""
    cluster.run(NEXT, timeout=WITHIN).check()
    return [rank.value for rank in cluster.run("seen", timeout=WITHIN).check().values()]


def test_copied_from_another_rank() -> None:
    with Cluster(2, backend="ring", name="copied", env={"LEFT_OUT": "yes"}) as cluster:
        cluster.run(CHANGED).check()
        before = seen(cluster)
        assert before[0] != before[1]
        cluster.heal(kill=[1], source=0)
        assert seen(cluster) == [before[0], before[0]]
        cluster.resize(3, source=0)
        assert seen(cluster) == [before[0]] * 3


@pytest.mark.mpi
@pytest.mark.slow
def test_carried_over_a_restart(need_mpi: None) -> None:
    with Cluster(2, backend="ring", name="carried", env={"LEFT_OUT": "yes"}) as cluster:
        cluster.run(CHANGED).check()
        before = seen(cluster)
        cluster.rewire("mpi")
        assert seen(cluster) == before
