"""The questions: their text in the report, the expected answers, and the processes that ask them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from allranks.messages.events.probe_answers import Given


@dataclass(frozen=True)
class ProbeQuestion:
    name: str
    text: str
    expected: Given | None = "yes"
    """The expected answer; None if yes and no are both acceptable."""


@dataclass(frozen=True)
class Group:
    """Questions that one process asks in order."""

    asks: str
    """The argument of ``python -m allranks.rank.probe``."""
    within: float
    """Timeout, in seconds, for the whole group."""
    questions: Sequence[ProbeQuestion]


MACHINE = (
    ProbeQuestion("local network", "Can this program reach other machines (Local Network privacy of macOS)?"),
    ProbeQuestion("rdma on", "Is RDMA over Thunderbolt switched on (Thunderbolt 4 has none all the same)?", None),
    ProbeQuestion("awake", "Did the machine stay awake while it was probed?"),
)
RDMA = (
    Group(
        "devices",
        30,
        (
            ProbeQuestion("library", "Does the verbs library load, with all functions that MLX uses?", None),
            ProbeQuestion("devices", "Are RDMA devices there?", None),
            ProbeQuestion("ports", "Is a port of theirs active?"),
            ProbeQuestion("gids", "Has each active port a GID with an IPv4 address, as JACCL needs?"),
        ),
    ),
    Group(
        "contexts",
        60,
        (
            ProbeQuestion("layout", "Are the driver's functions where infiniband/verbs.h has them?"),
            ProbeQuestion("alike", "Have all contexts the same functions?"),
            ProbeQuestion("own table", "Has each context a table of functions of its own?"),
            ProbeQuestion("writable", "Can they be replaced in a context (each was written back as it was)?"),
            ProbeQuestion("table", "Does MLX keep its table of verbs in exactly one place?"),
        ),
    ),
    Group(
        "flush",
        20,
        (
            ProbeQuestion("error seen", "Does the driver say that a queue pair is in the state ERR?"),
            ProbeQuestion("flush", "Does a queue pair in the state ERR complete what was posted to it?"),
        ),
    ),
    Group(
        "limits",
        60,
        (
            ProbeQuestion(
                "limits", "Does a device have what a peer of a mesh takes (1 queue pair, 64 memory regions)?"
            ),
            ProbeQuestion("freed one by one", "Are resources back when a process has freed them?"),
        ),
    ),
)
ENDINGS = (
    Group(
        "exit", 60, (ProbeQuestion("freed by exit", "Are they back when a process has ended without freeing them?"),)
    ),
    Group("sigterm", 60, (ProbeQuestion("freed by sigterm", "Are they back when a process was killed by SIGTERM?"),)),
    Group("sigkill", 60, (ProbeQuestion("freed by sigkill", "Are they back when a process was killed by SIGKILL?"),)),
)
GPUS = (
    ProbeQuestion("gpus", "Are NVIDIA GPUs there?", None),
    ProbeQuestion("nccl", "Is NCCL installed?", None),
)
QUESTIONS = {
    question.name: question
    for question in (*MACHINE, *(each for group in (*RDMA, *ENDINGS) for each in group.questions), *GPUS)
}
IN_PLACE = ("layout", "alike", "own table", "writable", "table")
"""Questions that must be answered with yes before collectives of JACCL are aborted in place."""
