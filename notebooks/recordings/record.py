"""Record what `gallery.ipynb` replays: `python notebooks/recordings/record.py` (root on Linux: it makes hosts).

Real ranks both times. The hosts are network namespaces (tests/hosts), one of which has its link held at 100 Mbit/s.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parents[1]))

import allranks
from tests.hosts.lab import Hosts

TRAIN = """import time, mlx.nn as nn, mlx.optimizers as optim
from sklearn.datasets import load_digits
from tqdm import tqdm
mx.random.seed(0)
digits = load_digits()
images, labels = mx.array(digits.data[rank::size] / 16, mx.float32), mx.array(digits.target[rank::size])
model = nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 10))
optimizer = optim.SGD(learning_rate=0.2)
loss_and_grad = nn.value_and_grad(model, lambda model, x, y: nn.losses.cross_entropy(model(x), y, reduction="mean"))
print(f"my shard: {len(images)} images")
for epoch in range(6):
    for at in tqdm(range(0, len(images) - 32, 32), desc=f"epoch {epoch}", leave=False):
        loss, grads = loss_and_grad(model, images[at:at + 32], labels[at:at + 32])
        grads = nn.average_gradients(grads)
        optimizer.update(model, grads)
        mx.eval(model.parameters(), loss)
        time.sleep(0.03 * (rank == 2))
    average = mx.distributed.all_sum(loss) / size
    print(f"epoch {epoch}  loss {average.item():.4f}")
"""
TRAFFIC = """import time
x = mx.ones(250_000)
until = time.time() + 15
while not mx.distributed.all_max(mx.array(time.time() > until)).item():
    mx.eval(mx.distributed.all_sum(x))
"""


def training(path: Path) -> None:
    """Four ranks on this machine train on handwritten digits."""
    with allranks.Cluster(4, backend="ring") as cluster:
        cluster.bench(smallest=1 << 16, largest=1 << 20, seconds=0.1)
        with cluster.record(path):
            time.sleep(1)
            cluster.run(TRAIN, timing=True, timeout=300).check()
            time.sleep(1)


def cabling(path: Path) -> None:
    """Two ranks on each of three hosts add up arrays; the third host's link is slow."""
    with tempfile.TemporaryDirectory() as folder:
        hosts = Hosts(3, Path(folder), "rec")
        try:
            hosts.up()
            os.environ["PATH"] = hosts.path
            hosts.slow("host3", 100)
            with allranks.Cluster(hosts=hosts.names, ranks_per_host=2, backend="ring") as cluster, cluster.record(path):
                cluster.run(TRAFFIC, timeout=200).check()
        finally:
            hosts.down()


if __name__ == "__main__":
    training(HERE / "training.jsonl.gz")
    cabling(HERE / "cabling.jsonl.gz")
