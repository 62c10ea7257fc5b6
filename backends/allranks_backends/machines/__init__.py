"""What machines can run: this machine, and hosts joined by Ethernet.

Called by: ``registry``, the doctor and ``allranks.discovery``.
May call: ``runtimes``, ``thunderbolt``, ``plan``, ``protocol``.
"""
