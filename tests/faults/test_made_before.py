"""Networks and compiled steps made before a break are used after it: same values, forward and backward."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from allranks import Cluster
from tests.faults.kept import WITHIN

pytestmark = pytest.mark.slow

MAKE = """
import os, socket
import mlx.nn as nn
import mlx.optimizers as optim
import numpy as np
from mlx.nn.layers.distributed import shard_inplace, shard_linear
from mlx.utils import tree_flatten

mx.random.seed(11)
first, second, third = nn.Linear(8, 4 * size), nn.Linear(4 * size, 8), nn.Linear(8, 4 * size)
shard_inplace(third, "all-to-sharded")
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.up = shard_linear(first, "all-to-sharded", group=world)
        self.down = shard_linear(second, "sharded-to-all")          # with the default group
        self.parts = [{"again": shard_linear(nn.Linear(8, 4 * size), "all-to-sharded", group=mx.distributed.init())}]
        self.last = third
    def __call__(self, x):
        y = self.down(nn.relu(self.up(x)))
        return y + mx.distributed.all_sum(self.parts[0]["again"](y).sum() + self.last(y).sum())
net = Net()
x = mx.arange(16).reshape(2, 8) / 16 + rank
mx.eval(net.parameters(), x)

def loss(net, x):
    return net(x).square().mean()

def train(x):
    value, grads = nn.value_and_grad(net, loss)(net, x)
    return value, nn.average_gradients(grads)

def train_in(x, group):
    value, grads = nn.value_and_grad(net, loss)(net, x)
    return value, nn.average_gradients(grads, group=group)

step = mx.compile(train, inputs=[net], outputs=[net])
held = world
@mx.compile
def scale(x, times=3):
    return mx.distributed.all_sum(x, group=held) * times
shapeless = mx.compile(lambda x: x * 2 + rank, shapeless=True)

def values():
    out = []
    for value, grads in (train(x), step(x), train_in(x, held)):
        out += [value, *(grad for _, grad in sorted(tree_flatten(grads)))]
    out += [net(x), scale(x), shapeless(x), shapeless(x[0])]
    mx.eval(out)
    return b"".join(np.array(each).tobytes() for each in out)

def ring_ports():
    ports = set()
    for name in os.listdir("/proc/self/fd"):
        try:
            with socket.socket(fileno=os.dup(int(name))) as each:
                ports |= {end[1] for end in (each.getsockname(), each.getpeername())}
        except (OSError, IndexError):
            continue
    return ports
before = values()
"""


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """Two ranks that have made everything, and used it once."""
    with Cluster(2, backend="ring", name="made") as cluster:
        cluster.run(MAKE, timeout=WITHIN).check()
        yield cluster


def broken(cluster: Cluster) -> None:
    """Break the world; it is formed anew by itself."""
    generation = cluster.snapshot.generation
    result = cluster.run("if rank == 1:\n    1 / 0\nmx.eval(mx.distributed.all_sum(mx.ones(4)))", timeout=WITHIN)
    assert list(result.errors) == [1]
    assert (cluster.state, cluster.snapshot.generation) == ("whole", generation + 1)


def ports(cluster: Cluster) -> set[int]:
    """Of the rings that a plan named; those of the present world."""
    assert cluster._live.ranks is not None and cluster._live.ranks.plan is not None
    return {port for placement in cluster._live.ranks.plan.placements for port in placement.ports}


def test_a_sharded_network_and_compiled_steps_give_the_same_values(cluster: Cluster) -> None:
    for _ in range(3):
        broken(cluster)
        result = cluster.run("values() == before, values() == before", timeout=WITHIN).check()
        assert [each.value for each in result.values()] == [(True, True)] * 2


def test_they_go_on_training(cluster: Cluster) -> None:
    """Three steps before a break and three after it end where six without a break end."""
    code = """
def learn(count, model):
    optimizer = optim.SGD(1e-5)
    for _ in range(count):
        value, grads = nn.value_and_grad(model, loss)(model, x)
        optimizer.update(model, nn.average_gradients(grads))
        mx.eval(model.parameters())
start = {name: mx.array(value) for name, value in tree_flatten(net.parameters())}
mx.eval(start)
learn(6, net)
six = {name: np.array(value) for name, value in tree_flatten(net.parameters())}
net.load_weights(list(start.items()))
learn(3, net)
"""
    cluster.run(code, timeout=WITHIN).check()
    broken(cluster)
    same = "all(np.array_equal(six[name], np.array(value)) for name, value in tree_flatten(net.parameters()))"
    result = cluster.run(f"learn(3, net)\nsame = {same}\nnet.load_weights(list(start.items()))\nsame", timeout=WITHIN)
    assert [each.value for each in result.check().values()] == [True, True]


def test_the_sockets_of_the_old_world_are_closed(cluster: Cluster) -> None:
    old = ports(cluster)
    assert all(each.value & old for each in cluster.run("ring_ports()").check().values()), "they can be seen"
    broken(cluster)
    assert not old & ports(cluster)
    for each in cluster.run("ring_ports()").check().values():
        assert each.value & ports(cluster) and not each.value & old


def test_every_way_to_the_group_leads_to_the_new_one(cluster: Cluster) -> None:
    cluster.run("""
nest = [{"group": [world]}]
def closure(group):
    return lambda: group
enclosed = closure(world)
class Holder:
    shared = world
    def __init__(self):
        self.group = world
class Slotted:
    __slots__ = ("group",)
holder, slotted = Holder(), Slotted()
slotted.group = world
def default(group=world):
    return group
def named(*, group=world):
    return group
mine = mx.distributed.init()
import functools
partial = functools.partial(mx.distributed.all_sum, group=world)
""").check()
    broken(cluster)
    held_by = (
        "nest[0]['group'][0], enclosed(), holder.group, Holder.shared, slotted.group, mine, held, default(), named(), "
        "mx.distributed.init(), net.up.group, net.down.group"
    )
    code = f"[world is each for each in ({held_by})], partial(mx.array(1)).item(), world.size()"
    assert [each.value for each in cluster.run(code).check().values()] == [([True] * 12, 2, 2)] * 2
    cluster.run("del nest, enclosed, holder, Holder, slotted, default, named, mine, partial").check()
