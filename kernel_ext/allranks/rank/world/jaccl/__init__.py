"""JACCL worlds that are aborted and re-formed in the same processes: JACCL's verbs, and a rank's membership.

Runs in: a rank's main thread; the agent's thread aborts.
Called by: ``rank.world.membership``, ``rank.probe``.
May call: ``machine``, ``rank.collectives``, the modules of ``rank.world`` above it.
"""
