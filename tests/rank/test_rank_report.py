"""When a rank reports its state: not at once for each short cell, but soon enough for one that takes long."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from allranks.messages.events import State
from allranks.rank.agent.rank_report import EVERY_IDLE, EVERY_RUNNING, Reporter
from allranks.rank.collectives.ledger import Ledger
from allranks.rank.main_thread.main_thread_calls import MainThread
from allranks.rank.main_thread.running_cell import RunningCell
from allranks.rank.metrics.meters import Meters
from allranks.rank.world.reserved_descriptors import Reserve


class Sent(list[State]):
    def send(self, state: State) -> None:
        self.append(state)


@pytest.fixture
def cell() -> RunningCell:
    no_tasks: Any = SimpleNamespace(all=list, pending=list)
    return RunningCell(MainThread(lambda function: function()), Ledger(), {}, no_tasks)


@pytest.fixture
def sent() -> Sent:
    return Sent()


@pytest.fixture
def reporter(cell: RunningCell, sent: Any) -> Reporter:
    debugger: Any = SimpleNamespace(at_prompt=False)
    steps: Any = SimpleNamespace(in_cell=False)
    return Reporter(cell, Ledger(), Meters(), debugger, Reserve(), steps, sent)


def test_a_cell_is_reported_once_it_has_run_for_a_while(cell: RunningCell, reporter: Reporter, sent: Sent) -> None:
    cell.run()
    begun = cell.began_at
    assert reporter.tick(begun) == pytest.approx(EVERY_RUNNING) and not sent
    assert reporter.tick(begun + EVERY_RUNNING) == pytest.approx(EVERY_RUNNING)
    assert [each.running for each in sent] == [True]
    reporter.tick(begun + 2.1 * EVERY_RUNNING)  # twice is rounded down for some times
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
