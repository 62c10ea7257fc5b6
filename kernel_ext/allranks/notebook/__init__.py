"""Display in a notebook or a terminal: folded output, live lines, prompts, and the data for widgets.

Runs in: the notebook's kernel, or a script.
Called by: ``cluster``, ``magics``, ``demo``, ``experiment``, ``probe`` and the subpackages of the verbs.
May call: ``head`` (to read its state), ``lifeline`` and ``messages``.
"""
