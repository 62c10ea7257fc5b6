"""Files of the rank's host: what comes from the notebook's working folder, and from other hosts.

Runs in: the ranks.
Called by: ``rank.agent``.
May call: ``messages`` and ``machine``.
"""
