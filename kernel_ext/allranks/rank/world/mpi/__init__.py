"""MPI worlds that are aborted and re-formed in the same processes: MPI's functions, and a rank's membership.

Runs in: a rank's main thread; the agent's thread aborts.
Called by: ``rank.world.membership``, ``rank.probe``.
May call: ``machine``, ``messages``, ``rank.collectives``, the modules of ``rank.world`` above it.
"""
