"""``%distributed bench``: the collectives measured, the result, its table, its chart, and comparisons.

Runs in: the notebook's kernel; the timed loops run on the ranks (``rank.metrics.bench``).
Called by: ``cluster``, ``magics``.
May call: ``head``, ``notebook``.
"""
