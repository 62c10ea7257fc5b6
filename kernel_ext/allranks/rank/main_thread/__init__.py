"""The main thread of a rank: the cell it runs, its position there, SIGINT, and the user's tasks and other threads.

Runs in: a rank's main thread; the agent's thread reads, and interrupts.
Called by: ``rank.debug``, ``rank.metrics``, ``rank.world``, ``rank.cell``, ``rank.agent``.
May call: ``lifeline``, ``messages`` and ``rank.collectives``.
"""
