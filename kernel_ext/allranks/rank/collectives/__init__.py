"""The ledger of collectives: their numbers, order and times, and what becomes of those that are aborted.

Runs in: a rank's main thread; the agent's thread reads.
Called by: all rooms of the rank, and MLX's own functions, which the ledger wraps.
May call: ``messages``, ``rank.functions`` and ``rank.arrays``.
"""
