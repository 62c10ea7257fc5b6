"""The hosts that one cluster has reached: this machine, hosts that were logged in to, and hosts that joined."""

from __future__ import annotations

import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from allranks.cluster_settings import Settings
from allranks.lifeline.head_end import Lifeline
from allranks.machine.addresses import own_addresses
from allranks.machine.describe_host import cuda_devices
from allranks_backends.plan import Host, Platform, Site
from allranks_backends.registry import get_backend
from allranks_backends.runtimes.nccl import SHARE, shared, visible_devices

from .accept_scheduler_ranks import Listener, Progress
from .host_end import HostEnd, OnEvent
from .joined_host import JoinedHost
from .local import LocalHost
from .reachable_addresses import LOOPBACK, HostNetwork, reachable_addresses, shared_networks
from .ssh.interpreter import Interpreter, interpreter_of
from .ssh.many_logins import reach
from .ssh.remote import RemoteHost, SavedHost

CONTROLLER_STAYS = 7 * 86400.0
"""Extra seconds, after the lease, that the controller keeps running if there are other hosts. It cannot know whether
ranks there still run a cell."""


class Hosts:
    """The notebook's ends of all host processes."""

    _on_event: Callable[[str], OnEvent]

    def __init__(self, settings: Settings, here: LocalHost, listener: Listener | None) -> None:
        self._settings = settings
        self.here = here
        """This machine."""
        self.others: dict[str, RemoteHost | JoinedHost] = {}
        """The other hosts, by name."""
        self.others_fork = True
        """Whether hosts import the ranks' modules as they are reached: False if `mpirun` will start their ranks."""
        self.listener = listener
        """Accepts ranks started by a scheduler or by ipyparallel's engines; None if the cluster uses neither."""
        self.networks: list[dict[str, str]] = []
        """The hosts' addresses, by host, in each network that all hosts share.

        Empty if an address was named, or chosen for an earlier world, or if all hosts are this machine.
        """

    def follow(self, on_event: Callable[[str], OnEvent]) -> None:
        """Handle the events of this machine now, and of other hosts once they are reached.

        `on_event` takes a host's name and returns the function that handles the host's events.
        """
        self._on_event = on_event
        self.here.follow(on_event(self.here.name))

    def end_of(self, host: Host) -> HostEnd:
        """The notebook's end of the host process of `host`."""
        return self.here if host.local else self.others[host.name]

    def end_at(self, name: str) -> HostEnd:
        """The notebook's end of the host process named `name`."""
        return self.here if name == self.here.name else self.others[name]

    def ask_ports(self, host: Host, count: int) -> Callable[[], list[int]]:
        """Ask `host` for free TCP ports (see `HostEnd.ask_ports`)."""
        return self.end_of(host).ask_ports(count)

    # Reaching hosts.

    def gather(self, count: int | None, timeout: float, progress: Progress) -> list[Host]:
        """Wait for the ranks that a scheduler starts; returns each rank's host. Raises CannotStart."""
        assert self.listener is not None
        hosts, ends = self.listener.gather(count, timeout, progress, self._on_event)
        self.others.update(ends)
        return hosts

    def refill(self, hosts: Sequence[Host]) -> list[Host]:
        """Return `hosts` with each gone joined host replaced by one that has joined since. Raises CannotStart."""
        assert self.listener is not None
        joined = {name: end for name, end in self.others.items() if isinstance(end, JoinedHost)}
        placed, living = self.listener.refill(hosts, joined, self._on_event)
        self.others.update(living)
        return placed

    def log_in(self, hosts: Sequence[Host]) -> None:
        """Log in to each of `hosts` that has no living host process. Raises CannotStart."""
        wanted = {host.name: host for host in hosts if not host.local}
        missing = [host for name, host in wanted.items() if name not in self.others or not self.others[name].alive]
        for host in missing:
            if host.name in self.others:
                self.others[host.name].end()
        ends = reach(
            missing,
            python=self._interpreter,
            engine_info=self.here.engine_info,
            lifeline_url=self.here.lifeline_url,
            on_event=self._on_event,
            forks=self.others_fork,
        )
        self.others.update({end.name: end for end in ends})

    def _interpreter(self, host: Host) -> Interpreter:
        named = self._settings.python if self._settings.python_named else None
        return interpreter_of(host.python or named)

    def keep(self, file: Path) -> None:
        """Have all host processes outlive this process by the lease; `file` tells another process how to attach."""
        lease, stays, saver = self._settings.lease, self._settings.stays, self._settings.saver()
        kept = [end.keep(lease, longer=stays) for end in self.others.values()]
        longer = stays + (CONTROLLER_STAYS if self.others else 0.0)
        kept.append(self.here.keep(lease, file, longer=longer, saver=saver, says=f"{file.with_suffix('')}-save.log"))
        for wait in kept:
            wait()

    def saved(self) -> dict[str, SavedHost]:
        """By name of each ssh host, the information with which another head can log in to it again."""
        return {name: end.saved() for name, end in self.others.items() if isinstance(end, RemoteHost)}

    def log_in_again(self, hosts: Sequence[Host], saved: Mapping[str, SavedHost], within: float) -> None:
        """Reconnect to hosts that another head logged in to, and wait up to `within` seconds for all of them.

        Hosts that cannot be reached by then are retried in the background.
        """
        for host in {host.name: host for host in hosts if host.name in saved}.values():
            self.others[host.name] = RemoteHost.again(
                host,
                saved[host.name],
                engine_info=self.here.engine_info,
                lifeline_url=self.here.lifeline_url,
                on_event=self._on_event(host.name),
            )
        deadline = time.monotonic() + within
        for end in self.others.values():
            if isinstance(end, RemoteHost):
                end.wait_reached(deadline)

    # What hosts report about themselves.

    def with_addresses(self, hosts: Sequence[Host]) -> list[Host]:
        """Return `hosts` with their CUDA devices and, unless all are local, with an address for each that has none.

        For this machine, the loopback address counts as none.
        """
        counts = Counter(host.name for host in hosts)
        devices = {host.name: self._devices(host, counts[host.name]) for host in hosts}
        if all(host.local for host in hosts):
            return [replace(host, cuda=devices[host.name]) for host in hosts]
        told = {host.name: self._network(host) for host in hosts}
        found = reachable_addresses(told)
        nameless = {host for host in hosts if not host.addresses or (host.local and host.addresses == (LOOPBACK,))}
        self.networks = shared_networks(told) if nameless == set(hosts) else []
        placed = [
            replace(host, addresses=(found[host.name],)) if host in nameless and host.name in found else host
            for host in hosts
        ]
        return [replace(host, cuda=devices[host.name]) for host in placed]

    def _network(self, host: Host) -> HostNetwork:
        """The network of `host`, limited to its addresses that were named or chosen before, if there are any."""
        if host.local:
            seen = (end.sees_notebook_at for end in self.others.values() if isinstance(end, RemoteHost))
            told = HostNetwork(own_addresses(), next(filter(None, seen), None))
        else:
            told = self.others[host.name].network
        fixed = [each for each in told.own if each.partition("/")[0] in host.addresses]
        return HostNetwork(fixed, host.addresses[0]) if fixed else told

    def _devices(self, host: Host, ranks: int) -> tuple[str, ...]:
        """The CUDA devices for `ranks` ranks on `host`; empty if all may be used, each by one rank."""
        environ = {**os.environ, **self._settings.env} if host.local else self._settings.env
        if "CUDA_VISIBLE_DEVICES" in self._settings.env or host.local:
            chosen = visible_devices(environ)
        else:
            chosen = self.others[host.name].cuda
        if not chosen and SHARE in environ:  # `shared` assigns devices in turn, and needs all their numbers
            there = cuda_devices() if host.local else self.others[host.name].platform.cuda_devices
            chosen = tuple(map(str, range(there)))
        return shared(chosen, environ, ranks)

    def sites(self, reached: Sequence[Host], here: Platform) -> list[Site]:
        """What each host can run; `reached` has one entry per rank. This machine, with platform `here`, comes first."""
        counts = Counter(host.name for host in reached)
        by_name = {host.name: host for host in reached}
        others = [
            Site(name, _with_devices(self._platform(name), host.cuda), counts[name], local=False)
            for name, host in by_name.items()
            if not host.local
        ]
        mine = by_name.get(self.here.name)
        platform = _with_devices(here, mine.cuda if mine else ())
        if counts[self.here.name] and self._settings.python_here != self._settings.python:
            platform = replace(platform, other_python=self._settings.python_here)
        return [Site(self.here.name, platform, counts[self.here.name]), *others]

    def cores(self, names: Iterable[str]) -> dict[str, int]:
        """Map those of `names` that are this machine, or a host that was logged in to, to their number of cores."""
        known = {self.here.name: os.cpu_count() or 1}
        for end in self.others.values():
            if isinstance(end, RemoteHost) and end.prepared is not None:
                known[end.name] = end.prepared.cores
        return {name: known[name] for name in names if name in known}

    def _platform(self, name: str) -> Platform:
        end = self.others[name]
        python = end.python if isinstance(end, RemoteHost) else self._settings.python
        return replace(end.platform, other_python="" if python == self._settings.python else python)

    def worth_naming(self, backend: str, *, rdma: bool) -> bool:
        """Whether to suggest `backend` to the user; it can run on these hosts.

        A backend that needs RDMA, such as JACCL, is suggested only with `rdma`. A launched backend, such as MPI, is not
        suggested if a scheduler starts the ranks.
        """
        runtime = get_backend(backend)
        return (rdma or runtime.needs != "rdma") and (self.listener is None or runtime.launcher == "engines")

    def meet_at(self) -> list[str]:
        """The addresses that this machine and its ssh hosts use for each other.

        Empty if no ssh host is alive, if one did not report its addresses, or if NAT or a jump host changes them.
        """
        ends = [end for end in self.others.values() if end.alive and isinstance(end, RemoteHost)]
        here = {end.sees_notebook_at for end in ends}
        own = {address.partition("/")[0] for address in own_addresses()}
        return [*map(str, here), *(str(end.network.used) for end in ends)] if ends and here <= own else []

    @property
    def have_ended(self) -> bool:
        """Whether there are other hosts, and all their host processes have ended."""
        return bool(self.others) and not any(end.alive for end in self.others.values())

    @property
    def left_behind(self) -> dict[str, list[object]]:
        """By name of each ssh host, the clusters that ran there without a notebook when we logged in."""
        ends = (end for end in self.others.values() if isinstance(end, RemoteHost))
        return {end.name: end.prepared.left_behind for end in ends if end.prepared is not None}

    @property
    def away(self) -> list[str]:
        """Names of the living hosts that are out of reach."""
        return [end.name for end in self.others.values() if end.alive and end.away]

    def log(self) -> str:
        """The errors that the host processes reported, one entry per host that reported any."""
        logs = [self.here.log(), *(f"{end.name}: {end.log()}" for end in self.others.values() if end.log())]
        return "".join(f"\n{log}" for log in logs if log)

    # Ending.

    def end(self, lifeline: Lifeline) -> None:
        """End all processes of the cluster on all hosts, remove its files there, and close the `lifeline`."""
        others: list[HostEnd] = list(self.others.values())
        if self.listener is not None:  # joined hosts are reached over the lifeline, so close it after they end
            self.listener.close()
            _end_all(others)
            lifeline.close()
            return _end_all([self.here])
        lifeline.close()
        _end_all([*others, self.here])


def _with_devices(platform: Platform, chosen: Sequence[str]) -> Platform:
    """Limit `platform` to the CUDA devices in `chosen`; a shared device counts once for each of its ranks."""
    own = len(set(chosen))
    return replace(platform, cuda_devices=min(platform.cuda_devices, own) * len(chosen) // own) if own else platform


def _end_all(ends: Sequence[HostEnd]) -> None:
    threads = [threading.Thread(target=end.end) for end in ends[1:]]
    for thread in threads:
        thread.start()
    for end in ends[:1]:
        end.end()
    for thread in threads:
        thread.join()
