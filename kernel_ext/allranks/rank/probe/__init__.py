"""Questions about the abilities of hardware and backends, asked with the code that ranks themselves use.

Runs in: processes of its own, which may hang, crash or be killed.
Called by: ``probe``, as ``python -m allranks.rank.probe``; ``discovery.doctor`` runs `abortable` on each host.
May call: ``rank.world``, ``messages``, ``machine``.
"""
