"""Datagrams by which a rank informs the others that its cell failed, if the notebook does not unblock them.

The notebook cannot do so when a C extension holds its GIL, when its machine sleeps, or when no thread tracks the cell.
A rank that failed and got no `requests.Decided` sends a datagram to each other rank of its world, repeatedly. A rank
that is blocked in the same cell then aborts its collective, as it does when the notebook asks it to, and informs all
other ranks that the world is broken: on MPI, ranks that are not blocked must answer the blocked ones.
"""

from __future__ import annotations

import hmac
import socket
from collections.abc import Sequence
from contextlib import suppress
from typing import Literal

from allranks.lifeline.rank_end import RankLifeline

LONGEST = 512
"""Maximum size of a datagram, in bytes."""
SIGNATURE = 32
"""Size of the HMAC-SHA256 at the start of each datagram, in bytes."""
Word = Literal["failed", "broke"]
MOST = 64
"""Maximum number of datagrams that one call of `heard` reads, so that a flood from strangers cannot occupy a rank."""


class Peers:
    def __init__(self, token: str, lifeline: RankLifeline) -> None:
        self._key, self._lifeline = token.encode(), lifeline
        self._socket: socket.socket | None = None
        self._addresses: Sequence[tuple[str, int]] = ()

    def listen(self, address: str) -> tuple[str, int] | None:
        """Receive datagrams at `address`; returns it and the port, or None if no socket can be opened there."""
        before = self._socket
        if before is not None and before.getsockname()[0] == address:
            return address, int(before.getsockname()[1])
        try:
            (family, _, _, _, where), *_ = socket.getaddrinfo(address, 0, type=socket.SOCK_DGRAM)
            opened = socket.socket(family, socket.SOCK_DGRAM)
            opened.setblocking(False)
            opened.bind(where)
        except OSError:
            return None
        self._socket = opened
        self._lifeline.watch(opened, before)
        return address, int(opened.getsockname()[1])

    def meet(self, addresses: Sequence[tuple[str, int]]) -> None:
        """Set the addresses at which the other ranks of the world receive datagrams from this one."""
        self._addresses = addresses

    def tell(self, word: Word, cell: int) -> None:
        """Inform the other ranks that this one failed in the cell, or broke the world in it, as `word` says."""
        if (speaks := self._socket) is None:
            return
        message = self._signed(f"{word} {cell}".encode())
        for address, port in self._addresses:
            with suppress(OSError):
                speaks.sendto(message, socket.getaddrinfo(address, port, type=socket.SOCK_DGRAM)[0][4])

    def heard(self) -> list[tuple[str, int]]:
        """The messages received from other ranks since the last call: of each, the word and the number of the cell."""
        heard: list[tuple[str, int]] = []
        if (hears := self._socket) is None:
            return heard
        for _ in range(MOST):
            try:
                data = hears.recv(LONGEST)
            except OSError:
                break
            said = data[SIGNATURE:]
            if hmac.compare_digest(data, self._signed(said)):
                word, _, cell = said.decode().partition(" ")
                heard.append((word, int(cell)))
        return heard

    def _signed(self, said: bytes) -> bytes:
        return hmac.digest(self._key, said, "sha256") + said
