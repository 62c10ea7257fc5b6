"""Measurements on a rank: memory, links, traffic, logged figures, and the timed loops of ``bench``.

Runs in: a rank's process; meters in the agent's thread.
Called by: ``rank.world``, ``rank.cell``, ``rank.agent``.
May call: ``rank.arrays``, ``rank.functions``, ``rank.collectives``, ``rank.main_thread``, ``lifeline``.
"""
