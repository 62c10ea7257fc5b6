"""Files on other hosts: the notebook's working folder, what is fetched from there, and what hosts send each other.

Runs in: the notebook's kernel, or a script.
Called by: ``cluster``.
May call: ``notebook``, ``head``, ``messages``.
"""
