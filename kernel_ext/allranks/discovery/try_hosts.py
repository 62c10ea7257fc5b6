"""Start ranks on the hosts as `up` does, so that the doctor knows whether that works before it looks for causes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby, islice
from pathlib import Path

from zmq import ZMQError

from allranks.cluster_settings import Settings
from allranks.errors import Apart, CannotStart, HostCause
from allranks.head.world.choose_network import pairs
from allranks.head.world.ranks import START_TRIES, Ranks
from allranks.hosts_from_options import HERE, rdma_links
from allranks.machine.shortages import cannot_start
from allranks.notebook.stop_button import undisturbed
from allranks.up_options import UpOptions
from allranks_backends.plan import Host
from allranks_backends.registry import cannot_run, choose, get_backend

STAND_IN = "ring"
"""The trial's backend if the requested one would occupy devices (RDMA, GPUs) or has its ranks started by mpirun."""
EACH = 2
"""Maximum ranks started per host; few, since a ring's ranks poll while they wait. For an exception see `_few`."""


@dataclass(frozen=True)
class TrialStart:
    """How far the trial got. Everything that it started has ended."""

    refused: str = ""
    """The error message of `up`; empty if nothing that was tried failed."""
    formed: bool = False
    """Whether the world was formed over the requested backend, so that `up` works."""
    causes: Sequence[HostCause] = ()
    apart: Sequence[Apart] = ()
    reached: Sequence[tuple[str, str]] = ()
    """Pairs of hosts: the first host had to reach the second. Empty if the trial did not get that far."""
    addresses: Mapping[str, str] = field(default_factory=dict)
    """The address at which the other hosts were to reach each host."""

    @property
    def not_logged_in(self) -> dict[str, HostCause]:
        """The cause for each host whose shell ran no command."""
        return {cause.host: cause for cause in self.causes if not cause.logged_in}

    @property
    def hanging(self) -> set[str]:
        """The hosts whose Python hangs while it starts."""
        return {cause.host for cause in self.causes if cause.hangs}


def try_up(
    hosts: Sequence[Host], *, backend: str, python: str | None, cwd: str | Path | None, env: Mapping[str, str]
) -> TrialStart:
    """Start ranks on `hosts`, which has one entry per rank, as `Cluster.up` does, and end them.

    Starts at most `EACH` ranks on each host, or more if hosts would otherwise have neighbours that they do not have
    with all ranks. Raises UsageError as `Cluster` does.
    """
    asked = UpOptions(name="doctor", python=python, cwd=cwd, lease=0)
    settings = Settings.of(asked, hosts, backend, env)
    for tries_left in reversed(range(START_TRIES)):
        trial, again = _try_once(settings, hosts, backend)
        if not (again and tries_left):
            break
    return trial


def _try_once(settings: Settings, hosts: Sequence[Host], backend: str) -> tuple[TrialStart, bool]:
    """Make one attempt; returns the outcome, and whether another attempt may succeed."""
    ranks = None
    try:
        with undisturbed():  # a half-constructed `Ranks` could not be ended
            ranks = Ranks(settings, forks=any(host.local for host in hosts))
        sites = ranks.sites(hosts)
        if backend == "auto":
            mesh, ring = rdma_links(hosts)
            backend, _ = choose(sites, rdma_mesh=mesh, rdma_ring=ring)
        elif reason := cannot_run(backend, sites):
            raise CannotStart(reason)
        runtime = get_backend(backend)
        whole = runtime.launcher == "engines" and runtime.needs == "network"
        few = _few(hosts, backend)
        ranks.plan_next(few, backend if whole else STAND_IN)
        ranks.launch(range(len(few)))
        if whole:
            ranks.form()
        else:
            ranks.connect()
            ranks.look_at_network(backend)
        return TrialStart(formed=whole, reached=_pairs(ranks.hosts, backend), addresses=_addresses(ranks)), False
    except CannotStart as error:
        reached = _pairs(ranks.hosts, backend) if ranks is not None and error.apart else []
        addresses = _addresses(ranks) if ranks is not None else {}
        return TrialStart(str(error), False, error.causes, error.apart, reached, addresses), error.transient
    except (OSError, ZMQError) as error:  # this machine lacks a resource; other hosts' failures raise CannotStart
        why = cannot_start(error)
        return TrialStart(why, causes=[HostCause(HERE.name, why)]), False
    finally:
        if ranks is not None:
            with undisturbed():
                ranks.end()


def _few(hosts: Sequence[Host], backend: str) -> list[Host]:
    """The hosts of the first `EACH` ranks of each host, in order.

    If hosts would then have neighbours that they do not have with all ranks, the hosts of the first `EACH` ranks of
    each series of consecutive ranks on a host.
    """
    begun = Counter[str]()
    few = list[Host]()
    for host in hosts:
        begun[host.name] += 1
        if begun[host.name] <= EACH:
            few.append(host)
    if {*_pairs(few, backend)} <= {*_pairs(hosts, backend)}:
        return few
    return [host for _, row in groupby(hosts, lambda host: host.name) for host in islice(row, EACH)]


def _pairs(hosts: Iterable[Host], backend: str) -> list[tuple[str, str]]:
    return pairs(backend, [host.name for host in hosts])


def _addresses(ranks: Ranks) -> dict[str, str]:
    return {host.name: host.addresses[0] for host in ranks.hosts if host.addresses}
