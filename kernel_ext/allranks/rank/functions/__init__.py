"""MLX's functions in a rank: replacements that behave like them, transformations, streams, and refused operations.

Runs in: a rank's main thread.
Called by: ``rank.arrays``, ``rank.collectives`` and the rank's world.
May call: ``pickling``, ``messages``.
"""
