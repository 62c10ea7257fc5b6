"""Ranks that enter missed collectives in others' place: who waits for them is told when they are through."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from typing import Any

import pytest

from allranks.head.cell.enter_for_missing import Release
from allranks.head.state.known_rank import Rank
from allranks.head.state.monitor import Monitor
from allranks.lifeline.open_questions import Reply
from allranks.messages.requests import Entered, Settle

WITHIN = 60.0


class Asked:
    """In a lifeline's place: the question is answered when the test says so."""

    def __init__(self) -> None:
        self.answer: Future[Any] = Future()

    def ask(self, *_: object) -> Future[Any]:
        return self.answer


@pytest.mark.parametrize(("answered", "seq"), [(True, 5), (False, 3)])
def test_whoever_waits_for_a_replay_is_told_of_its_end(answered: bool, seq: int) -> None:
    monitor, lifeline, looked = Monitor("main"), Asked(), threading.Event()
    rank = Rank(0, "localhost", "some", entered=3)
    monitor.put(rank)
    Release(1, monitor, lifeline)._have(rank, Settle())  # type: ignore[arg-type]
    assert monitor.busy([0]) == [rank]

    def through() -> bool:
        at_it = rank.replaying
        looked.set()
        return not at_it

    waiter = threading.Thread(target=monitor.wait, args=(through, WITHIN))
    waiter.start()
    assert looked.wait(WITHIN)
    if answered:
        lifeline.answer.set_result(Reply(Entered(5)))
    else:
        lifeline.answer.set_exception(ConnectionError("its connection is lost"))
    waiter.join(WITHIN / 2)
    assert not waiter.is_alive()
    assert not monitor.busy([0]) and rank.entered == seq
