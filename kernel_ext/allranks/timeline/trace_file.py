"""A timeline as a file for Perfetto and Chrome: the JSON object form of the Trace Event Format.

Each host is a process and each rank a thread of it, since a viewer groups threads by process. Times are microseconds
since the cell began. https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU
"""

from __future__ import annotations

import gzip
import json
import math
import time
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

from allranks.bench.bus_bandwidth import bandwidths
from allranks.errors import UsageError

from .cell_timeline import CellTimeline
from .rank_timeline import RankTimeline, TimelineCall

Event = dict[str, object]
WORTH_SHOWING = 10e-6
"""Minimum duration, in seconds, of the computation of a collective's input for it to be shown."""


def write(timeline: CellTimeline, path: str | Path) -> None:
    """Write the file, compressed if `path` ends in ``.gz``. Raises UsageError if it cannot be written."""
    content = json.dumps(document(timeline), separators=(",", ":"), allow_nan=False).encode()
    try:
        Path(path).write_bytes(gzip.compress(content, 6) if str(path).endswith(".gz") else content)
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror or error}.") from None


def document(timeline: CellTimeline) -> dict[str, object]:
    """The content of the file."""
    clocks = timeline.clocks
    about = {
        "made by": f"allranks {version('allranks')}",
        "cluster": timeline.name,
        "backend": timeline.backend,
        "ranks": timeline.size,
        "cell": timeline.count,
        "code": timeline.code,
        "began": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(timeline.at)),
        **({"clocks": str(clocks)} if len(clocks.offset) > 1 else {}),
        "clock offset of each host (us)": {host: offset * 1e6 for host, offset in clocks.offset.items()},
        "clock error of each host (us)": {
            host: error * 1e6 if math.isfinite(error) else "unknown" for host, error in clocks.error.items()
        },
        "collectives": "as called; evaluated lazily" if timeline.lazy else "evaluated immediately",
        "notes": [*timeline.notes, *([timeline.straggler] if timeline.straggler else [])],
    }
    return {"traceEvents": list(_events(timeline)), "displayTimeUnit": "ms", "otherData": about}


def _events(timeline: CellTimeline) -> Iterator[Event]:
    hosts = list(dict.fromkeys(each.host for each in timeline.ranks))
    threads: dict[tuple[int, str], int] = {}
    for number, host in enumerate(hosts, 1):  # some viewers take 0 for the idle process
        yield _about("process_name", number, 0, name=host)
        yield _about("process_sort_index", number, 0, sort_index=number)
    for each in timeline.ranks:
        pid = hosts.index(each.host) + 1
        for thread in ["", *sorted({mark.thread for mark in each.marks} - {""})]:
            tid = _track(each.rank) if not thread else _track(timeline.size + len(threads))
            threads[each.rank, thread] = tid
            name = f"rank {each.rank}" + (f" ({thread})" if thread else "")
            yield _about("thread_name", pid, tid, name=name)
            yield _about("thread_sort_index", pid, tid, sort_index=each.rank)
        yield from _of_rank(timeline, each, pid, threads)
    yield from _flows(timeline, hosts)


def _of_rank(
    timeline: CellTimeline, each: RankTimeline, pid: int, threads: dict[tuple[int, str], int]
) -> Iterator[Event]:
    tid = threads[each.rank, ""]
    yield _slice(f"In[{timeline.count}]", "cell", pid, tid, each.began, each.ended)
    for mark in each.marks:
        track = threads[each.rank, mark.thread]
        if mark.ended is None:
            yield _instant(mark.name, "mark", pid, track, mark.began)
        else:
            yield _slice(mark.name, "mark", pid, track, mark.began, mark.ended)
    for began, ended in each.evaluations:
        yield _slice("mx.eval", "eval", pid, tid, began, ended)
    for call in each.calls:
        yield from _of_call(timeline, each, call, pid, tid)


