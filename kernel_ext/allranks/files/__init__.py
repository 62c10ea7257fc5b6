"""Files on other hosts: copies of the notebook's working folder, fetched files, and files shared between hosts.

Runs in: the notebook's kernel, or a script.
Called by: ``cluster``.
May call: ``notebook``, ``head``, ``lifeline``, ``machine``, ``messages``.
"""
