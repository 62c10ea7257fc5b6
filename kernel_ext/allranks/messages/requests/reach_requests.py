"""Tests of how hosts reach each other, sent to one rank of each host before a world is formed."""

from __future__ import annotations

from msgspec import Struct

from .request import Answer, Question, Request


class ListeningAt(Answer):
    ports: list[int]
    """One port for each address; 0 if the host cannot listen at that address."""


class ListenForHosts(Question[ListeningAt]):
    """Listen at these addresses, and send data on request to hosts that know the `key`."""

    addresses: list[str]
    key: bytes
    within: float
    """Seconds until the ports are closed if no `StopListening` arrives."""


class StopListening(Request):
    """Close the ports of the last `ListenForHosts`."""


class HostAt(Struct, frozen=True):
    """The address and port at which another host listens."""

    address: str
    port: int


class HostTried(Struct, frozen=True):
    """The result of one attempt to reach a host."""

    why_not: str
    """Why the host was not reached, as a clause; empty if it was."""
    rate: float = 0.0
    """Bytes received a second; 0 if not measured."""


class HostsTried(Answer):
    tried: list[HostTried]


class TryHosts(Question[HostsTried]):
    """Connect to these hosts in parallel, then measure how fast each one sends, one after the other."""

    runs = "thread"
    hosts: list[HostAt]
    key: bytes
    within: float
    """Timeout, in seconds, for each connection."""
    measure: float = 0.0
    """Seconds for which each host sends; 0 to measure nothing."""
