"""``%%distributed --timeline``: what each rank did when, as text, picture and trace file.

Runs in: the notebook's kernel, or a script; the ranks record it (``rank.collectives.trace``).
Called by: ``cluster``.
May call: ``bench``, ``head``, ``lifeline``, ``messages``.
"""
