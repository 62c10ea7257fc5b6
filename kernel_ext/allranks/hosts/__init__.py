"""Hosts (over ssh, this machine, or joined), the host processes on them, and ipyparallel's controller.

Runs in: the notebook's kernel, except ``controller``, which is a process of its own.
Called by: ``head``, ``discovery``, ``cluster``.
May call: ``lifeline``, ``messages``, ``machine`` and ``allranks_backends``.
"""
