"""Collective runtimes and machines: pure planning, no processes, no IPython, no widgets."""
