"""The debugger of a rank: ``breakpoint()`` in a cell, a look back at its error, completion that evaluates nothing.

Runs in: a rank's main thread.
Called by: ``rank.world``, ``rank.cell``, ``rank.agent``.
May call: ``rank.arrays``, ``rank.collectives``, ``rank.main_thread``, ``lifeline``.
"""
