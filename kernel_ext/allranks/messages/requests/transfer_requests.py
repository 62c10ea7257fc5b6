"""Large messages in parts, as the head sends and receives them."""

from __future__ import annotations

from allranks.messages.transfer_steps import TransferSteps

from .request import Request


class RequestOfTransfer(Request):
    """A request of the transfer of one message in parts; each end numbers the transfers that it sends."""

    transfer: int


class Announced(RequestOfTransfer):
    """A transfer begins; parts with the buffers of `message` follow."""

    message: bytes
    sizes: list[int]
    """Sizes of the buffers, in bytes."""


class Part(RequestOfTransfer):
    """The next bytes of a transfer: slices of one or more of its buffers."""


class Taken(RequestOfTransfer):
    """A part has arrived; the next one may be sent."""


class Refused(RequestOfTransfer):
    """The receiver no longer wants the message, or lacks the memory for it."""


class Dropped(RequestOfTransfer):
    """The sender has stopped sending the message."""


STEPS = TransferSteps(Announced, Part, Taken, Refused, Dropped)
