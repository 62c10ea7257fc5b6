"""The machine this process runs on: its addresses, ports, files and clusters, and what it can run.

Runs in: every process of allranks; imports no MLX.
Called by: ``cluster``, ``discovery``, ``environments``, ``experiment``, ``files``, ``head``, ``host_process``,
``hosts``, ``probe``, ``rank``, ``cluster_settings`` and ``__main__``.
May call: nothing of allranks.
"""
