"""The conditions for aborting in place: where a driver keeps its functions, and how a queue pair behaves in ERR."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

from allranks.messages.events.probe_answers import ProbeAnswer
from allranks.rank.world.jaccl.rdma_verbs import LIBRARY, RdmaVerbs
from allranks.rank.world.jaccl.verbs_check import (
    checked_slots,
    devices,
    first_opened,
    flushes,
    is_in_error,
    made,
    made_pair,
    put,
    to_error,
)
from allranks.rank.world.jaccl.verbs_table import VerbsTable
from allranks.rank.world.shared_libraries import NotInPlace

from .devices import opened


def ask(verbs: RdmaVerbs) -> Iterator[ProbeAnswer]:
    yield from _contexts(verbs)
    yield _table(verbs)


def ask_flush(verbs: RdmaVerbs) -> Iterator[ProbeAnswer]:
    with ExitStack() as stack:
        try:
            context = stack.enter_context(opened(verbs))
            functions = checked_slots(context)
            domain = made(verbs, stack, "alloc_pd", context)
            pair = made_pair(verbs, stack, domain, made(verbs, stack, "create_cq", context, 8, None, None, 0))
            seen = to_error(verbs, pair) == 0 and is_in_error(verbs, pair)
            yield ProbeAnswer("error seen", "yes" if seen else "no", "" if seen else "ibv_query_qp does not say ERR")
            does = flushes(verbs, context, functions)
        except NotInPlace as error:
            yield ProbeAnswer("flush", "not asked", str(error))
            return
    yield ProbeAnswer("flush", "yes" if does else "no", "of two receives, posted before and after" if does else "")


def _contexts(verbs: RdmaVerbs) -> Iterator[ProbeAnswer]:
    """Examine a context of each device, and a second one of the first device, as in a process that forms two worlds."""
    with ExitStack() as stack:
        found = stack.enter_context(devices(verbs))
        contexts = []
        works = []
        for device in found:
            try:
                contexts.append(stack.enter_context(first_opened(verbs, [device])))
                works.append(device)
            except NotInPlace:
                continue
        if works:
            contexts.append(stack.enter_context(first_opened(verbs, works[:1])))
        if len(contexts) < 2:
            yield ProbeAnswer("layout", "not asked", "no RDMA device could be opened")
            return
        try:
            known = [checked_slots(context) for context in contexts]
        except NotInPlace as error:
            yield ProbeAnswer("layout", "no", str(error))
            return
        yield ProbeAnswer("layout", "yes", f"in {len(contexts)} contexts", {"contexts": len(contexts)})
        alike = all(each == known[0] for each in known)
        yield ProbeAnswer("alike", "yes" if alike else "no", "" if alike else "contexts have different functions")
        own = len(set(contexts)) == len(contexts)
        yield ProbeAnswer("own table", "yes" if own else "no", "" if own else "a device that is opened twice has one")
        for context, functions in zip(contexts, known, strict=True):
            put(context, functions)  # this ends the process if the driver keeps the functions in read-only memory
        yield ProbeAnswer("writable", "yes")


def _table(verbs: RdmaVerbs) -> ProbeAnswer:
    """Whether MLX's table of verbs is found and refers to the library of `verbs`: MLX may load another library."""
    import mlx.core as mx

    if not mx.distributed.is_available("jaccl"):
        return ProbeAnswer("table", "not asked", f"MLX cannot load {LIBRARY} here")
    try:
        table = VerbsTable()
    except NotInPlace as error:
        return ProbeAnswer("table", "no", str(error))
    same = table.addresses == verbs.addresses
    return ProbeAnswer("table", "yes" if same else "no", "" if same else "MLX calls another library")
