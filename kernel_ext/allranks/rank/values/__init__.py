"""The user's variables: described without evaluating anything, saved to a file, restored.

Runs in: a rank's main thread; a rescue, `read_values`, and comparing and writing a snapshot run in other threads.
Called by: ``rank.agent``, ``rank.cell``, ``rank.world``, and ``rank.process`` for a trial load; ``allranks`` exports
`checkpoint.load_variables` for cells.
May call: ``rank.arrays``, ``rank.collectives``, ``pickling``, ``messages``, ``machine``.
"""
