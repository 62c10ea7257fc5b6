"""The world: its ranks' processes, forming it, healing it, and what another notebook needs to take it over.

Runs in: where the head runs.
Called by: ``cluster``.
May call: ``head.state``, ``hosts``, ``messages``.
"""
