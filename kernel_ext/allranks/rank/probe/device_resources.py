"""How many resources an RDMA device has, and whether it takes back the resources of a process that has ended."""

from __future__ import annotations

import ctypes
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack

from allranks.messages.events.probe_answers import Given, ProbeAnswer
from allranks.rank.world.jaccl.rdma_verbs import RdmaVerbs
from allranks.rank.world.jaccl.verbs_check import made, made_pair
from allranks.rank.world.shared_libraries import NotInPlace

from .devices import opened

MOST = 256
"""Counting stops at this number: a device that is not Apple's may have millions."""
NEEDED = {"queue pairs": 1, "memory regions": 64, "protection domains": 1, "completion queues": 1}
"""Number of resources of each kind that a mesh of MLX (0.32.4) creates on a device for each peer."""
FREED_WITHIN = 4.0
"""Seconds within which a device must take back the resources of a process that has ended."""
HOLDS = "holds"
"""The line that a process writes once it has one resource of each kind."""
_PAGE = 4096
_LOCAL_WRITE = 1

Counts = Mapping[str, int]


def ask_limits(verbs: RdmaVerbs) -> Iterator[ProbeAnswer]:
    try:
        with opened(verbs) as context:
            most = counted(verbs, context)
            again = counted(verbs, context)
    except NotInPlace as error:
        yield ProbeAnswer("limits", "not asked", str(error))
        return
    short = [kind for kind, needed in NEEDED.items() if most[kind] < needed]
    said = "; ".join(f"{kind}: {_figure(count)}" for kind, count in most.items())
    yield ProbeAnswer("limits", "no" if short else "yes", said, dict(most))
    lost = _fewer(most, again)
    yield ProbeAnswer("freed one by one", "no" if lost else "yes", _described(most, again, lost))


def ask_exit(verbs: RdmaVerbs) -> Iterator[ProbeAnswer]:
    yield _freed(verbs, "freed by exit", None)


def ask_sigterm(verbs: RdmaVerbs) -> Iterator[ProbeAnswer]:
    yield _freed(verbs, "freed by sigterm", signal.SIGTERM)


def ask_sigkill(verbs: RdmaVerbs) -> Iterator[ProbeAnswer]:
    yield _freed(verbs, "freed by sigkill", signal.SIGKILL)


def hold(verbs: RdmaVerbs) -> None:
    """Make one resource of each kind, write `HOLDS`, and exit once stdin closes, without freeing the resources."""
    memory = ctypes.create_string_buffer(_PAGE)
    stack = ExitStack()
    context = stack.enter_context(opened(verbs))
    domain = made(verbs, stack, "alloc_pd", context)
    made_pair(verbs, stack, domain, made(verbs, stack, "create_cq", context, 8, None, None, 0))
    made(verbs, stack, "reg_mr", domain, ctypes.addressof(memory), _PAGE, _LOCAL_WRITE)
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(stack))  # so that Python does not free the resources at exit
    print(HOLDS, flush=True)
    sys.stdin.read()


def counted(verbs: RdmaVerbs, context: int) -> Counts:
    """How many resources of each kind can be made, up to `MOST`.

    Each kind is counted alone, with only the other resources that it needs. All are freed.
    """
    return {
        "queue pairs": _count(verbs, context, "create_qp"),
        "memory regions": _count(verbs, context, "reg_mr"),
        "protection domains": _count(verbs, context, "alloc_pd"),
        "completion queues": _count(verbs, context, "create_cq"),
    }


def _count(verbs: RdmaVerbs, context: int, make: str) -> int:
    memory = ctypes.create_string_buffer(_PAGE)
    count = 0
    with ExitStack() as stack:
        try:
            domain = made(verbs, stack, "alloc_pd", context) if make in ("create_qp", "reg_mr") else 0
            queue = made(verbs, stack, "create_cq", context, 2 * MOST, None, None, 0) if make == "create_qp" else 0
            while count < MOST:
                if make == "create_qp":
                    made_pair(verbs, stack, domain, queue)
                elif make == "reg_mr":
                    made(verbs, stack, make, domain, ctypes.addressof(memory), _PAGE, _LOCAL_WRITE)
                elif make == "alloc_pd":
                    made(verbs, stack, make, context)
                else:
                    made(verbs, stack, make, context, 8, None, None, 0)
                count += 1
        except NotInPlace:
            pass  # the device has no more
    return count


def _freed(verbs: RdmaVerbs, question: str, ends: signal.Signals | None) -> ProbeAnswer:
    """Whether a device has as many resources as before, after a process that held one of each kind has ended.

    The signal `ends` ends the process; if `ends` is None, the process exits normally.
    """
    try:
        before = _now(verbs)
        if not _held_and_ended(verbs, ends):
            return ProbeAnswer(question, "not asked", "a second process could not make one of each")
        until = time.monotonic() + FREED_WITHIN
        while (lost := _fewer(before, after := _now(verbs))) and time.monotonic() < until:
            time.sleep(FREED_WITHIN / 10)
    except NotInPlace as error:
        return ProbeAnswer(question, "not asked", str(error))
    if all(count >= MOST for count in before.values()):
        return ProbeAnswer(question, "not asked", f"no limit below {MOST} is there of which one could be missing")
    given: Given = "no" if lost else "yes"
    return ProbeAnswer(question, given, _described(before, after, lost), dict.fromkeys(lost, 1))


def _now(verbs: RdmaVerbs) -> Counts:
    with opened(verbs) as context:
        return counted(verbs, context)


def _held_and_ended(verbs: RdmaVerbs, ends: signal.Signals | None) -> bool:
    command = [sys.executable, "-m", "allranks.rank.probe", "hold", verbs.library._name]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None and process.stdout is not None
        held = process.stdout.readline().strip() == HOLDS
        if held and ends is not None:
            process.send_signal(ends)
        process.stdin.close()
        process.wait()
    return held


def _fewer(before: Counts, after: Counts) -> list[str]:
    return [kind for kind, count in before.items() if after[kind] < count]


def _described(before: Counts, after: Counts, lost: list[str]) -> str:
    if lost:
        return "; ".join(f"{kind}: {after[kind]} of {before[kind]} are left" for kind in lost)
    unknown = [kind for kind, count in before.items() if count >= MOST]
    return f"not known of {', '.join(unknown)}: no limit below {MOST}" if unknown else ""


def _figure(count: int) -> str:
    return f"{MOST} or more" if count >= MOST else str(count)
