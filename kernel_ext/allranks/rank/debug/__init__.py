"""The debugger of a rank: ``breakpoint()``, a look back at a cell's error, completion that evaluates nothing.

Runs in: a rank's main thread; the agent's thread queues commands for pdb, completes and inspects.
Called by: ``rank.world``, ``rank.cell``, ``rank.agent``.
May call: ``messages``, ``lifeline``, ``rank.arrays``, ``rank.collectives``, ``rank.main_thread``.
"""
