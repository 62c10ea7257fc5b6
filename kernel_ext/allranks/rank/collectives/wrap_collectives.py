"""Replacements for the functions of ``mx.distributed``: they note each call in the ledger, and call MLX's own.

A collective in shared memory takes 13 microseconds, or 4 each if one evaluation has ten. So a call usually notes only
what cannot be known later. The slow path does everything else. A call takes the slow path if `Ledger.slow` is set, if a
trace is active, if the operation is not one of `COLLECTIVES`, if the group is smaller than the world, or if the
arguments are unusual.
"""

from __future__ import annotations

import sys
import time
import weakref
from collections.abc import Callable, Mapping
from types import FrameType, ModuleType
from typing import TYPE_CHECKING, Any

from allranks.messages.value_types import Args, Kwargs, Namespace
from allranks.rank.functions.refused_operations import COLLECTIVES
from allranks.rank.functions.replaced import is_replaced, leave_out_our_frames, original, replaced
from allranks.rank.functions.transforms import TRACING

from .ledger import Ledger
from .ordered_chain import subject_of
from .record import COLLECTIVE, NOWHERE, Kind, LedgerCall, record_of, user_place
from .trace import TRACE

if TYPE_CHECKING:
    from mlx.core import Stream
    from mlx.core import array as Array
    from mlx.core.distributed import Group

OPERATIONS = (*sorted(COLLECTIVE), "send", "recv", "recv_like")
RESIZING = frozenset({"all_gather", "sum_scatter"})
"""Operations whose results have a different shape from their inputs."""
MOST_KINDS = 1_000
"""Maximum number of kinds of calls cached for each operation."""


def install(ledger: Ledger, mx: ModuleType, user_ns: Namespace) -> None:
    """Record the calls of ``mx.distributed`` in `ledger`; `user_ns` tells the user's frames from a library's.

    Also replaces the other functions that the ledger needs: ``mx.eval``, ``mx.async_eval``, ``Group.split``, and the
    functions that make streams. A second call replaces nothing again.
    """
    ledger.user_ns = user_ns
    for op in OPERATIONS:
        function = getattr(mx.distributed, op, None)
        if function is not None and not is_replaced(function):
            setattr(mx.distributed, op, replaced(function, _recorded(ledger, mx, op, function)))
    ledger.order.install(mx)
    ledger.limits.install(mx)
    ledger.turns.install(mx)


def _recorded(ledger: Ledger, mx: ModuleType, op: str, function: Callable[..., Array]) -> Callable[..., Array]:
    """Return a function that calls `function`, MLX's own, and notes the call in the ledger."""
    slow_path = _slow_path(ledger, mx, op, function)
    caller = sys._getframe

    def call(*args: Any, **kwargs: Any) -> Array:
        try:
            return slow_path(caller(1), args, kwargs)
        except BaseException as error:
            _as_of_this_call(error, function, args, kwargs)
            raise

    if op not in COLLECTIVES:
        return call

    note, wait_for, lacking = ledger.kinds.append, ledger.order.pending.append, ledger.limits.dtypes[op]
    order, reference, tracing, trace, array = ledger.order, weakref.ref, TRACING, TRACE, mx.array
    resizing, refuse_dtype = op in RESIZING, ledger.limits.refuse_dtype
    kinds: dict[tuple[int, tuple[int, ...]], Kind] = {}

    def fast_path(*args: Any, group: Group | None = None, stream: Stream | None = None, **others: object) -> Array:
        try:
            whole = ledger.group  # read before the check whether collectives are refused: see `Ledger.leave_world`
            if ledger.slow or trace.active or others or len(args) != 1:
                return slow_path(caller(1), args, _given(group, stream, others))
            x = args[0]
            # First, so that MLX raises its own errors for wrong arguments. Nothing is entered before an evaluation.
            if group is None:
                result = function(x, group=whole) if stream is None else function(x, group=whole, stream=stream)
            else:
                result = function(x, group=group) if stream is None else function(x, group=group, stream=stream)
                if group.size() != ledger.size:
                    return slow_path(caller(1), args, _given(group, stream, others))
            # Reading the shape and dtype of a pending array evaluates nothing.
            described = (x if type(x) is array else array(x)) if resizing else result
            shape, dtype = described.shape, described.dtype
            if lacking and dtype in lacking:
                refuse_dtype(op, dtype, {})
            frame: FrameType | None = caller(1)
            while frame is not None and frame.f_globals is not ledger.user_ns:
                frame = frame.f_back
            where = (frame.f_code, frame.f_lasti) if frame is not None else NOWHERE
            kind = kinds.get((where[1], shape))
            if kind is None or kind[3][0] is not where[0] or kind[2] != dtype:
                if len(kinds) == MOST_KINDS:
                    kinds.clear()
                kind = kinds[where[1], shape] = Kind(op, shape, dtype, where)
            ledger.number += 1
            # Python switches threads only at a call, so a reader finds as many kinds as there are calls.
            ledger.seq = seq = ledger.seq + 1
            note(kind)
            if order.watching and not tracing.depth:
                wait_for((seq, reference(result)))
            return result
        except BaseException as error:
            _as_of_this_call(error, function, args, _given(group, stream, others))
            raise

    return fast_path


