"""Machines, and the processes on them: over ssh, on this machine, or joined; host processes; ipyparallel's controller.

Runs in: the notebook's kernel, except ``controller``, which is a process of its own.
Called by: ``head``, ``discovery``, ``cluster``.
May call: ``messages``, ``machine`` and ``allranks_backends``.
"""
