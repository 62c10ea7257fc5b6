"""The worlds on which an experiment's function runs: one at a time, new for each run or reused if it fits."""

from __future__ import annotations

import time

from allranks.cluster.cluster import Cluster
from allranks.errors import AllranksError
from allranks_backends.views import AT_REST

from . import measured
from .grid import Run
from .notebook_run import NotebookOutcome


class Worlds:
    """Brings up, holds and ends the world of the current run."""

    def __init__(self, fresh: bool, measure: bool) -> None:
        self._fresh, self._measure = fresh, measure
        self.cluster: Cluster | None = None
        self._wanted: dict[str, object] = {}
        self._busbw: float | None = None

    def enter(self, run: Run) -> tuple[NotebookOutcome, float]:
        """Bring up the run's world, or reuse the current one.

        Returns the outcome, with an error if that failed, and the `time.monotonic` at which this began.
        """
        began, outcome = time.monotonic(), NotebookOutcome()
        kept = not self._fresh and self._wanted == run.world and self._usable()
        try:
            if not kept:
                self.down()
                self._wanted, self.cluster = run.world, Cluster(**run.world, name=f"experiment-{id(self)}").up()
                self._busbw = measured.busbw(self.cluster) if self._measure else None
            assert self.cluster is not None
            self.cluster.reset_measurements()
        except (AllranksError, TypeError) as error:
            self.down()
            outcome.error, outcome.cause = type(error).__name__, str(error)
        outcome.world = {"fresh": not kept, "busbw": self._busbw}
        return outcome, began

    def _usable(self) -> bool:
        if self.cluster is None or self.cluster.state != "whole":
            return False
        return all(rank.state in AT_REST for rank in self.cluster.snapshot.ranks)

    def down(self) -> None:
        cluster, self.cluster, self._busbw = self.cluster, None, None
        if cluster is not None:
            cluster.down()

    def __enter__(self) -> Worlds:
        return self

    def __exit__(self, *_: object) -> None:
        self.down()
