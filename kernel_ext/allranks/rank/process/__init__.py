"""Start and end of a rank: the ways to join a cluster, and the IPython engine.

Runs in: a rank's process; its modules are imported by the host process, which forks the rank.
Called by: ``python -m allranks.rank``, ``host_process``.
May call: all subpackages of ``rank``.
"""
