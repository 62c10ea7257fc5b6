"""How hosts are connected (`discover`), what is wrong with them (`doctor`), and which clusters run on them.

Runs in: the notebook's kernel, a script or a shell.
Called by: users, ``cluster``, ``magics`` and ``__main__``.
May call: ``notebook``, ``head``, ``hosts``, ``machine``, ``allranks_backends``.
"""
