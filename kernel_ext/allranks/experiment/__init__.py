"""`Experiment`: a function or a notebook, run over a grid of worlds and parameters, on record and resumable.

Runs in: the user's process; runs that are notebooks have a kernel of their own.
Called by: users, ``python -m allranks experiment``.
May call: ``cluster`` and what that may call.
"""
