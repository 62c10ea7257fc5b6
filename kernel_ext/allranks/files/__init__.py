"""The notebook's working folder on other hosts: what of it is sent, and what each host has.

Runs in: the notebook's kernel, or a script.
Called by: ``cluster``.
May call: ``notebook``, ``head``, ``messages``.
"""
