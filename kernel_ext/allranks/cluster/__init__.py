"""`Cluster`, through which users control the ranks, and what its methods return: cells, results, values, views.

Runs in: the notebook's kernel, a script, or a shell's command.
Called by: users, ``magics``, ``experiment``, ``probe``, and the shell's commands in ``allranks.__main__``.
May call: ``head``, ``hosts``, ``notebook``, ``lifeline``, ``pickling``, ``messages`` and the subpackages of the
verbs.
"""
