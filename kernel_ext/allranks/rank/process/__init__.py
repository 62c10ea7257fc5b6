"""Start and end of a rank: the host process that is its parent, the ways to join, the IPython engine.

Runs in: the host process (``host``, ``children``, ``start``) and the rank's (``engine``, ``join``).
Called by: ``python -m allranks.rank``, ``python -m allranks.rank.process.host``.
May call: all rooms of the rank.
"""
