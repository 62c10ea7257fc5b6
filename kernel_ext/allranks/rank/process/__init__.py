"""Start and end of a rank: the ways to join a cluster, the IPython engine, and the trial load of saved variables.

Runs in: a rank's process; the host process imports ``engine`` before it forks ranks. ``join_from_scheduler`` and
``trial_load`` run in processes of their own.
Called by: ``python -m allranks.rank``, ``host_process``; ``rank.values`` starts ``trial_load``.
May call: all subpackages of ``rank``, and the packages that these call.
"""
