"""Joining an MLX world, aborting its collectives, leaving it, and joining the next one in the same process.

Runs in: a rank's main thread; an abort comes from the agent's.
Called by: ``rank.cell``, ``rank.agent``.
May call: ``machine``, ``rank.debug``, ``rank.metrics``, and the rooms that these call.
"""
