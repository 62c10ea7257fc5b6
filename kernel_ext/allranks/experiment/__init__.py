"""`Experiment`: a function or a notebook, run over a grid of worlds and parameters, saved and resumable.

Runs in: the user's process; runs of notebooks have a kernel of their own.
Called by: users, ``python -m allranks experiment``.
May call: `Cluster`, as users do; ``allranks_backends`` for the snapshot's types.
"""
