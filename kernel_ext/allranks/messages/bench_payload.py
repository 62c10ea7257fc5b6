"""The size of the array that a measured call of `bench` sends: the notebook plans it, the ranks create it."""

ITEM = 4
"""Bytes of a float32."""


def usable_bytes(op: str, nbytes: int, size: int) -> int:
    """Round `nbytes` to whole items, at least one; ``sum_scatter`` needs an equal part for each of `size` ranks."""
    parts = size if op == "sum_scatter" else 1
    return max(nbytes // ITEM // parts, 1) * parts * ITEM
