"""Collectives of several streams take turns."""

from __future__ import annotations

from threading import Thread
from typing import Any

import mlx.core as mx
import pytest

from allranks.rank.functions.streams import StreamTurns


def test_a_stream_of_another_thread_that_cannot_be_waited_for_fails_no_collective(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As with MLX for CUDA, whose words these are (mlx 0.32.4 on an H200)."""
    made: list[mx.Stream] = []
    thread = Thread(target=lambda: made.append(mx.new_stream(mx.cpu)))
    thread.start()
    thread.join()
    asked: list[mx.Stream] = []

    def synchronize(stream: mx.Stream) -> Any:
        asked.append(stream)
        raise RuntimeError("There is no Stream(gpu, 10) in current thread.")

    monkeypatch.setattr(mx, "synchronize", synchronize)
    turns = StreamTurns(lambda: None)
    turns.take(mx, made[0], wait=True)
    turns.take(mx, None, wait=True)
    assert asked == made and turns.stream == mx.default_stream(mx.default_device())
