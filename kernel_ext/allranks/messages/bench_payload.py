"""The size of the array that a measured call of `bench` sends: the notebook plans it, the ranks create it."""

ITEM = 4
"""Bytes of a float32."""


def usable_bytes(op: str, nbytes: int, size: int) -> int:
    """Round `nbytes` down to whole items; for ``sum_scatter``, to a multiple of `size` items. Never rounds to zero."""
    parts = size if op == "sum_scatter" else 1
    return max(nbytes // ITEM // parts, 1) * parts * ITEM
