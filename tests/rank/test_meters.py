"""What a rank's process says of itself."""

from __future__ import annotations

import ctypes
import hashlib
import os
import signal
import sys
import threading
import time
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from allranks.rank.metrics.meters import Meters
from tests.waiting import WITHIN


def test_memory_is_known_before_and_after_mlx_is_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "mlx.core", raising=False)
    before = Meters().memory()
    assert before.rss and before.rss > 1_000_000
    assert before.mlx_active is None and before.mlx_peak is None
    monkeypatch.undo()
    mx = pytest.importorskip("mlx.core")
    array = mx.ones(1_000_000)
    mx.eval(array)
    after = Meters().memory()
    assert after.mlx_active and after.mlx_active >= 4_000_000
    assert after.mlx_peak and after.mlx_peak >= after.mlx_active


def test_a_module_that_the_main_thread_is_just_importing_has_no_figures_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mlx.core", types.ModuleType("mlx.core"))
    assert Meters().memory().mlx_active is None


class Over(Exception):
    """Ends what the main thread does."""


def _sleep() -> None:
    time.sleep(600)


def _lock() -> None:
    threading.Event().wait()


def _read() -> None:
    ends = os.pipe()
    try:
        os.read(ends[0], 1)
    finally:
        for each in ends:
            os.close(each)


def _poll() -> None:
    ctypes.CDLL(None).poll(None, 0, -1)


def _nap() -> None:
    ctypes.CDLL(None).usleep(600_000_000)


def _spin() -> None:
    while True:
        hashlib.pbkdf2_hmac("sha256", b"", b"", 700_000)  # without the GIL


def _main_thread() -> tuple[str, str]:
    """Whether the main thread runs (R) or sleeps (S), and how often it has given up the processor so far."""
    task = Path(f"/proc/self/task/{os.getpid()}")
    state = (task / "stat").read_text().rpartition(")")[2].split()[0]
    (switches,) = (line for line in (task / "status").read_text().splitlines() if line.startswith("voluntary"))
    return state, switches


@contextmanager
def _ended_by_a_signal() -> Iterator[int]:
    """Yields the signal that raises Over in the main thread, which must not end before it comes."""

    def end(_number: int, _frame: object) -> None:
        raise Over

    before = signal.signal(signal.SIGUSR1, end)
    try:
        with pytest.raises(Over):
            yield signal.SIGUSR1
    finally:
        signal.signal(signal.SIGUSR1, before)


LOOKS = 30
"""In a row, while the main thread stays where it is: one that only waits for the GIL wakes every 5 ms."""


@pytest.mark.skipif(sys.platform != "linux", reason="Linux alone names a thread's system call")
@pytest.mark.parametrize(
    ("does", "cpu", "cuda"),
    [
        (_lock, True, True),
        (_sleep, False, False),
        (_read, False, False),
        (_poll, False, None),
        (_nap, False, None),
        (_spin, False, None),
    ],
)
def test_with_cuda_a_rank_may_wait_where_it_holds_no_lock(
    does: Callable[[], None], cpu: bool, cuda: bool | None
) -> None:
    """MLX waits for a GPU by polling, napping or spinning; for a CPU it does none of these."""
    on_cpu, on_cuda, seen = Meters(), Meters(), list[tuple[bool | None, bool | None]]()
    on_cuda.cuda = True

    def look(ends: int) -> None:
        until, stays = time.monotonic() + WITHIN, "R" if does is _spin else "S"
        before = _main_thread()
        while len(seen) < LOOKS and time.monotonic() < until:
            time.sleep(0.01)
            looked, now = (on_cpu.main_thread_asleep(), on_cuda.main_thread_asleep()), _main_thread()
            seen[:] = [*seen, looked] if now == before and now[0] == stays else []
            before = now
        signal.pthread_kill(threading.main_thread().ident or 0, ends)

    with _ended_by_a_signal() as ends:
        looking = threading.Thread(target=look, args=(ends,))
        looking.start()
        does()
    looking.join()
    assert seen == [(cpu, cuda)] * LOOKS
