"""Large messages in parts, as a rank sends and receives them."""

from __future__ import annotations

from allranks.messages.transfers import Kinds

from .reports import Event


class EventOfTransfer(Event):
    """About a message whose buffers come in parts; each end numbers those that it sends."""

    transfer: int


class Announced(EventOfTransfer):
    """Such a message begins: parts with its buffers follow."""

    message: bytes
    sizes: list[int]
    """Of the buffers, in bytes."""


class Part(EventOfTransfer):
    """The next bytes: slices of one or more of the buffers."""


class Taken(EventOfTransfer):
    """A part has arrived; the next one may be sent."""


class Refused(EventOfTransfer):
    """What is being received is no longer wanted, or cannot be held."""


class Dropped(EventOfTransfer):
    """What was being sent does not go on."""


KINDS = Kinds(Announced, Part, Taken, Refused, Dropped)
