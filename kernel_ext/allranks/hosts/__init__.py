"""Hosts (over ssh, this machine, or joined), the host processes on them, and ipyparallel's controller.

Runs in: the notebook's kernel, a script, or a shell's command. ``controller`` is a process of its own, in which
``engine_relay`` also runs, and an ipyparallel engine runs ``profiles.spawn``.
Called by: ``head``, ``discovery``, ``cluster``, ``environments``, ``magics``.
May call: ``lifeline``, ``messages``, ``machine`` and ``allranks_backends``.
"""
