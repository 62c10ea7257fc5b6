"""A trial of the verbs before the first world: where the driver keeps its functions, and what the state ERR does.

A queue pair of our own shows whether ERR completes each work request, as the specification of the verbs requires.

JACCL calls poll_cq, post_send and post_recv through the table in each context (``ibv_context_ops``). The offsets here
are those of ``infiniband/verbs.h``, with which MLX was compiled.
"""

from __future__ import annotations

import ctypes
import struct
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager

from allranks.rank.world.shared_libraries import NotInPlace, is_code

from .rdma_verbs import INT, MADE_BY, P, RdmaVerbs

POLL_CQ, POST_SEND, POST_RECV = (8 + 8 * index for index in (11, 25, 26))
"""Offsets in ``ibv_context``, where the table of functions follows a pointer."""
POLL = ctypes.CFUNCTYPE(INT, P, INT, P)
POST = ctypes.CFUNCTYPE(INT, P, P, P)
_UC, _INIT, _ERR = 3, 1, 6
_STATE, _ACCESS, _PKEY, _PORT = 1, 8, 16, 32
_LOCAL_WRITE = 1
_ROOM = 4096
_POLLS, _POLL_EVERY = 100, 0.002
"""Maximum number of polls for one completion, and the seconds between two polls."""

Slots = dict[int, int]
"""Maps an offset in a context to the address of the driver's function."""


def slots(context: int) -> Slots:
    """The driver's functions in a context."""
    return {at: ctypes.c_uint64.from_address(context + at).value for at in (POLL_CQ, POST_SEND, POST_RECV)}


def to_error(verbs: RdmaVerbs, pair: int) -> int:
    """Move a queue pair to ERR; returns the driver's code, 0 for success."""
    attributes = ctypes.create_string_buffer(struct.pack("i", _ERR), 256)
    code: int = verbs.call("modify_qp", [P, P, INT])(pair, ctypes.addressof(attributes), _STATE)
    return code


def is_in_error(verbs: RdmaVerbs, pair: int) -> bool:
    """Whether the driver reports that a queue pair is in ERR; False if it cannot report the state."""
    query = getattr(verbs.library, "ibv_query_qp", None)
    attributes, first = ctypes.create_string_buffer(256), ctypes.create_string_buffer(256)
    if query is None or query(P(pair), attributes, _STATE, first):
        return False
    state: int = struct.unpack_from("i", attributes)[0]
    return state == _ERR


def put(context: int, functions: Slots) -> None:
    """Make MLX call these functions in this context."""
    for at, function in functions.items():
        ctypes.c_uint64.from_address(context + at).value = function


def checked_slots(context: int) -> Slots:
    """The same as `slots`. Raises NotInPlace unless all addresses are in the code of a library."""
    found = slots(context)
    if not all(map(is_code, found.values())):
        raise NotInPlace("the driver's functions are not where infiniband/verbs.h has them")
    return found


class VerbsTrial:
    """The results of a trial. Raises NotInPlace if no device can be opened, or if the verbs are not as expected."""

    def __init__(self, verbs: RdmaVerbs) -> None:
        with devices(verbs) as found, first_opened(verbs, found) as context:
            self.slots = checked_slots(context)
            """The driver's functions."""
            self.flushes = flushes(verbs, context, self.slots)
            """Whether a queue pair in ERR completes the work requests posted before the move to ERR, and later ones."""


@contextmanager
def devices(verbs: RdmaVerbs) -> Iterator[list[int]]:
    """The RDMA devices, valid within the ``with`` block."""
    count = ctypes.c_int()
    listed = verbs.call("get_device_list", [P], P)(ctypes.addressof(count))
    try:
        yield list((ctypes.c_void_p * count.value).from_address(listed)) if listed else []
    finally:
        if listed:
            verbs.call("free_device_list", [P], None)(listed)


