"""Whether hosts reach each other, and how fast: asked of one rank of each, before a world is formed over them."""

from __future__ import annotations

from msgspec import Struct

from .base import Answer, Question, Request


class ListeningAt(Answer):
    ports: list[int]
    """One for each address; 0 where it is not this host's."""


class ListenForHosts(Question[ListeningAt]):
    """Listen at these addresses, and send data to hosts that know the `key` and ask for it."""

    addresses: list[str]
    key: bytes
    within: float
    """Seconds until the ports are closed, without `StopListening`."""


class StopListening(Request):
    """Close these ports."""


class HostAt(Struct, frozen=True):
    """Where another host listens."""

    address: str
    port: int


class HostTried(Struct, frozen=True):
    """What came of one try."""

    why_not: str
    """A clause; empty where it was reached."""
    rate: float = 0.0
    """Bytes a second that came, where this was measured."""


class HostsTried(Answer):
    tried: list[HostTried]


class TryHosts(Question[HostsTried]):
    """Connect to these, all at once, and measure how fast each sends, one after the other."""

    runs = "thread"
    hosts: list[HostAt]
    key: bytes
    within: float
    """Seconds to connect."""
    measure: float = 0.0
    """Seconds for which each sends."""
