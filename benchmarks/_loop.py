"""The timed loop of `allreduce`, and a rank that runs it on request: `python _loop.py ADDRESS`.

A rank started directly, by mpirun or by ``mlx.launch`` connects to ADDRESS (a socket of the benchmark's), waits there
asleep for requests, and answers each with its rate. Imports nothing of allranks.
"""

import sys
import time
from multiprocessing.connection import Client

import mlx.core as mx


def rate(nbytes, calls):
    """Calls a second of ``all_sum`` on ``nbytes`` bytes, each evaluated before the next is made."""
    x = mx.ones(nbytes // 4)
    mx.eval(x)
    for _ in range(3):  # all ranks are here, and warm
        mx.eval(mx.distributed.all_sum(x))
    before = time.perf_counter()
    for _ in range(calls):
        mx.eval(mx.distributed.all_sum(x))
    return calls / (time.perf_counter() - before)


def serve(address, backend):
    """Join the world that the environment describes, and handle requests until one is None."""
    world = mx.distributed.init(strict=True, backend=backend)
    with Client(address) as connection:
        connection.send(world.rank())
        while (order := connection.recv()) is not None:
            connection.send(rate(*order))


if __name__ == "__main__":
    serve(*sys.argv[1:])
