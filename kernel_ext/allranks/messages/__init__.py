"""Messages between processes: the types of `requests` and `events`, both ends of the lifeline, values as buffers.

Runs in: every process of ours.
Called by: every room but ``magics``.
May call: nothing of allranks but ``errors``.
"""
