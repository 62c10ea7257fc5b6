"""One cell on this rank: its names, its output, its error, its widgets.

Runs in: a rank's main thread; the agent's thread takes the output.
Called by: ``rank.agent``, ``rank.process``.
May call: ``rank.world``, ``rank.debug``, ``rank.metrics``, and the packages that these call.
"""
