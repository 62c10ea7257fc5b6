"""``python -m allranks.rank.probe WHAT LIBRARY``: probe the RDMA verbs of a library; print each answer as a JSON line.

WHAT is a key of `ASKED`, or ``hold``, which holds one resource of each kind until stdin closes.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping

import msgspec

from allranks.machine.end_with_parent import end_with_parent
from allranks.messages.events.probe_answers import ProbeAnswer
from allranks.rank.world.jaccl.rdma_verbs import RdmaVerbs
from allranks.rank.world.shared_libraries import NotInPlace

from . import device_resources, devices, driver_functions

ASKED: Mapping[str, Callable[[RdmaVerbs], Iterator[ProbeAnswer]]] = {
    "devices": devices.ask,
    "contexts": driver_functions.ask,
    "flush": driver_functions.ask_flush,
    "limits": device_resources.ask_limits,
    "exit": device_resources.ask_exit,
    "sigterm": device_resources.ask_sigterm,
    "sigkill": device_resources.ask_sigkill,
}


def main(what: str, library: str) -> None:
    if what != "hold":
        end_with_parent(grace=2.0)  # time for the process to free its resources
    try:
        verbs = RdmaVerbs(library)
    except NotInPlace as error:
        if what == "devices":
            show(ProbeAnswer("library", "no", str(error)))
        return
    if what == "hold":
        return device_resources.hold(verbs)
    for answer in ASKED[what](verbs):
        show(answer)


def show(answer: ProbeAnswer) -> None:
    print(msgspec.json.encode(answer).decode(), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
