"""What ranks hold before a fault, so that it can be held against what they hold after it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from allranks import Cluster

WITHIN = 60.0
"""Seconds for what takes milliseconds on a machine that is not busy."""

KEEP = """
import hashlib
import numpy as np
mx.random.seed(100 + rank)
kept = {
    str(dtype): (mx.random.uniform(shape=(61, 7)) * 90).astype(dtype)
    for dtype in (mx.float32, mx.float16, mx.bfloat16, mx.int32, mx.uint8, mx.bool_)
}
kept_plain = {"losses": [rank / 7], "name": "rank " + str(rank), "world": world}
def kept_bytes(x):
    return np.array(x.astype(mx.float32) if x.dtype == mx.bfloat16 else x).tobytes()
def kept_look():
    digest = hashlib.sha256(repr((kept_plain["losses"], kept_plain["name"])).encode())
    for name in sorted(kept):
        digest.update(kept_bytes(kept[name]))
    return digest.hexdigest(), [id(kept), id(kept_plain), *(id(kept[name]) for name in sorted(kept))]
mx.eval(kept)
"""

TRAINING = """
import mlx.nn as nn, mlx.optimizers as optim
mx.random.seed(3)
model, opt = nn.Linear(8, 8), optim.Adam(1e-2)
def step(n):
    loss, grads = nn.value_and_grad(model, lambda m: m(mx.ones((4, 8)) * n).square().mean())(model)
    opt.update(model, nn.average_gradients(grads))
    mx.eval(model.parameters(), opt.state)
step(1)
"""
"""Defines `step` of a training with an all_sum of the gradients, and takes the first."""

SUM = "mx.distributed.all_sum(mx.arange(6) * (rank + 1)).tolist()"


@dataclass(frozen=True)
class Detached:
    """A checksum of a rank's values, and which objects they are."""

    digest: str
    ids: tuple[int, ...]


def keep(cluster: Cluster, ranks: Sequence[int] | None = None) -> dict[int, Detached]:
    """Give the ranks variables of their own, and say which."""
    cluster.run(KEEP, ranks=ranks, timeout=WITHIN).check()
    return look(cluster, ranks)


def look(cluster: Cluster, ranks: Sequence[int] | None = None) -> dict[int, Detached]:
    """What the ranks hold now."""
    result = cluster.run("kept_look()", ranks=ranks, timeout=WITHIN).check()
    return {rank: Detached(each.value[0], tuple(each.value[1])) for rank, each in result.items()}


def sums_are_right(cluster: Cluster) -> bool:
    """Whether a collective gives on every rank what it must."""
    total = cluster.size * (cluster.size + 1) // 2
    result = cluster.run(SUM, timeout=WITHIN).check()
    return all(each.value == [i * total for i in range(6)] for each in result.values())
