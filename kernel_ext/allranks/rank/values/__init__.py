"""The user's variables: described without evaluating anything, saved to a file, restored.

Runs in: a rank's main thread.
Called by: ``rank.agent``, ``rank.cell``, ``rank.world``, and ``rank.process`` for a trial load.
May call: ``rank.arrays``, ``rank.collectives``, ``pickling``, ``messages``, ``machine``.
"""
