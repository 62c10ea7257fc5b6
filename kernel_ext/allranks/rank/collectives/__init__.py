"""The ledger of collectives: their numbers, order and times, and how aborted collectives raise.

Runs in: a rank's main thread; the agent's thread reads.
Called by: ``rank.main_thread``, ``rank.debug``, ``rank.values``, ``rank.metrics``, ``rank.world``, ``rank.cell``,
``rank.agent``, and the user's code through the operations of ``mx.distributed``, which are wrapped here.
May call: ``messages``, ``rank.functions`` and ``rank.arrays``.
"""
