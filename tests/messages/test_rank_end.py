"""The rank's end of the lifeline: nothing waits until its thread looks again by itself."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
import zmq

from allranks.lifeline.rank_end import RankLifeline
from allranks.messages.events import Began
from tests.waiting import WITHIN

# The thread of a connection that was closed ends with SystemExit, which Python says nothing of.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")


class Ends:
    """Both ends; the rank's looks by itself once an hour, or `soon` after it was woken."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]]) -> None:
        self.router = context.socket(zmq.ROUTER)
        public, secret = zmq.curve_keypair()
        self.router.curve_server = True
        self.router.curve_publickey, self.router.curve_secretkey = public, secret
        port = self.router.bind_to_random_port("tcp://127.0.0.1")
        self.soon = False
        connected = threading.Event()
        self.lifeline = RankLifeline(
            f"tcp://127.0.0.1:{port}",
            public,
            b"uuid",
            on_connect=connected.set,
            on_message=lambda _request, _buffers: None,
            on_tick=self._tick,
        )
        self.lifeline.start()
        assert connected.wait(WITHIN)

    def _tick(self) -> float:
        if self.soon:
            self.soon = False
            self.lifeline.look_soon()
        return 3600.0

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
        ends.soon = True
        ends.lifeline.wake()
        ends.lifeline.send(Began(cell), can_wait=True)
        assert ends.came()
