"""Counting the ledger: each call once, with its bytes."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import pytest

from allranks.messages.events import OpTotals
from allranks.rank.collectives import ledger as ledgers
from allranks.rank.collectives.ledger import Ledger
from allranks.rank.collectives.record import NOWHERE, Kind
from allranks.rank.metrics.traffic import UNRECORDED, Traffic


def ask(ledger: Ledger, op: str, shape: Any, dtype: Any, times: int = 1) -> None:
    for _ in range(times):
        ledger.note(Kind(op, shape, dtype, NOWHERE))


def test_calls_and_bytes_by_operation() -> None:
    ledger = Ledger()
    traffic = Traffic(ledger)
    ask(ledger, "all_sum", (256,), mx.float32, 3)
    ask(ledger, "all_sum", (2, 8), mx.bfloat16)
    ask(ledger, "send", (), mx.float32)
    traffic.count()
    traffic.count()  # nothing twice
    ask(ledger, "all_gather", (4,), mx.int8, 2)
    effective, ops = traffic.read()
    assert sorted(ops, key=lambda each: each.op) == [
        OpTotals("all_gather", 2, 8, 4, 4),
        OpTotals("all_sum", 4, 3 * 1024 + 32, 32, 1024),
        OpTotals("send", 1, 4, 4, 4),
    ]
    assert effective > 0
    assert traffic.read()[0] == 0


def test_a_new_world_counts_on() -> None:
    ledger = Ledger()
    traffic = Traffic(ledger)
    ask(ledger, "all_sum", (1,), mx.float32)
    traffic.count()
    ledger.enter_world(500, 2)
    ask(ledger, "all_sum", (1,), mx.float32)
    assert traffic.read()[1] == (OpTotals("all_sum", 2, 8, 4, 4),)


def test_what_the_ledger_dropped_is_counted_and_its_bytes_are_not_made_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledgers, "KEEP", 10)
    ledger = Ledger()
    traffic = Traffic(ledger)
    ask(ledger, "all_sum", (1,), mx.float32, 25)
    assert traffic.read()[1] == (OpTotals(UNRECORDED, 15, 0, 0, 0), OpTotals("all_sum", 10, 40, 4, 4))