def _of_call(timeline: CellTimeline, each: RankTimeline, call: TimelineCall, pid: int, tid: int) -> Iterator[Event]:
    about = _facts(timeline, call)
    if call.began is None:
        yield _instant(f"{call.op} called", "asked", pid, tid, call.asked, **about)
        return
    if call.began - call.asked >= WORTH_SHOWING:
        yield _slice(f"input of {call.op}", "compute", pid, tid, call.asked, call.began, number=call.number)
    ended = each.ended if call.ended is None else call.ended
    if call.ended is None:
        about["aborted"] = True
    yield _slice(call.op, "collective", pid, tid, call.began, ended, **about)
    if call.wait is not None and call.ended is not None:
        came = call.began + call.wait
        if call.wait:
            waited_for = {"number": call.number, "for": f"rank {call.last}"}
            yield _slice("wait", "wait", pid, tid, call.began, came, **waited_for)
        yield _slice("transfer", "transfer", pid, tid, came, ended, number=call.number)


def _facts(timeline: CellTimeline, call: TimelineCall) -> Event:
    facts: Event = {"number": call.number, "shape": str(list(call.shape)), "dtype": call.dtype, "bytes": call.nbytes}
    if call.line is not None:
        facts["line"] = call.line
    if place := call.place or (f"In[{timeline.count}], line {call.line}" if call.line is not None else ""):
        facts["place"] = place
    if call.source:
        facts["source"] = call.source
    if call.wait is not None and call.transfer is not None:
        facts |= {"wait_us": call.wait * 1e6, "transfer_us": call.transfer * 1e6, "came last": f"rank {call.last}"}
        facts |= {
            f"{name} GB/s": value
            for name, value in bandwidths(call.op, call.nbytes, call.transfer, timeline.size).items()
        }
    return facts


def _flows(timeline: CellTimeline, hosts: list[str]) -> Iterator[Event]:
    """For each collective, an arrow from the rank that entered last through all others; its id is the call's number."""
    by_number: dict[int, list[tuple[RankTimeline, TimelineCall]]] = {}
    for each in timeline.ranks:
        for call in each.calls:
            if call.last is not None:
                by_number.setdefault(call.number, []).append((each, call))
    for number, met in by_number.items():
        came = next(call.began for _, call in met if call.rank == call.last)
        points = sorted(((_joined(call, came or 0.0), each, call) for each, call in met), key=lambda point: point[0])
        for place, (at, each, call) in enumerate(points):
            phase = "s" if place == 0 else "f" if place == len(points) - 1 else "t"
            event = _event(phase, call.op, "collective", hosts.index(each.host) + 1, _track(each.rank))
            yield event | {"id": number, "ts": _nanoseconds(at) / 1e3, "bp": "e"}


def _joined(call: TimelineCall, came: float) -> float:
    """The time at which the arrow of a collective reaches the rank of `call`; `came` is when the last rank entered.

    It lies in the rank's transfer, since viewers attach the arrow to the slice at that time. It is not before `came`,
    unless the transfer had ended by then.
    """
    began, ended = call.began or 0.0, call.ended or 0.0
    start = min(max(came, began + (call.wait or 0.0)), ended)
    # Not at the very start, where Chrome takes the slice that ends there.
    return start + min(1e-6, (ended - start) / 2)


def _slice(name: str, kind: str, pid: int, tid: int, began: float, ended: float, **args: object) -> Event:
    # Whole nanoseconds, so that rounding does not make an inner slice end after its outer one.
    start = _nanoseconds(began)
    duration = max(0, _nanoseconds(ended) - start)
    event = _event("X", name, kind, pid, tid) | {"ts": start / 1e3, "dur": duration / 1e3}
    return event | {"args": args} if args else event


def _instant(name: str, kind: str, pid: int, tid: int, at: float, **args: object) -> Event:
    event = _event("i", name, kind, pid, tid) | {"ts": _nanoseconds(at) / 1e3, "s": "t"}
    return event | {"args": args} if args else event


def _about(what: str, pid: int, tid: int, **args: object) -> Event:
    return {"ph": "M", "name": what, "pid": pid, "tid": tid, "args": args}


def _event(phase: str, name: str, kind: str, pid: int, tid: int) -> Event:
    return {"ph": phase, "name": name, "cat": kind, "pid": pid, "tid": tid}


def _track(number: int) -> int:
    """The tid: not 0, which some viewers take for the idle thread, nor a pid, which would make it a main thread."""
    return 1000 + number


def _nanoseconds(seconds: float) -> int:
    return round(seconds * 1e9)
