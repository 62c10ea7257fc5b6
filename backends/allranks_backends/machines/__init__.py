"""Machines as they are: what this one can run, and Linux hosts joined by Ethernet.

Called by: ``registry`` and ``allranks.discovery``.
May call: ``runtimes``, ``thunderbolt``, ``plan``.
"""
