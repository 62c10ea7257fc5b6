"""Joining an MLX world, aborting its collectives, leaving it, and joining the next one in the same process.

Runs in: a rank's main thread; an abort comes from the agent's.
Called by: ``rank.cell``, ``rank.agent``, ``rank.process``, ``rank.probe``; ``host_process`` holds a rank's sockets;
``allranks`` exports `communicator`.
May call: ``machine``, ``rank.debug``, ``rank.values``, ``rank.metrics``, and the packages that these call.
"""
