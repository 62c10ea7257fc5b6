"""Worlds that never were, as streams of Snapshots and output: what the pictures are tried with where no cluster is.

``python -m tests.widgets.streams FOLDER`` writes them as recordings.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from allranks_backends.plan import Link
from allranks_backends.views import Collective, GpuView, HostView, LinkView, OpView, RankState, RankView, Snapshot
from allranks_widgets import Recorder

Items = list[dict[str, Any]]

CODE = (
    "for step, batch in enumerate(loader):\n    loss, grads = loss_and_grad(model, batch)\n    grads = average(grads)"
)
SOURCES = {
    2: "loss, grads = loss_and_grad(model, batch)",
    3: "grads = nn.average_gradients(grads)",
    4: "optimizer.update(model, grads)",
}


def hosts(count: int) -> tuple[HostView, ...]:
    return tuple(
        HostView(
            "localhost" if count == 1 else f"studio-{n + 1}",
            model="Mac Studio (2025)",
            chip="Apple M3 Ultra",
            cores=32,
            memory=256_000_000_000,
            memory_used=round((92 + 14 * n) * 1e9),
            load=0.31 + 0.07 * n,
        )
        for n in range(count)
    )


def ring(size: int, count: int, when: float, slow: bool = True) -> tuple[LinkView, ...]:
    links = []
    for source in range(size):
        for step in (1, -1):
            target = (source + step) % size
            here, there = source * count // size, target * count // size
            away = here != there
            wave = 0.75 + 0.2 * math.sin(when / 4 + source) + 0.04 * math.sin(when * 3 + source * 7)
            nominal = 40e9 if away else None
            top = 4.1e9 if away else 6.5e9
            weak = slow and away and {source, target} == {size // count - 1, size // count}
            rate = wave * top * (0.28 if weak else 1.0)
            link = Link(source, target, "thunderbolt" if away else "loopback", f"en{3 + here}" if away else "lo0")
            links.append(
                LinkView(
                    link,
                    nominal=nominal,
                    rate=round(rate),
                    sent=round(when * rate * 0.7 + 3e9),
                    rtt=0.00004 if away else 0.000011,
                    retransmits=3 if weak else 0,
                )
            )
    return tuple(links)


def mesh(size: int, count: int) -> tuple[LinkView, ...]:
    """A link from each rank to every other, as JACCL has them."""
    links = []
    for source in range(size):
        for target in range(size):
            away = source * count // size != target * count // size
            link = Link(source, target, "thunderbolt" if away else "loopback", f"en{2 + target}" if away else "lo0")
            if source != target:
                links.append(LinkView(link, nominal=40e9 if away else None, rate=2.1e9 + 1e8 * target, sent=10**10))
    return tuple(links)


def snapshot(size: int, count: int, when: float, name: str = "main", at: float = 0.0) -> Snapshot:
    """``size`` ranks on ``count`` hosts, ``when`` seconds after they began to train."""
    machines = hosts(count)
    dice = random.Random(int(when * 5))
    ranks = []
    for rank in range(size):
        step = int(when * 2)
        state: RankState = "waiting" if (step + rank * 3) % 4 == 0 and rank != size - 1 else "running"
        line = 3 if state == "waiting" else 2 + (step + rank) % 3
        ranks.append(
            RankView(
                rank,
                machines[rank * count // size].name,
                pid=41200 + rank,
                state=state,
                line=line,
                source=SOURCES[line],
                collective=Collective(2 * step + 17, "all_sum", (4_194_304,), "float32", 16_777_216, line=3),
                since=round(when % 2 / 4 + (6.0 if rank == 1 and size == 4 and state == "waiting" else 0), 2),
                cpu=round(0.6 + 0.4 * dice.random(), 2),
                rss=round(2.4e9 + rank * 3e7 + when * 1e5),
                mlx_active=round(11.8e9 + rank * 1e7),
                mlx_peak=round(14.2e9),
                effective=round((2.1 + 0.5 * math.sin(when / 4 + rank)) * 1e9),
                ops=(
                    OpView("all_sum", 2 * step + 17, (2 * step + 17) * 16_777_216, 4096, 16_777_216, 1.42, 0.31),
                    OpView("all_gather", 12 + step // 9, (12 + step // 9) * 65_536, 65_536, 65_536),
                ),
            )
        )
    return Snapshot(
        name,
        "ring",
        "whole",
        1,
        tuple(ranks),
        at=at + when,
        hosts=machines,
        links=ring(size, count, when),
        peak=11.2e9,
        straggler=f"rank {size - 1} was last in 41 of 60 timed calls; the others waited 127 ms for it in all, "
        "9.8 ms at the longest",
        straggler_rank=size - 1,
    )


def on_gpus(now: Snapshot, each: int = 1) -> Snapshot:
    """The same world, `each` ranks to a GPU."""
    gpus = [
        GpuView(f"GPU-{n}", "NVIDIA H100 80GB HBM3", 0.87, 80 * 10**9, round(61.2e9), 412, 64, n == 1)
        for n in range(len(now.ranks))
    ]
    ranks = [replace(one, gpu=gpus[one.rank // each], mlx_cache=round(1.2e9)) for one in now.ranks]
    return replace(now, ranks=tuple(ranks))


def hanging(size: int, count: int, late: int = 2) -> Snapshot:
    """The ranks wait for `late`, which sleeps."""
    now = snapshot(size, count, 30.25)
    waits = Collective(4, "all_sum", (1000,), "float32", 4000, line=6)
    source = "mx.eval(mx.distributed.all_sum(mx.ones(1000)))"
    ranks = [replace(one, state="waiting", line=6, source=source, since=8.2, collective=waits) for one in now.ranks]
    source = "time.sleep(60)  # reads the next file of the data set"
    ranks[late] = replace(ranks[late], state="running", line=5, source=source, since=8.9, collective=None)
    return replace(now, ranks=tuple(ranks), links=tuple(replace(view, rate=0.0) for view in now.links))


def training(size: int, cell: int = 7, when: float = 0.0) -> Items:
    """What ranks print that train: alike, apart, to both streams, with a bar."""
    every = list(range(size))
    items: Items = [{"cell": cell, "kind": "begin", "ranks": every, "code": CODE}]

    def text(ranks: list[int], said: str, stream: str = "stdout") -> None:
        items.append({"cell": cell, "kind": "text", "ranks": ranks, "stream": stream, "text": said})

    text(every, "model: 1.2 B parameters, bfloat16\nloader: 4,096 batches of 8\n")
    for step in range(6):
        text(every, f"step {step * 10:4d}  loss {3.1 / (step + 1.4):.4f}\n")
    for rank in every[:4]:
        text([rank], f"shard {rank}: 1,024 batches, first id {rank * 8192}\n")
    text(every[-1:], "UserWarning: batch 58 holds a sample of length 0\n", "stderr")
    text(every, "step   60  loss 0.3914\n")
    items.append({"cell": cell, "kind": "live", "lines": {rank: bar(40 + rank, 128) for rank in every}})
    return items


def bar(done: int, of: int) -> str:
    """As tqdm draws it."""
    filled = "█" * (10 * done // of)
    times = f"00:{done // 3:02d}<00:{(of - done) // 3:02d}"
    return f"epoch 1: {100 * done // of:3d}%|{filled:10s}| {done}/{of} [{times}, 3.1it/s]"


def failing(size: int, cell: int = 8) -> Items:
    every = list(range(size))
    traceback = [
        "\x1b[31m---------------------------------------------------------------------------\x1b[39m",
        "\x1b[31mValueError\x1b[39m                                Traceback (most recent call last)",
        "Cell \x1b[32mIn[8], line 3\x1b[39m\n\x1b[32m      1\x1b[39m batch = shard[step]",
        "\x1b[32m----> 3\x1b[39m     \x1b[38;5;28;01mraise\x1b[39;00m ValueError(\x1b[33m'bad batch'\x1b[39m)",
        "\x1b[31mValueError\x1b[39m: bad batch",
    ]
    return [
        {"cell": cell, "kind": "begin", "ranks": every, "code": "loss = step(batch)"},
        {"cell": cell, "kind": "text", "ranks": every, "stream": "stdout", "text": "step 0\nstep 1\n"},
        {
            "cell": cell,
            "kind": "error",
            "ranks": [1],
            "ename": "ValueError",
            "evalue": "bad batch",
            "traceback": traceback,
        },
        {"cell": cell, "kind": "end", "ok": False, "seconds": 2.31},
    ]


def as_sent(items: Items) -> Items:
    """As JSON makes them: the ranks of unfinished lines become text."""
    plain: Items = json.loads(json.dumps(items))
    return plain


def flood(size: int, lines: int, cell: int = 9, block: int = 1000) -> Iterator[Items]:
    """Lines that differ on every rank, a thousand of each at a time."""
    yield [{"cell": cell, "kind": "begin", "ranks": list(range(size)), "code": "for i in range(n): print(rank, i)"}]
    for first in range(0, lines, block):
        yield [
            {
                "cell": cell,
                "kind": "text",
                "ranks": [rank],
                "stream": "stdout",
                "text": "".join(f"rank {rank} says line {i}\n" for i in range(first, min(lines, first + block))),
            }
            for rank in range(size)
        ]
    yield [{"cell": cell, "kind": "end", "ok": True, "seconds": 1.0}]


def record(path: Path, size: int, count: int, seconds: int, rate: float) -> None:
    """A training run on ``size`` ranks of ``count`` hosts, with its output as it comes."""
    said = training(size)
    with Recorder(path) as recorder:
        for step in range(int(seconds * rate)):
            when = step / rate
            recorder.show(snapshot(size, count, when, name=path.name.partition(".")[0], at=1_760_000_000.0))
            items = said[:1] if step == 0 else said[1:-1][(step - 1) // 2 : step // 2]
            if step % 4 == 0:
                items.append(
                    {"cell": 7, "kind": "live", "lines": {rank: bar(step + rank % 3, 400) for rank in range(size)}}
                )
            if items:
                recorder.output(items, at=1_760_000_000.0 + when)
        recorder.output(
            [{"cell": 7, "kind": "end", "ok": True, "seconds": float(seconds)}], at=1_760_000_000.0 + seconds
        )
