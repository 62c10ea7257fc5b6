"""Macs joined by Thunderbolt: ports, cables, addresses of cables, and the hostfile. Pure: answers in, facts out.

Called by: ``machines``, ``allranks.discovery`` and the doctor.
May call: ``runtimes.jaccl``, ``interfaces``, ``plan``, ``protocol``.
"""
