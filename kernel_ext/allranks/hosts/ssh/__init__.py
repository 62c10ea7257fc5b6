"""Hosts reached by ssh: the logins, their tunnels, and the notebook's ends of the host processes there.

Runs in: the notebook's kernel, or a script.
Called by: ``hosts.reached_hosts`` and ``discovery``.
May call: ``hosts.host_end``, ``hosts.reachable_addresses``, ``messages``, ``machine``, ``allranks_backends``.
"""
