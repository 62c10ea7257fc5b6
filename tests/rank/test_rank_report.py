"""When a rank reports its state: not at once for each short cell, but soon enough for one that takes long."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from allranks.messages.events import State
from allranks.rank.agent.rank_report import EVERY_IDLE, EVERY_RUNNING, METER_EVERY_IDLE, Reporter
from allranks.rank.collectives.ledger import Ledger
from allranks.rank.main_thread.main_thread_calls import MainThread
from allranks.rank.main_thread.running_cell import RunningCell
from allranks.rank.metrics.hardware import Hardware
from allranks.rank.metrics.meters import Meters
from allranks.rank.world.reserved_descriptors import Reserve


class Sent(list[State]):
    def send(self, state: State) -> None:
        self.append(state)


@pytest.fixture
def ledger() -> Ledger:
    return Ledger()


@pytest.fixture
def cell(ledger: Ledger) -> RunningCell:
    no_tasks: Any = SimpleNamespace(all=list, pending=list)
    return RunningCell(MainThread(lambda function: function()), ledger, {}, no_tasks)


@pytest.fixture
def sent() -> Sent:
    return Sent()


@pytest.fixture
def reporter(cell: RunningCell, ledger: Ledger, sent: Any) -> Reporter:
    debugger: Any = SimpleNamespace(at_prompt=False)
    steps: Any = SimpleNamespace(in_cell=False)
    return Reporter(cell, ledger, Meters(), debugger, Reserve(), steps, sent)


def test_a_cell_is_reported_once_it_has_run_for_a_while(cell: RunningCell, reporter: Reporter, sent: Sent) -> None:
    cell.run()
    begun = cell.began_at
    assert reporter.tick(begun) == pytest.approx(EVERY_RUNNING) and not sent
    assert reporter.tick(begun + EVERY_RUNNING) == pytest.approx(EVERY_RUNNING)
    assert [each.running for each in sent] == [True]
    reporter.tick(begun + 2.1 * EVERY_RUNNING)  # rounding: not exactly 2
    assert [each.running for each in sent] == [True, True]


def test_short_cells_do_not_delay_the_reports_of_an_idle_rank(
    cell: RunningCell, reporter: Reporter, sent: Sent
) -> None:
    cell.run()
    reporter.tick(cell.began_at + EVERY_RUNNING)
    reported = cell.began_at + EVERY_RUNNING
    for _ in range(3):
        cell.run()
        reporter.tick(reported + 0.01)
        cell.running = False
        assert reporter.tick(reported + 0.01) == pytest.approx(EVERY_IDLE - 0.01)
    reporter.tick(reported + EVERY_IDLE)
    assert [each.running for each in sent] == [True, False]


def test_a_new_notebook_gets_a_report_at_once_of_an_idle_rank(reporter: Reporter, sent: Sent) -> None:
    reporter.tick(1000.0)
    reporter.report_soon()
    reporter.tick(1000.0)
    assert len(sent) == 2


class Readings:
    """Counts the readings of the meters of a rank that uses as much processor time as a test says."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.taken, self.used, read = 0, 0.0, Meters.read

        def counted(meters: Meters, *, seldom: bool = False) -> Any:
            self.taken += 1
            return read(meters, seldom=seldom)

        monkeypatch.setattr(Meters, "read", counted)
        monkeypatch.setattr(Meters, "used", lambda _: self.used)


@pytest.fixture
def readings(monkeypatch: pytest.MonkeyPatch) -> Readings:
    return Readings(monkeypatch)


def test_the_meters_of_a_rank_that_does_nothing_are_seldom_read(
    reporter: Reporter, sent: Sent, readings: Readings
) -> None:
    reporter.tick(1000.0 - EVERY_IDLE)  # with the rates of what it did before
    reports = int(METER_EVERY_IDLE / EVERY_IDLE)
    for number in range(reports):
        reporter.tick(1000.0 + number * EVERY_IDLE)
    assert len(sent) == 1 + reports and readings.taken == 2
    reporter.tick(1000.0 + METER_EVERY_IDLE)
    assert readings.taken == 3


def test_the_meters_are_read_twice_after_a_cell_and_after_other_work(
    cell: RunningCell, ledger: Ledger, reporter: Reporter, readings: Readings
) -> None:
    reports = iter(range(1000, 2000))

    def taken_in_reports(count: int) -> int:
        before = readings.taken
        for _ in range(count):
            reporter.tick(next(reports) * EVERY_IDLE)
        return readings.taken - before

    assert taken_in_reports(3) == 2
    cell.number += 1  # a short one: no report came while it ran
    assert taken_in_reports(3) == 2
    readings.used = 1.0
    assert taken_in_reports(3) == 3
    readings.used = 0.0
    assert taken_in_reports(3) == 2
    ledger.enter_world(0, 2)  # which has other links
    assert taken_in_reports(3) == 2
    reporter.report_soon()  # to a new notebook
    assert taken_in_reports(3) == 2


def test_pending_tasks_are_looked_for_once_in_a_tick(
    cell: RunningCell, reporter: Reporter, sent: Sent, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = list[int]()

    def left_tasks() -> bool:
        looks.append(1)
        return True

    monkeypatch.setattr(cell, "left_tasks", left_tasks)
    reporter.tick(1000.0)
    assert len(sent) == 1 and sent[0].tasks and len(looks) == 1


def test_an_idle_rank_still_reports_the_memory_of_its_host_since_another_may_fill_it(
    reporter: Reporter, sent: Sent, readings: Readings, monkeypatch: pytest.MonkeyPatch
) -> None:
    reporter._meters.tells_of_host = True
    used = 10**9
    monkeypatch.setattr(Hardware, "memory", lambda _: (8 * 10**9, used))
    found = list[int | None]()
    for number in range(5):
        used = (number + 1) * 10**9
        reporter.tick(1000.0 + number * EVERY_IDLE)
        found.append(sent[-1].machine.memory_used if sent[-1].machine is not None else None)
    assert found == [n * 10**9 for n in range(1, 6)] and readings.taken < 5
