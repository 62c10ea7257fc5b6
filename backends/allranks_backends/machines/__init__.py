"""What machines can run: this machine, and Linux hosts joined by Ethernet.

Called by: ``registry`` and ``allranks.discovery``.
May call: ``runtimes``, ``thunderbolt``, ``plan``.
"""
