"""What is known of the ranks: from their reports to one Snapshot, and the records of traffic and logged figures.

Runs in: where the head runs; fed by the lifeline's thread.
Called by: ``head.cell``, ``head.world``, ``cluster``; ``notebook`` reads.
May call: ``messages``. It sends nothing and decides nothing.
"""
