"""MLX's functions as a rank has them: replaced so that they behave as MLX's do, transforms, streams, what is refused.

Runs in: a rank's main thread.
Called by: ``rank.arrays``, ``rank.collectives`` and the rank's world.
May call: ``messages``.
"""
