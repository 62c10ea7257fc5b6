"""The main thread of a rank: its cell and line, SIGINT, the strict barrier, steps, and the user's tasks and threads.

Runs in: a rank's main thread; the agent's thread reads, and interrupts the main thread.
Called by: ``rank.debug``, ``rank.metrics``, ``rank.world``, ``rank.cell``, ``rank.agent``, and the user's code through
``end_step``.
May call: ``messages``, ``lifeline``, ``rank.functions`` and ``rank.collectives``.
"""
