"""The main thread of a rank: the cell and line that it runs, SIGINT, and the user's asyncio tasks and threads.

Runs in: a rank's main thread; the agent's thread reads, and interrupts the main thread.
Called by: ``rank.debug``, ``rank.metrics``, ``rank.world``, ``rank.cell``, ``rank.agent``.
May call: ``messages``, ``lifeline``, ``rank.functions`` and ``rank.collectives``.
"""
