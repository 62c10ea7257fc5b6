"""The user's variables: described without evaluating anything, saved to a file, restored.

Runs in: a rank's main thread.
Called by: ``rank.agent``, ``rank.cell``, ``rank.world``.
May call: ``rank.collectives``, ``pickling``, ``messages``.
"""
