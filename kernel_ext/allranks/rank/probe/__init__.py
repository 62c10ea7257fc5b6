"""Questions on RDMA that only hardware answers, asked with the code by which ranks use it.

Runs in: processes of its own, which may hang, crash or be killed.
Called by: ``probe``, as ``python -m allranks.rank.probe``.
May call: ``rank.world``, ``messages``, ``machine``.
"""
