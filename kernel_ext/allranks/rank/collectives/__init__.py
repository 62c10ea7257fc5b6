"""The ledger of collectives: their numbers, order and times, and how aborted collectives raise.

Runs in: a rank's main thread and the user's threads; the agent's thread reads, refuses collectives and notes aborts.
Called by: ``rank.main_thread``, ``rank.debug``, ``rank.values``, ``rank.metrics``, ``rank.world``, ``rank.cell``,
``rank.agent``, and the user's code: through ``mark``, ``mx.eval``, ``mx.async_eval`` and the operations of
``mx.distributed``. The functions of MLX are wrapped here.
May call: ``messages``, ``rank.functions`` and ``rank.arrays``.
"""
