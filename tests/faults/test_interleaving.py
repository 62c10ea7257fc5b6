"""Cells, `%px`, functions and variables from two threads at a time: each done once, in order, or refused as a whole."""

from __future__ import annotations

import os
import random
import threading
from typing import Any

import pytest

from allranks import Cluster
from allranks.errors import Busy
from tests.waiting import WITHIN, idle

pytestmark = pytest.mark.slow

SEEDS = int(os.environ.get("ALLRANKS_INTERLEAVINGS", "4"))
"""Number of random interleavings."""
STEPS = 12
"""Things that each thread does."""


class Thread:
    """Does one thing after another, and notes which were carried out, on which ranks."""

    def __init__(self, cluster: Cluster, name: str, seed: int) -> None:
        self._cluster, self.name, self._dice = cluster, name, random.Random(f"{seed} {name}")
        self.done: list[tuple[int, list[int]]] = []
        self.wrong: list[str] = []
        self._thread = threading.Thread(target=self._run)

    def start(self) -> None:
        self._thread.start()

    def join(self) -> None:
        self._thread.join(WITHIN)
        assert not self._thread.is_alive()

    def _run(self) -> None:
        try:
            for number in range(STEPS):
                self._do(number, self._dice.choice([self._cell, self._begun, self._px, self._function, self._variable]))
        except BaseException as error:
            self.wrong.append(f"{self.name}: {type(error).__name__}: {error}")

    def _do(self, number: int, act: Any) -> None:
        ranks = self._dice.choice([[0], [1], [0, 1]])
        try:
            act(number, ranks)
        except Busy:  # with what the other thread does: nothing of this may have been done
            return
        if act != self._variable:
            self.done.append((number, ranks))

    def _code(self, number: int) -> str:
        return f"seen.append(({self.name!r}, {number}))"

    def _cell(self, number: int, ranks: list[int]) -> None:
        self._cluster.run(self._code(number), ranks=ranks).check()

    def _begun(self, number: int, ranks: list[int]) -> None:
        self._cluster.begin(self._code(number), ranks=ranks).finish(WITHIN).check()

    def _px(self, number: int, ranks: list[int]) -> None:
        view = self._cluster.client[ranks]
        sent = view.execute(self._code(number), silent=True)
        if self._dice.random() < 0.5:  # else what comes next is sent behind it
            sent.get(WITHIN)

    def _function(self, number: int, ranks: list[int]) -> None:
        def note(name: str, number: int) -> int:
            from IPython import get_ipython

            get_ipython().user_ns["seen"].append((name, number))
            return number

        returned = self._cluster.options(ranks=ranks).apply(note, self.name, number)
        if returned != [number] * len(ranks):
            self.wrong.append(f"{self.name} {number}: {returned}")

    def _variable(self, number: int, ranks: list[int]) -> None:
        name = f"of_{self.name}"
        self._cluster.push({name: number}, ranks=ranks)
        if (pulled := self._cluster.pull(name, ranks=ranks)) != [number] * len(ranks):
            self.wrong.append(f"{self.name} {number}: pulled {pulled}")


def interleaved(cluster: Cluster, seed: int) -> None:
    """One round. Raises AssertionError."""
    cluster.run("seen = []").check()
    threads = [Thread(cluster, name, seed) for name in ("one", "two")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    wrong = [each for thread in threads for each in thread.wrong]
    assert not wrong, (seed, wrong)
    assert idle(cluster), (seed, cluster.status())
    seen = {rank: each.value for rank, each in cluster.run("seen").check().items()}
    for thread in threads:
        for rank in (0, 1):
            meant = [number for number, ranks in thread.done if rank in ranks]
            noted = [number for name, number in seen[rank] if name == thread.name]
            assert noted == meant, (seed, thread.name, rank, thread.done)


@pytest.mark.parametrize("seed", range(SEEDS))
def test_what_two_threads_do_at_a_time_is_done_once_and_in_order(ring2: Cluster, seed: int) -> None:
    interleaved(ring2, seed)
