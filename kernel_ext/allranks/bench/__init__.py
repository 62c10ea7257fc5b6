"""``%distributed bench``: the measurement of collectives, its result, table and chart, and comparisons.

Runs in: the notebook's kernel or a script; the timed loops run on the ranks (``rank.metrics.time_operation``).
Called by: ``cluster``, ``magics``; ``timeline`` for bandwidths; ``__main__`` for the progress line.
May call: ``head``, ``messages``, ``notebook``, ``allranks_backends``; ``allranks_widgets`` for the axis of the chart.
"""
