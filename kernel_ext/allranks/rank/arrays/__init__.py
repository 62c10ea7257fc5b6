"""What is known about arrays without evaluating them: computed, waiting for a collective, invalid after an abort.

Runs in: a rank's main thread; the agent's thread reads.
Called by: ``rank.collectives``, ``rank.debug``, ``rank.values``, ``rank.metrics``, ``rank.world``, ``rank.cell``,
``rank.agent``.
May call: ``messages`` and ``rank.functions``.
"""
