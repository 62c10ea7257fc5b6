"""The types of messages between processes: `requests` and `events` of the lifeline, and the lines of host processes.

Runs in: every process of ours.
Called by: every room but ``magics``.
May call: nothing of allranks but ``errors``.
"""