def _given(group: Group | None, stream: Stream | None, others: Kwargs) -> Kwargs:
    """Join a call's keyword arguments into a dict again, without a group or stream of None."""
    return {name: value for name, value in (("group", group), ("stream", stream)) if value is not None} | others


def _as_of_this_call(error: BaseException, function: Callable[..., Array], args: Args, kwargs: Kwargs) -> None:
    """Remove our frames from `error`. A TypeError gets MLX's message for the call without the group that we added."""
    if type(error) is TypeError and kwargs.get("group") is None:
        try:
            function(*args, **kwargs)
        except TypeError as given:
            error.args = given.args
    leave_out_our_frames(error)


def _slow_path(
    ledger: Ledger, mx: ModuleType, op: str, function: Callable[..., Array]
) -> Callable[[FrameType, Args, Kwargs], Array]:
    """Return the function that handles calls on the slow path, in every mode."""
    order, limits, chain = ledger.order, ledger.limits, ledger.chain
    turns, at_once, lacking = ledger.turns, ledger.order.at_once, ledger.limits.dtypes[op]

    def call(frame: FrameType, args: Args, kwargs: Kwargs) -> Array:
        if kwargs.get("group") is None:
            kwargs = {**kwargs, "group": ledger.group}  # read before `refuse`, as above
        if ledger.refuse is not None:
            if ledger.in_world:
                function(*args, **kwargs)  # MLX raises for wrong arguments
            ledger.raise_if_refused()
        if ledger.ordered:
            chain.refuse_other_threads(op)
        result = function(*args, **kwargs)
        described = subject_of(mx, args, kwargs) if op in RESIZING else result
        dtype = described.dtype
        if op in limits.checks:
            limits.checks[op](args, kwargs)
        if dtype in lacking:
            limits.refuse_dtype(op, dtype, kwargs)
        group = kwargs.get("group")
        whole = group is None or group.size() == ledger.size
        shared = whole and op in COLLECTIVE
        peer = _peer(args, kwargs) if whole and not shared else None
        noted = ledger.note(Kind(op, described.shape, dtype, user_place(ledger.user_ns, frame), shared, peer))
        if shared and ledger.guard is not None:
            ledger.guard(record_of(noted))
        if turns.several:
            turns.take(mx, kwargs.get("stream"), wait=not ledger.ordered)  # a chain spans streams
        tracing = TRACING.depth > 0
        if ledger.timing and shared and not tracing:
            return _timed(ledger, mx, noted, function, args, kwargs)
        if TRACE.active:
            TRACE.collective(noted, time.perf_counter())
        if at_once.threads:
            at_once.called()
        if ledger.ordered:
            return chain.add(mx, op, function, args, kwargs, result, turns.stream)
        if shared and order.first.following:
            order.first.asked(noted.seq, result, closed=TRACING.closed > 0)
            ledger.choose_path()
        if shared and order.watching and not tracing:
            if turns.several:
                at_once.asked(noted.seq, result, turns.stream, noted.kind.where, subject_of(mx, args, kwargs))
            order.pending.append((noted.seq, weakref.ref(result)))
        return result

    return call


def _peer(args: Args, kwargs: Mapping[str, Any]) -> int:
    """The rank that a ``send`` or ``recv`` names as ``dst`` or ``src``: by keyword, or as its last argument."""
    return int(kwargs.get("dst", kwargs.get("src", args[-1] if args else None)))


def _timed(
    ledger: Ledger,
    mx: ModuleType,
    call: LedgerCall,
    function: Callable[..., Array],
    args: Args,
    kwargs: Kwargs,
) -> Array:
    """Make the call, evaluate the result immediately, and note the time from when the input was computed."""
    evaluate, subject = original(mx.eval), subject_of(mx, args, kwargs)
    asked = time.perf_counter()
    evaluate(subject)
    began = time.perf_counter()
    traced = TRACE.collective(call, asked, began)
    result = function(*args, **kwargs)
    evaluate(result)
    ended = time.perf_counter()
    if traced is not None:
        traced[3] = ended
    ledger.timed.append((call.kind.op, subject.nbytes, ended - began))
    return result
