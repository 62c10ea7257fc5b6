"""Large messages in parts, as the head sends and receives them."""

from __future__ import annotations

from allranks.messages.transfers import Kinds

from .base import Request


class RequestOfTransfer(Request):
    """About a message whose buffers come in parts; each end numbers those that it sends."""

    transfer: int


class Announced(RequestOfTransfer):
    """Such a message begins: parts with its buffers follow."""

    message: bytes
    sizes: list[int]
    """Of the buffers, in bytes."""


class Part(RequestOfTransfer):
    """The next bytes: slices of one or more of the buffers."""


class Taken(RequestOfTransfer):
    """A part has arrived; the next one may be sent."""


class Refused(RequestOfTransfer):
    """What is being received is no longer wanted, or cannot be held."""


class Dropped(RequestOfTransfer):
    """What was being sent does not go on."""


KINDS = Kinds(Announced, Part, Taken, Refused, Dropped)
