"""`Cluster`, through which users control the ranks, and what its methods return: cells, results, values, views.

Runs in: the notebook's kernel, or a script.
Called by: users, ``magics``, ``experiment``.
May call: ``head``, ``hosts``, ``notebook``, ``lifeline``, ``pickling``, ``messages`` and the subpackages of the
verbs.
"""
