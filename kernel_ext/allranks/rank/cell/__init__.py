"""One cell on this rank: its names, its output, its error, its widgets.

Runs in: a rank's main thread; the agent's thread takes the output.
Called by: ``rank.agent``, ``rank.process``.
May call: ``rank.collectives``, ``rank.values``, ``rank.debug``.
"""
