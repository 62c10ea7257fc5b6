"""What is known of the ranks, and what is done about it: stalls, consistency, forming, healing, unblocking.

Runs in: the notebook's kernel, beside the code that shows things.
Called by: ``cluster`` and the rooms of the verbs; ``notebook`` looks at its state.
May call: ``hosts``, ``messages`` and ``allranks_backends``. It draws nothing and asks no user.
"""
