"""How many bytes a measured call of `bench` really moves: the notebook plans them, the ranks send them."""

ITEM = 4
"""Bytes of a float32."""


def usable_bytes(op: str, nbytes: int, size: int) -> int:
    """Bytes of the array for `nbytes`: ``sum_scatter`` needs an equal part for each of `size` ranks."""
    parts = size if op == "sum_scatter" else 1
    return max(nbytes // ITEM // parts, 1) * parts * ITEM
