"""The world: its ranks' processes, how it is formed and healed, and what another notebook needs to take it over.

Runs in: where the head runs.
Called by: ``cluster``, ``bench``, ``discovery``, ``files`` and ``magics``.
May call: ``head.state``, ``hosts``, ``lifeline``, ``messages``, ``machine``, ``allranks_backends``.
"""
