"""What a rank's process says of itself."""

from __future__ import annotations

import ctypes
import hashlib
import os
import sys
import threading
import time
import types
from collections import Counter
from collections.abc import Callable

import pytest

from allranks.rank.metrics.meters import Meters


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


def _sleep() -> None:
    time.sleep(0.4)


def _lock() -> None:
    threading.Event().wait(0.4)


def _read() -> None:
    reading, writing = os.pipe()
    threading.Timer(0.4, os.write, (writing, b"x")).start()
    os.read(reading, 1)


def _poll() -> None:
    ctypes.CDLL(None).poll(None, 0, 400)


def _nap() -> None:
    ctypes.CDLL(None).usleep(400_000)


def _spin() -> None:
    hashlib.pbkdf2_hmac("sha256", b"", b"", 700_000)  # without the GIL


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
    on_cpu, on_cuda, done = Meters(), Meters(), threading.Event()
    on_cuda.cuda = True
    seen = Counter[tuple[bool | None, bool | None]]()

    def look() -> None:
        while not done.wait(0.005):
            seen[on_cpu.main_thread_asleep(), on_cuda.main_thread_asleep()] += 1

    looking = threading.Thread(target=look)
    looking.start()
    while seen.total() < 30:  # few looks say little: this process may have stood still
        does()
    done.set()
    looking.join()
    assert seen.most_common(1)[0][0] == (cpu, cuda), seen
