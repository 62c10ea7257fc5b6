"""The host process, which is the parent of the ranks on its host, and two programs that a login runs there.

Runs in: the host process (``host``), the ssh login that relays to it (``login_relay``), and a shell's command on the
host (``clusters_here``).
Called by: ``hosts``, ``discovery`` and ``rank.process``, as ``python -m allranks.host_process.host``, and likewise
``login_relay`` and ``clusters_here``.
May call: ``machine``, ``messages``, and the modules of ``rank`` that it needs to fork ranks.
"""
