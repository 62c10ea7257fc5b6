"""Hosts reached by ssh: the logins, their tunnels, and the notebook's ends of the host processes there.

Runs in: the notebook's kernel, a script, or a shell's command.
Called by: ``hosts.reached_hosts``, ``hosts.joined_host``, ``head.world``, ``discovery``, ``environments``, ``magics``.
May call: ``hosts.host_end``, ``hosts.reachable_addresses``, ``messages``, ``machine``, ``allranks_backends``.
"""
