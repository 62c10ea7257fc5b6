"""The bandwidth of one recorded collective."""

from __future__ import annotations

from allranks.bench.figures import factor, moved

from .rank_timeline import TimelineCall


def bandwidths(call: TimelineCall, size: int) -> dict[str, float]:
    """algbw and busbw of the transfer in GB/s, as `bench.figures` defines them; empty if it was not timed."""
    if not call.transfer:
        return {}
    algbw = moved(call.op, call.nbytes, size) / call.transfer / 1e9
    return {"algbw": algbw, "busbw": algbw * factor(call.op, size)}
