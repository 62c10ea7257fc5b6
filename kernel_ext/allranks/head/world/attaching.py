"""Takes over a cluster whose notebook is gone, by means of the file that the notebook left."""

from __future__ import annotations

from zmq import ZMQError

from allranks.errors import NoCluster
from allranks.head.state.widget_comms import WidgetComms
from allranks.messages.requests import Register

from .detached_cluster_file import Detached, detached_file, left_behind, read_detached
from .ranks import Ranks

CONNECTED_WITHIN = 10.0
"""Seconds that ranks get to find the new notebook; they try once a second."""
TOLD_WITHIN = 3.0
"""Seconds that ranks, once connected, get to tell whether they still run the previous notebook's cell."""


def attach(name: str, comms: WidgetComms) -> Ranks:
    """Take over the detached cluster called `name`. Raises NoCluster if there is none, or if it cannot be attached."""
    kept = read_detached(name)
    if kept is None:
        others = ", ".join(other for other, each in left_behind().items() if not each.why_not)
        raise NoCluster(
            f"no detached cluster named {name!r}. " + (f"Available: {others}. " if others else "") + "Only "
            "clusters started with %distributed up --keep, or on other hosts, can be attached, and only on the machine "
            "of their notebook. To find it: allranks list --hosts HOSTS"
        )
    if not kept.exists:  # also if another version started it: nothing else removes its file
        raise _gone(name)
    try:
        ranks = Ranks(kept.asked_for(), kept, comms)
    except ZMQError:
        why = f"the notebook of process {kept.notebook[0]} is attached to the cluster {name!r}: end its kernel first."
        if not kept.has_notebook:
            why = f"another program has the address {kept.url}, where the ranks of {name!r} look for a notebook."
        raise NoCluster(why) from None
    except OSError:
        raise _gone(name) from None
    _await(ranks, kept)
    if ranks.reached.have_ended and not ranks.monitor.alive():
        ranks.end()
        raise NoCluster(
            f"the ranks of the cluster {name!r} have ended: their lease has run out, or their hosts were restarted."
        )
    return ranks


def _gone(name: str) -> NoCluster:
    """Remove the file of a cluster that has ended; return the error that says so."""
    detached_file(name).unlink(missing_ok=True)
    return NoCluster(f"the cluster {name!r} no longer runs: its host process has ended.")


def _await(ranks: Ranks, kept: Detached) -> None:
    """Reconnect to the hosts, wait for their ranks to connect, and mark ranks that have ended as dead."""
    monitor = ranks.monitor
    ranks.reached.log_in_again(ranks.hosts, kept.saved_hosts, CONNECTED_WITHIN)
    monitor.wait(lambda: not monitor.awaited(), CONNECTED_WITHIN)
    monitor.state = "whole" if kept.whole and len(monitor.alive()) == len(monitor.ranks) else "broken"
    for rank in monitor.awaited():
        # A rank without a pid was to be started by the previous notebook, which ended first.
        if not rank.pid or not ranks.reached.end_at(rank.host).runs(rank.pid):
            ranks.process_events.died(rank.rank, "ended while no notebook was attached")
    # The previous notebook may not have acknowledged the end of a cell. The rank then greets as if it still ran it.
    monitor.wait(lambda: all(rank.cell is None or rank.report.running for rank in monitor.alive()), TOLD_WITHIN)
    for rank in monitor.alive():
        ranks.lifeline.tell(rank.uuid, Register())  # its controller may have been replaced meanwhile
    ranks.save()
