"""A cell under way: what its ranks reported, who waits for whom, who is unblocked, whether ranks agree.

Runs in: where the head runs.
Called by: ``cluster.cell``.
May call: ``head.state``, ``messages``.
"""
