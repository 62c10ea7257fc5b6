"""The prompt of the debugger: taken back when nobody waits for the answer any more."""

from __future__ import annotations

import signal
import threading

import pytest

from allranks.head.state.monitor import Monitor
from allranks.notebook.keyboard import ask


def typing(_prompt: str) -> str:
    """Somebody who never comes to an end."""
    threading.Event().wait()
    raise AssertionError


@pytest.mark.parametrize("deadline", [None, 0.0], ids=["the rank has moved on", "the time is over"])
def test_a_question_that_is_over_when_it_is_asked_stops_nothing(deadline: float | None) -> None:
    before = signal.getsignal(signal.SIGINT)
    for _ in range(50):
        assert ask(typing, "", Monitor("x"), lambda: deadline is None, deadline) is None
    assert signal.getsignal(signal.SIGINT) is before


def test_what_is_typed_comes_back() -> None:
    assert ask(lambda prompt: prompt + "n", "(Pdb) ", Monitor("x"), lambda: False, None) == "(Pdb) n"
