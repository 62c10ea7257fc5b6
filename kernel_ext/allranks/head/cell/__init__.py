"""A running cell: what its ranks reported, which ranks wait for which, unblocking them, and whether they agree.

Runs in: where the head runs.
Called by: ``cluster``; ``magics`` reads `RELEASE_WITHIN`.
May call: ``head.state``, ``lifeline``, ``pickling``, ``messages``, ``allranks_backends``, ``allranks_widgets`` for
formatted figures.
"""
