"""The rank's end of the lifeline: nothing waits until its thread looks again by itself."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Sequence

import pytest
import zmq

from allranks.lifeline import rank_end
from allranks.lifeline.rank_end import RankLifeline
from allranks.messages.events import Began
from allranks.messages.requests import Exit, Request
from allranks.messages.wire import Buffer, encode
from tests.waiting import WITHIN, eventually

# The thread of a connection that was closed ends with SystemExit, which Python says nothing of.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")


class Ends:
    """Both ends; the rank's looks by itself once an hour, or `SOON` after a request."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]]) -> None:
        self.router = context.socket(zmq.ROUTER)
        public, secret = zmq.curve_keypair()
        self.router.curve_server = True
        self.router.curve_publickey, self.router.curve_secretkey = public, secret
        port = self.router.bind_to_random_port("tcp://127.0.0.1")
        self.ticks = 0
        self.received = threading.Semaphore(0)
        """Released in the lifeline's thread for each request, after `answer` and `tick_later`."""
        self.goes_on = threading.Semaphore(0)
        """What the lifeline's thread waits for before it goes on after a request."""
        self.answers = False
        connected = threading.Event()
        self.lifeline = RankLifeline(
            f"tcp://127.0.0.1:{port}",
            public,
            b"uuid",
            on_connect=connected.set,
            on_message=self._receive,
            on_tick=self._tick,
        )
        self.lifeline.start()
        assert connected.wait(WITHIN)
        self.lifeline.send(Began(0))
        self.route = self.router.recv_multipart()[0]
        assert eventually(lambda: not self.lifeline._woken)

    def _receive(self, _request: Request, _buffers: Sequence[Buffer]) -> None:
        if self.answers:
            self.lifeline.send(Began(0))
        else:
            self.lifeline.tick_later()
        self.received.release()
        assert self.goes_on.acquire(timeout=WITHIN)

    def _tick(self) -> float:
        self.ticks += 1
        return 2 * 3600.0

    def request(self) -> None:
        """Send a request; returns while the lifeline's thread handles it."""
        self.router.send_multipart([self.route, encode(Exit())])
        assert self.received.acquire(timeout=WITHIN)

    def came(self) -> bool:
        if not self.router.poll(int(1000 * WITHIN)):
            return False
        self.router.recv_multipart()
        return True


@pytest.fixture
def ends() -> Iterator[Ends]:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    made = Ends(context)
    yield made
    made.lifeline.close(1)
    context.destroy(linger=0)


def test_what_can_wait_leaves_though_the_thread_would_look_in_an_hour(ends: Ends) -> None:
    for cell in range(20):
        ends.lifeline.send(Began(cell), can_wait=True)
        assert ends.came()


def test_what_can_wait_leaves_when_the_thread_looks_soon(ends: Ends) -> None:
    for cell in range(100):
        ends.request()
        ends.goes_on.release()
        ends.lifeline.send(Began(cell), can_wait=True)
        assert ends.came()


def wakes(ends: Ends, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The bytes by which the lifeline's thread is woken from here on."""
    written = list[int]()
    write = os.write

    def noted(descriptor: int, data: bytes) -> int:
        if descriptor == ends.lifeline._wake_write:
            written.append(len(data))
        return write(descriptor, data)

    monkeypatch.setattr(os, "write", noted)
    return written


def test_what_the_thread_itself_sends_does_not_wake_it_again(ends: Ends, monkeypatch: pytest.MonkeyPatch) -> None:
    written, poll, pauses = wakes(ends, monkeypatch), ends.lifeline._poller.poll, list[int]()
    ends.answers = True
    ends.request()

    def noted(pause: int) -> object:
        pauses.append(pause)
        return poll(pause)

    monkeypatch.setattr(ends.lifeline._poller, "poll", noted)
    ends.goes_on.release()
    assert ends.came()
    ends.request()  # the thread has waited for this
    assert not written and min(pauses) > 3600_000
    ends.goes_on.release()


def test_a_short_cell_is_not_disturbed_until_its_end(ends: Ends, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rank_end, "SOON", 3600.0)
    ends.request()
    written, ticks = wakes(ends, monkeypatch), ends.ticks
    ends.lifeline.send(Began(1), can_wait=True)  # while the thread still handles the request
    ends.goes_on.release()
    ends.lifeline.send(Began(2), can_wait=True)
    assert not written
    ends.request()
    ends.goes_on.release()  # whatever else arrives does not end the pause
    ends.lifeline.wake()
    assert written == [1] and ends.came() and ends.came()
    assert eventually(lambda: ends.ticks == ticks + 1)


def test_a_wake_that_was_interrupted_does_not_prevent_later_ones(ends: Ends, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(_descriptor: int, _data: bytes) -> int:
        raise KeyboardInterrupt

    with monkeypatch.context() as ctrl_c:
        ctrl_c.setattr(os, "write", interrupted)
        with pytest.raises(KeyboardInterrupt):
            ends.lifeline.wake()
    ends.answers = True
    ends.request()
    ends.goes_on.release()
    assert ends.came()
    ends.lifeline.send(Began(1))
    assert ends.came()
