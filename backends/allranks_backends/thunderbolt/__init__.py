"""Macs joined by Thunderbolt: ports, cables, addresses for them, the hostfile they allow. Pure: answers in, facts out.

Called by: ``machines``, ``allranks.discovery`` and the doctor.
May call: ``runtimes.jaccl``, ``interfaces``, ``plan``.
"""
