"""MLX's functions in a rank: replacements that behave like them, transformations, streams, and refused operations.

Runs in: a rank's process, in any thread that calls MLX; a process that tries to load a checkpoint.
Called by: ``rank.arrays``, ``rank.collectives``, ``rank.main_thread``, ``rank.metrics``, ``rank.world``, and
``rank.process`` for a trial load.
May call: ``pickling``, ``messages``.
"""
