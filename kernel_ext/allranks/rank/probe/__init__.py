"""Questions about what hardware and backends can do, asked with the code by which ranks use them.

Runs in: processes of its own, which may hang, crash or be killed.
Called by: ``probe``, as ``python -m allranks.rank.probe``; ``discovery.doctor``, on each host, `abortable`.
May call: ``rank.world``, ``messages``, ``machine``.
"""
