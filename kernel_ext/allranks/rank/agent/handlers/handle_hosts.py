"""Requests about how hosts reach each other."""

from __future__ import annotations

from allranks.lifeline.open_questions import Reply
from allranks.messages import requests
from allranks.rank.world import try_addresses

from .handler_table import Buffers, RequestTable


class HostHandlers(RequestTable):
    def __init__(self) -> None:
        super().__init__()
        self._listening: try_addresses.Listening | None = None
        self.answer(requests.ListenForHosts, self._listen)
        self.accept(requests.StopListening, lambda *_: self._stop_listening())
        self.answer(requests.TryHosts, self._try)

    def _listen(self, request: requests.ListenForHosts, _: Buffers) -> Reply[requests.ListeningAt]:
        self._stop_listening()
        self._listening = try_addresses.Listening(request.addresses, request.key, request.within)
        return Reply(requests.ListeningAt(self._listening.ports))

    def _stop_listening(self) -> None:
        if self._listening is not None:
            self._listening.stop()
            self._listening = None

    def _try(self, request: requests.TryHosts, _: Buffers) -> Reply[requests.HostsTried]:
        tried = try_addresses.try_all(request.hosts, request.key, request.within, request.measure)
        return Reply(requests.HostsTried(tried))
