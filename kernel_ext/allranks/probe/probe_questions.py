"""The questions: their text in the report, the expected answers, and the processes that ask them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from allranks.messages.events.probe_answers import Given


@dataclass(frozen=True)
class Question:
    name: str
    text: str
    expected: Given | None = "yes"
    """The expected answer; None if both are acceptable."""


@dataclass(frozen=True)
class Group:
    """Questions that one process asks in order."""

    asks: str
    """The argument of ``python -m allranks.rank.probe``."""
    within: float
    """Timeout, in seconds, for the whole group."""
    questions: Sequence[Question]


MACHINE = (
    Question("local network", "Can this program reach other machines (Local Network privacy of macOS)?"),
    Question("rdma on", "Is RDMA over Thunderbolt switched on (Thunderbolt 4 has none all the same)?", None),
    Question("awake", "Did the machine stay awake while it was probed?"),
)
RDMA = (
    Group(
        "devices",
        30,
        (
            Question("library", "Does the verbs library load, with all functions that MLX uses?", None),
            Question("devices", "Are RDMA devices there?", None),
            Question("ports", "Is a port of theirs active?"),
            Question("gids", "Has each active port a GID with an IPv4 address, as JACCL needs?"),
        ),
    ),
    Group(
        "contexts",
        60,
        (
            Question("layout", "Are the driver's functions where infiniband/verbs.h has them?"),
            Question("alike", "Have all contexts the same functions?"),
            Question("own table", "Has each context a table of functions of its own?"),
            Question("writable", "Can they be replaced in a context (each was written back as it was)?"),
            Question("table", "Does MLX keep its table of verbs in exactly one place?"),
        ),
    ),
    Group(
        "flush",
        20,
        (
            Question("error seen", "Does the driver say that a queue pair is in the state ERR?"),
            Question("flush", "Does a queue pair in the state ERR complete what was posted to it?"),
        ),
    ),
    Group(
        "limits",
        60,
        (
            Question("limits", "Does a device have what a peer of a mesh takes (1 queue pair, 64 memory regions)?"),
            Question("freed one by one", "Are resources back when a process has freed them?"),
        ),
    ),
)
ENDINGS = (
    Group("exit", 60, (Question("freed by exit", "Are they back when a process has ended without freeing them?"),)),
    Group("sigterm", 60, (Question("freed by sigterm", "Are they back when a process was killed by SIGTERM?"),)),
    Group("sigkill", 60, (Question("freed by sigkill", "Are they back when a process was killed by SIGKILL?"),)),
)
GPUS = (
    Question("gpus", "Are NVIDIA GPUs there?", None),
    Question("nccl", "Is NCCL installed?", None),
)
QUESTIONS = {
    question.name: question
    for question in (*MACHINE, *(each for group in (*RDMA, *ENDINGS) for each in group.questions), *GPUS)
}
IN_PLACE = ("layout", "alike", "own table", "writable", "table")
"""Questions that must be answered with yes before collectives of JACCL are aborted in place."""
