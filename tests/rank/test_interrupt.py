"""What SIGINT does in a rank, by where its main thread is and what the agent's thread has asked for."""

from __future__ import annotations

import signal

import pytest

from allranks.rank.collectives.aborted import Aborted, CollectiveAborted
from allranks.rank.main_thread.interrupt import MainThreadInterrupt


@pytest.fixture
def interrupt() -> MainThreadInterrupt:
    interrupt = MainThreadInterrupt(Aborted())
    interrupt.begin_cell(3)
    return interrupt


def test_in_the_users_code_it_raises(interrupt: MainThreadInterrupt) -> None:
    with pytest.raises(KeyboardInterrupt), interrupt.allowed():
        interrupt.on_signal(running=True)
    interrupt.on_signal(running=False)  # the code is over: nothing raises in the engine


def test_between_the_cells_beginning_and_its_code_it_waits_for_the_code(interrupt: MainThreadInterrupt) -> None:
    interrupt.on_signal(running=True)
    entered = False
    with pytest.raises(KeyboardInterrupt), interrupt.allowed():
        entered = True
    assert not entered
    with interrupt.allowed():  # it was raised once
        pass


def test_a_cell_can_be_stopped_before_it_begins(interrupt: MainThreadInterrupt) -> None:
    interrupt.stop(4)
    with interrupt.allowed():
        pass
    interrupt.begin_cell(4)
    with pytest.raises(KeyboardInterrupt), interrupt.allowed():
        pass


def test_with_an_aborted_collective_it_raises_that_once(interrupt: MainThreadInterrupt) -> None:
    interrupt.unblocked = True
    interrupt._aborted.owed = "not entered by all ranks"
    with pytest.raises(CollectiveAborted), interrupt.allowed():
        interrupt.on_signal(running=True)
    assert interrupt._aborted.owed is None
    with pytest.raises(KeyboardInterrupt), interrupt.allowed():
        interrupt.on_signal(running=True)


def test_what_mx_eval_has_raised_already_is_not_raised_again(interrupt: MainThreadInterrupt) -> None:
    interrupt.unblocked = True
    with interrupt.allowed():
        interrupt.on_signal(running=True)


def test_a_new_cell_knows_nothing_of_the_last_ones_collective(interrupt: MainThreadInterrupt) -> None:
    interrupt.unblocked = True
    interrupt.begin_cell(4)
    with pytest.raises(KeyboardInterrupt), interrupt.allowed():
        interrupt.on_signal(running=True)


def test_each_cell_begins_with_the_ranks_own_handler(interrupt: MainThreadInterrupt) -> None:
    came: list[int] = []
    before = signal.getsignal(signal.SIGINT)
    try:
        interrupt.listen(lambda number, _: came.append(number))
        for code in (
            lambda: signal.signal(signal.SIGINT, signal.SIG_IGN),
            lambda: signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT]),
        ):
            code()
            signal.raise_signal(signal.SIGINT)
            came.clear()
            interrupt.begin_cell(4)
            came.clear()  # what was blocked comes now
            signal.raise_signal(signal.SIGINT)
            assert came == [signal.SIGINT]
    finally:
        signal.signal(signal.SIGINT, before)
