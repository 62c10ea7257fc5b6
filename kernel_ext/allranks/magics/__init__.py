"""What users type: ``%distributed VERB``, ``%%distributed``, ``%%rank``, their options, completion and help.

Runs in: the notebook's kernel.
Called by: IPython, after ``%load_ext allranks``; ``allranks.current``.
May call: everything but the subpackages of a rank's process. It parses and delegates; nothing is decided here.
"""
