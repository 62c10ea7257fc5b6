"""The state of the ranks: their reports, one Snapshot made of them, and the history of traffic and logged values.

Runs in: where the head runs; fed by the lifeline's thread.
Called by: ``head.cell``, ``head.world``, ``cluster``; ``notebook`` reads.
May call: ``lifeline``, ``messages``. It decides nothing, and sends only acknowledgements, and `Exit` to ranks that
were replaced.
"""
