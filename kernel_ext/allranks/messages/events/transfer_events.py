"""Large messages in parts, as a rank sends and receives them."""

from __future__ import annotations

from allranks.messages.transfer_steps import TransferSteps

from .reports import Event


class EventOfTransfer(Event):
    """An event of the transfer of one message in parts; each end numbers the transfers that it sends."""

    transfer: int


class RankAnnounced(EventOfTransfer, tag="announced"):
    """A transfer begins; parts with the buffers of `message` follow."""

    message: bytes
    sizes: list[int]
    """Sizes of the buffers, in bytes."""


class RankPart(EventOfTransfer, tag="part"):
    """The next bytes of a transfer: slices of one or more of its buffers."""


class RankTaken(EventOfTransfer, tag="taken"):
    """A part has arrived; the next one may be sent."""


class RankRefused(EventOfTransfer, tag="refused"):
    """The receiver no longer wants the message, or lacks the memory for it."""


class RankDropped(EventOfTransfer, tag="dropped"):
    """The sender has stopped sending the message."""


STEPS = TransferSteps(RankAnnounced, RankPart, RankTaken, RankRefused, RankDropped)
