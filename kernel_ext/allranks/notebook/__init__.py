"""What is shown in a notebook or a terminal: folded output, live lines, prompts, and what widgets are fed with.

Runs in: the notebook's kernel.
Called by: ``cluster``, ``magics`` and the rooms of the verbs.
May call: ``head`` (to look at its state) and ``messages``.
"""
