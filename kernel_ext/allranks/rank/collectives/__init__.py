"""The ledger of collectives, their order, what is refused, what waits for one, and what is invalid since an abort.

Runs in: a rank's main thread; the agent's thread reads.
Called by: all rooms of the rank, and MLX's own functions, which the ledger wraps.
May call: ``messages``.
"""
