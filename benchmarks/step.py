"""What the ledger costs a training step: an all_sum for each gradient of a transformer, the loss evaluated first.

The results are held as they are: after each `mx.eval` the ledger looks which of them are computed. Without the ledger
the cell calls MLX's own functions, on the same two ranks.
"""

from __future__ import annotations

import allranks

from ._table import Bar, Row, Table
from .overhead import MLX, ORIGINAL, OURS, RANKS

BLOCKS = (4, 16)
"""Sizes of the model: what the ledger costs must not depend on it."""
STEPS = 20
"""Steps of a sample on each side, in turn."""
MODEL = (
    f"{ORIGINAL}\n"
    + """
import time
from statistics import median
import mlx.nn as nn

class Trainer_for_benchmark:
    def __init__(self, blocks):
        self.model = nn.TransformerEncoder(blocks, 64, 4, 128)
        self.x = mx.random.normal((4, 16, 64))
        mx.eval(self.model.parameters(), self.x)
        self.step = nn.value_and_grad(self.model, lambda model, x: model(x, None).square().mean())

    def seconds(self, all_sum, evaluate):
        before = time.perf_counter()
        loss, gradients = self.step(self.model, self.x)
        gradients = nn.utils.tree_map(all_sum, gradients)
        evaluate(loss)
        evaluate(gradients)
        return time.perf_counter() - before

    def medians(self, ours, theirs, steps):
        turns = [(self.seconds(*ours), self.seconds(*theirs)) for _ in range(steps)]
        return [median(side) for side in zip(*turns)]

trainers_for_benchmark = {blocks: Trainer_for_benchmark(blocks) for blocks in BLOCKS}
"""
)


def measure(repeat: int | None, *, quick: bool = False) -> Table:
    """Rounds of steps on both sides in turn."""
    rounds, steps = repeat or (2 if quick else 15), 3 if quick else STEPS
    table = Table("step", "a training step on 2 ranks, one all_sum for each gradient, seconds; lower is better")
    for backend in ("ring", "mpi"):
        with allranks.Cluster(RANKS, backend=backend, name=f"step-{backend}") as cluster:
            cluster.run(MODEL.replace("BLOCKS", repr(BLOCKS))).check()

            for blocks in BLOCKS:
                code = f"trainers_for_benchmark[{blocks}].medians(({OURS}), ({MLX}), {{}})"
                cluster.run(code.format(2)).check()  # warm
                samples = [cluster.run(code.format(steps)).check()[0].value for _ in range(rounds)]
                ours, theirs = zip(*samples)
                bar = Bar("at most", 1.03)
                table.rows.append(Row(f"{backend}, {blocks} blocks", "s", ours, theirs, "no ledger", bar))
    return table
