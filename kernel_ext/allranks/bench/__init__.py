"""``%distributed bench``: the measurement of collectives, its result, table and chart, and comparisons.

Runs in: the notebook's kernel; the timed loops run on the ranks (``rank.metrics.time_operation``).
Called by: ``cluster``, ``magics``.
May call: ``head``, ``messages``, ``notebook``.
"""
