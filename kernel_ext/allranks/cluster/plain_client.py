"""A plain ipyparallel client of the ranks' engines."""

from __future__ import annotations

import time
from typing import Any

from allranks.errors import CannotStart

from .live_ranks import LiveRanks


def plain_client(live: LiveRanks) -> Any:
    """See `Cluster.client`."""
    if why := live.ranks_up().process_events.no_controller:
        raise CannotStart(
            f"plain ipyparallel cannot reach the ranks: {why}. Cells still run; "
            "%distributed down, then %distributed up starts another one."
        )
    if live.client is None:
        import ipyparallel

        client = ipyparallel.Client(str(live.ranks_up().host.connection_file))
        # An engine counts as registered after a heartbeat; ours are up already, so this is at most a second or two.
        deadline, alive = time.monotonic() + 10, live.ranks_up().monitor.alive()
        while len(client.ids) < len(alive) and time.monotonic() < deadline:
            time.sleep(0.02)
        # ZeroMQ passes on no output of the engines until the client's subscription has reached them.
        heard = any(rank.busy or rank.silent for rank in alive)
        while not heard and time.monotonic() < deadline:
            heard = client[:].execute("", silent=True).wait_for_output(1)
        live.client = client
    return live.client
