"""The types of messages between processes: `requests` and `events` of the lifeline, and the lines of host processes.

Runs in: every process of allranks.
Called by: all subpackages but ``discovery``, ``environments``, ``experiment`` and ``machine``.
May call: nothing of allranks but ``errors`` and ``typed_options``.
"""
