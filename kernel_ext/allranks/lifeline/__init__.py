"""The lifeline, the connection between the notebook and each rank: both ends, and the delivery of messages.

It works while the rank's main thread is blocked.

Runs in: the notebook's kernel (`head_end`) and a rank's process (`rank_end`).
Called by: ``cluster``, ``files``, ``head``, ``hosts``, ``notebook``, ``rank`` and ``timeline``.
May call: ``messages`` and ``machine``.
"""
