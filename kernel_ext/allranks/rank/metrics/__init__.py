"""What is measured on a rank: memory, links, traffic, logged figures, and the timed loops of ``bench``.

Runs in: a rank's process; meters in the agent's thread.
Called by: ``rank.agent``, ``rank.world``.
May call: ``rank.collectives``.
"""
