"""``%distributed discover`` and ``%distributed doctor``: how hosts are connected, and what is wrong with them.

Runs in: the notebook's kernel, or a shell.
Called by: ``magics``, ``python -m allranks``.
May call: ``hosts``, ``machine``, ``allranks_backends``.
"""
