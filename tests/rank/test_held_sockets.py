"""Sockets that the host process holds for a rank are closed when the rank's neighbours have had their time."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from allranks.rank.world.held_sockets import Holder, hold


@pytest.fixture
def holder() -> Iterator[Holder]:
    holder = Holder()
    yield holder
    holder.close()


@pytest.fixture
def link() -> Iterator[tuple[socket.socket, socket.socket]]:
    """A connection of a rank with its neighbour, who never waits."""
    ours, neighbour = socket.socketpair()
    neighbour.setblocking(False)
    with ours, neighbour:
        yield ours, neighbour


def closed(neighbour: socket.socket) -> bool:
    try:
        return neighbour.recv(1) == b""
    except BlockingIOError:
        return False


def rank_holds_and_ends(holder: Holder, ours: socket.socket) -> None:
    with holder.channel("rank 1") as channel:
        hold(channel.fileno(), [ours.fileno()])
        holder.take(holder.watched())
    ours.close()


def test_a_socket_outlives_its_rank(holder: Holder, link: tuple[socket.socket, socket.socket]) -> None:
    rank_holds_and_ends(holder, link[0])
    holder.ended("rank 1")
    left = holder.close_due()
    assert not closed(link[1]) and left is not None and left > 0
    holder.take(holder.watched())
    assert holder.watched() == [], "nobody speaks there any more"


def test_without_a_notebook_it_is_closed_at_once(
    holder: Holder, link: tuple[socket.socket, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    rank_holds_and_ends(holder, link[0])
    holder.close_due(now=True)
    assert not closed(link[1]), "the rank has not ended yet, for all that is known"
    holder.ended("rank 1")
    assert holder.close_due(now=True) is None and closed(link[1])


def test_it_is_closed_when_the_time_is_over(
    holder: Holder, link: tuple[socket.socket, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("allranks.rank.world.held_sockets.HELD_FOR", 0.0)
    rank_holds_and_ends(holder, link[0])
    holder.ended("rank 1")
    holder.close_due()
    assert closed(link[1])


def test_a_rank_that_leaves_its_world_has_nothing_held(
    holder: Holder, link: tuple[socket.socket, socket.socket]
) -> None:
    ours, neighbour = link
    with holder.channel("rank 1") as channel:
        hold(channel.fileno(), [ours.fileno()])
        holder.take(holder.watched())
        hold(channel.fileno(), [])
        holder.take(holder.watched())
    ours.close()
    assert closed(neighbour)


def test_a_process_in_the_place_of_another_begins_with_nothing(
    holder: Holder, link: tuple[socket.socket, socket.socket]
) -> None:
    rank_holds_and_ends(holder, link[0])
    holder.ended("rank 1")
    holder.channel("rank 1").close()
    assert closed(link[1])
