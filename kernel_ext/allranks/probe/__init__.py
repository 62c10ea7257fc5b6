"""``python -m allranks probe``: what only hardware can answer, as a report that its owner can attach to an issue.

Runs in: a shell; everything that may hang or crash in child processes.
Called by: ``python -m allranks``.
May call: ``cluster`` and what that may call; ``rank.probe`` as a process.
"""
