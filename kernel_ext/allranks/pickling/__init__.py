"""Values as buffers, and back: what the notebook and ranks send each other, and what is saved to disk.

Runs in: the notebook's kernel, and a rank's process.
Called by: ``cluster``, ``head`` and ``rank``.
May call: nothing of allranks; it uses the types of ``messages``.
"""
