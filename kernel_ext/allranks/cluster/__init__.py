"""`Cluster`, what a user holds, and what its methods return: cells, values, who is in the world, what there is to see.

Runs in: the notebook's kernel, or a script.
Called by: users, ``magics``, ``experiment``.
May call: ``head``, ``hosts``, ``notebook``, ``messages`` and the rooms of the verbs.
"""
