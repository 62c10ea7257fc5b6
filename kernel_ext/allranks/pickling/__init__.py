"""Turns values into buffers and back, to send them between the notebook and the ranks, or to save them to disk.

Runs in: the notebook's kernel, and a rank's process.
Called by: ``cluster``, ``head``, ``magics`` and ``rank``.
May call: nothing of allranks; it uses the types of ``messages``.
"""
