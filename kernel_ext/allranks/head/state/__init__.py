"""The state of the ranks: their reports, one Snapshot made of them, and the history of traffic and logged values.

Runs in: where the head runs; fed by the threads of the lifeline and of the host processes.
Called by: ``head.cell``, ``head.world``, ``cluster``, ``experiment``, ``files``, ``magics``, ``timeline``; ``notebook``
reads.
May call: ``lifeline``, ``messages``, ``allranks_backends``. It decides nothing, and sends only acknowledgements, and
`Exit` to ranks that were replaced.
"""
