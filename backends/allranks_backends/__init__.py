"""Collective runtimes and machines: code that plans worlds and diagnoses hosts, without ranks, IPython or widgets."""
