"""``python -m allranks probe``: asks questions that only hardware can answer, and writes a report for an issue.

Runs in: a shell; code that may hang or crash runs in child processes.
Called by: ``python -m allranks``.
May call: `Cluster`, as users do; ``machine``; ``rank.probe`` as a process; ``allranks_backends``.
"""
