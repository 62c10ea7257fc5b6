"""Environments that match the notebook's, for other hosts: `%distributed setup`.

Runs in: the notebook's kernel, a script or a shell; `on_host` on the hosts.
Called by: users, ``magics`` and ``__main__``.
May call: ``hosts``, ``machine``.
"""
