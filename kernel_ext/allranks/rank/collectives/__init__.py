"""The ledger of collectives: their numbers, order and times, and how aborted collectives raise.

Runs in: a rank's main thread; the agent's thread reads.
Called by: all rooms of the rank, and MLX's own functions, which the ledger wraps.
May call: ``messages``, ``rank.functions`` and ``rank.arrays``.
"""
