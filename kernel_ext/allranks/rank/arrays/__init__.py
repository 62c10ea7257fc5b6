"""What is known about arrays without evaluating them: computed, waiting for a collective, invalid after an abort.

Runs in: a rank's main thread; the agent's thread reads.
Called by: all other rooms of the rank but ``rank.functions``.
May call: ``messages`` and ``rank.functions``.
"""