@contextmanager
def first_opened(verbs: RdmaVerbs, found: Iterable[int]) -> Iterator[int]:
    """An ``ibv_context`` of the first device in `found` that can be opened. Raises NotInPlace if there is none."""
    context: int | None = next(filter(None, map(verbs.call("open_device", [P], P), found)), None)
    if context is None:
        raise NotInPlace("no RDMA device could be opened")
    try:
        yield context
    finally:
        verbs.call("close_device", [P])(context)


def made(verbs: RdmaVerbs, stack: ExitStack, make: str, *values: object) -> int:
    """Make a resource that is freed with `stack`. Raises NotInPlace if the verb fails."""
    free, arguments = MADE_BY[make]
    resource: int | None = verbs.call(make, arguments, P)(*values)
    if not resource:
        raise NotInPlace(f"ibv_{make} failed (error {ctypes.get_errno()})")
    release: Callable[[int], int] = verbs.call(free, [P])
    stack.callback(release, resource)
    return resource


def made_pair(verbs: RdmaVerbs, stack: ExitStack, domain: int, queue: int) -> int:
    """Make a queue pair like JACCL's, in the state RESET. Raises NotInPlace."""
    # ibv_qp_init_attr: context, both queues, shared queue, five limits, type.
    wanted = ctypes.create_string_buffer(struct.pack("4Q7I", 0, queue, queue, 0, 4, 4, 1, 1, 0, _UC, 0), 256)
    return made(verbs, stack, "create_qp", domain, ctypes.addressof(wanted))


def flushes(verbs: RdmaVerbs, context: int, functions: Slots) -> bool:
    """Whether a queue pair in ERR completes a receive posted before the move to ERR, and one posted after it.

    False also if the queue pair cannot be moved to ERR. Raises NotInPlace if a verb fails before that.
    """
    memory = ctypes.create_string_buffer(_ROOM)
    with ExitStack() as stack:
        domain = made(verbs, stack, "alloc_pd", context)
        queue = made(verbs, stack, "create_cq", context, 8, None, None, 0)
        pair = made_pair(verbs, stack, domain, queue)
        region = made(verbs, stack, "reg_mr", domain, ctypes.addressof(memory), _ROOM, _LOCAL_WRITE)
        key = ctypes.c_uint32.from_address(region + 36).value  # ibv_mr.lkey
        return _completes(verbs, functions, pair, queue, ctypes.addressof(memory), key)


def _completes(verbs: RdmaVerbs, functions: Slots, pair: int, queue: int, memory: int, key: int) -> bool:
    poll, post = POLL(functions[POLL_CQ]), POST(functions[POST_RECV])
    entry = ctypes.create_string_buffer(struct.pack("QII", memory, _ROOM, key))  # ibv_sge
    completion, bad = ctypes.create_string_buffer(1024), ctypes.c_void_p()

    def posted(number: int) -> bool:
        request = ctypes.create_string_buffer(struct.pack("QQQi", number, 0, ctypes.addressof(entry), 1), 64)
        return bool(post(pair, ctypes.addressof(request), ctypes.addressof(bad)) == 0)

    def came(number: int) -> bool:
        for _ in range(_POLLS):
            if count := poll(queue, 1, ctypes.addressof(completion)):
                break
            time.sleep(_POLL_EVERY)
        return bool(count == 1 and struct.unpack_from("Q", completion)[0] == number)

    attributes = ctypes.create_string_buffer(struct.pack("i", _INIT), 256)  # ibv_qp_attr
    struct.pack_into("I", attributes, 32, _LOCAL_WRITE)
    struct.pack_into("B", attributes, 129, 1)  # port_num
    modify = verbs.call("modify_qp", [P, P, INT])
    if modify(pair, ctypes.addressof(attributes), _STATE | _ACCESS | _PKEY | _PORT) or not posted(1):
        raise NotInPlace("a queue pair could not be tried")
    return to_error(verbs, pair) == 0 and came(1) and posted(2) and came(2)
