"""A trial of the verbs on a queue pair of our own, before the first world: where the driver keeps its functions, and
whether a queue pair in the state ERR gives each work request back, as verbs are specified to.

JACCL calls poll_cq, post_send and post_recv through the table in each context (``ibv_context_ops``). The offsets here
are those of ``infiniband/verbs.h``, with which MLX was compiled.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from allranks.rank.world.images import NotInPlace, is_code

from .verbs_table import INT, MADE_BY, P, VerbsTable

POLL_CQ, POST_SEND, POST_RECV = (8 + 8 * index for index in (11, 25, 26))
"""Offsets in ``ibv_context``, whose table follows a pointer."""
POLL = ctypes.CFUNCTYPE(INT, P, INT, P)
POST = ctypes.CFUNCTYPE(INT, P, P, P)
_UC, _INIT, _ERR = 3, 1, 6
_STATE, _ACCESS, _PKEY, _PORT = 1, 8, 16, 32
_LOCAL_WRITE = 1
_ROOM = 4096

Slots = dict[int, int]
"""Offset in a context to the address of the driver's function."""


def slots(context: int) -> Slots:
    """What a context holds there."""
    return {at: ctypes.c_uint64.from_address(context + at).value for at in (POLL_CQ, POST_SEND, POST_RECV)}


def to_error(table: VerbsTable, pair: int) -> int:
    """Move a queue pair to ERR; returns the driver's code."""
    attributes = ctypes.create_string_buffer(struct.pack("i", _ERR), 256)
    code: int = table.call("modify_qp", [P, P, INT])(pair, ctypes.addressof(attributes), _STATE)
    return code


def is_in_error(table: VerbsTable, pair: int) -> bool:
    """Whether the driver says that a queue pair is in ERR; False where it does not say."""
    query = getattr(table.library, "ibv_query_qp", None)
    attributes, first = ctypes.create_string_buffer(256), ctypes.create_string_buffer(256)
    if query is None or query(P(pair), attributes, _STATE, first):
        return False
    state: int = struct.unpack_from("i", attributes)[0]
    return state == _ERR


class Trial:
    """Raises NotInPlace where the verbs are not as expected."""

    def __init__(self, table: VerbsTable) -> None:
        self._table = table
        with self._device() as context:
            self.slots = slots(context)
            """Where the driver has its functions."""
            if not all(map(is_code, self.slots.values())):
                raise NotInPlace("the driver's functions are not where infiniband/verbs.h has them")
            self.flushes = self._flushes(context)
            """Whether a queue pair in ERR completes what was posted, and what is posted then."""

    @contextmanager
    def _device(self) -> Iterator[int]:
        """The first device that can be opened."""
        count = ctypes.c_int()
        devices = self._table.call("get_device_list", [P], P)(ctypes.addressof(count))
        try:
            found = (ctypes.c_void_p * count.value).from_address(devices) if devices else ()
            context = next(filter(None, map(self._table.call("open_device", [P], P), found)), None)
        finally:
            if devices:
                self._table.call("free_device_list", [P], None)(devices)
        if context is None:
            raise NotInPlace("no RDMA device could be opened")
        try:
            yield context
        finally:
            self._table.call("close_device", [P])(context)

    def _flushes(self, context: int) -> bool:
        memory = ctypes.create_string_buffer(_ROOM)
        with ExitStack() as stack:
            domain = self._made(stack, "alloc_pd", context)
            queue = self._made(stack, "create_cq", context, 8, None, None, 0)
            # ibv_qp_init_attr: context, both queues, shared queue, five limits, type.
            wanted = ctypes.create_string_buffer(struct.pack("4Q7I", 0, queue, queue, 0, 4, 4, 1, 1, 0, _UC, 0), 256)
            pair = self._made(stack, "create_qp", domain, ctypes.addressof(wanted))
            region = self._made(stack, "reg_mr", domain, ctypes.addressof(memory), _ROOM, _LOCAL_WRITE)
            key = ctypes.c_uint32.from_address(region + 36).value  # ibv_mr.lkey
            return self._comes_back(pair, queue, ctypes.addressof(memory), key)

    def _comes_back(self, pair: int, queue: int, memory: int, key: int) -> bool:
        """Whether two receives do, one that is posted before ERR and one after."""
        poll, post = POLL(self.slots[POLL_CQ]), POST(self.slots[POST_RECV])
        entry = ctypes.create_string_buffer(struct.pack("QII", memory, _ROOM, key))  # ibv_sge
        completion, bad = ctypes.create_string_buffer(1024), ctypes.c_void_p()

        def posted(number: int) -> bool:
            request = ctypes.create_string_buffer(struct.pack("QQQi", number, 0, ctypes.addressof(entry), 1), 64)
            return bool(post(pair, ctypes.addressof(request), ctypes.addressof(bad)) == 0)

        def came(number: int) -> bool:
            count = poll(queue, 1, ctypes.addressof(completion))
            return bool(count == 1 and struct.unpack_from("Q", completion)[0] == number)

        attributes = ctypes.create_string_buffer(struct.pack("i", _INIT), 256)  # ibv_qp_attr
        struct.pack_into("I", attributes, 32, _LOCAL_WRITE)
        struct.pack_into("B", attributes, 129, 1)  # port_num
        modify = self._table.call("modify_qp", [P, P, INT])
        if modify(pair, ctypes.addressof(attributes), _STATE | _ACCESS | _PKEY | _PORT) or not posted(1):
            raise NotInPlace("a queue pair could not be tried")
        return to_error(self._table, pair) == 0 and came(1) and posted(2) and came(2)

    def _made(self, stack: ExitStack, make: str, *values: Any) -> int:
        free, arguments = MADE_BY[make]
        made: int | None = self._table.call(make, arguments, P)(*values)
        if not made:
            raise NotInPlace(f"ibv_{make} failed (error {ctypes.get_errno()})")
        release: Callable[[int], int] = self._table.call(free, [P])
        stack.callback(release, made)
        return made
