"""Worlds of MPI that are aborted and formed again in the same processes: its calls, and a rank as a member.

Runs in: a rank's main thread; the agent's thread aborts.
Called by: ``rank.world.membership``.
May call: ``rank.collectives``, the modules of ``rank.world`` above it.
"""
