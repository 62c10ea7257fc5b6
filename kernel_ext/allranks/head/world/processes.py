"""Starts the ranks' processes on their hosts, one by one or by mpirun, and ends them."""

from __future__ import annotations

import os
import platform
import secrets
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import psutil

from allranks.cluster_settings import Settings
from allranks.head.state.known_rank import Rank
from allranks.head.state.monitor import Monitor
from allranks.hosts.host_end import HostEnd
from allranks.hosts.joined_host import JoinedHost
from allranks.hosts.reached_hosts import Hosts
from allranks.hosts.ssh.remote import RemoteHost
from allranks.lifeline.head_end import Lifeline
from allranks.messages.host_messages import DescribeCluster, RankConfig
from allranks.messages.requests import Exit, Spawn
from allranks_backends.plan import WorldPlan
from allranks_backends.protocol import Backend
from allranks_backends.registry import get_backend
from allranks_backends.runtimes.mpi import find_mpirun

from .detached_cluster_file import cluster_id
from .process_events import ProcessEvents

RELEASED_WITHIN = 3.0
"""Seconds a rank gets after SIGTERM to free its RDMA resources and end."""
END_WITHIN = 6.0
"""Seconds that processes get to end, or to be reported as started."""
_SIGTERM, _SIGKILL = 15, 9


class Processes:
    """Starts and ends processes. It does not know the world: each method gets the plan, or the backend and ranks."""

    def __init__(
        self, settings: Settings, monitor: Monitor, lifeline: Lifeline, hosts: Hosts, process_events: ProcessEvents
    ) -> None:
        self._settings, self._monitor, self._lifeline = settings, monitor, lifeline
        self._hosts, self._process_events = hosts, process_events
        self._cluster = cluster_id(settings.token)
        """The cluster's id, by which a launcher's ranks find their settings on their host; equal in all notebooks."""
        self._offered = set[str]()
        """The uuids of ranks that other ranks are to start."""
        self.first_generation = 0
        """The first generation that the current mpirun's ranks form; until then, they cannot start other ranks."""

    def end_of_rank(self, number: int) -> HostEnd:
        """Return the notebook's end of the host process on the rank's host."""
        return self._hosts.end_at(self._monitor.ranks[number].host)

    # Start.

    def launch(self, plan: WorldPlan, numbers: Sequence[int]) -> None:
        """Start new processes for these ranks of the plan; they replace the ranks' earlier processes, if any."""
        configs = [self._rank_config(plan, number) for number in numbers]
        self._process_events.launcher = None  # a late report that the previous mpirun ended must not end new ranks
        for each in configs:
            self._monitor.put(Rank(each.rank, each.host, each.uuid))
        self._process_events.repeat(self._hosts.others.values())
        backend: Any = get_backend(plan.backend)
        if backend.launcher == "mpirun":
            self._launch_mpi(plan, backend, configs)
        else:
            by_host: dict[str, list[RankConfig]] = {}
            for each in configs:
                by_host.setdefault(each.host, []).append(each)
            for members in by_host.values():
                self.end_of_rank(members[0].rank).start(members)

    def _rank_config(self, plan: WorldPlan, number: int) -> RankConfig:
        shared, host = self._settings, plan.placements[number].host
        end = self._hosts.end_of(host)
        return RankConfig(
            number,
            end.name,
            secrets.token_hex(8),
            str(end.directory / f"rank-{number}"),
            shared.token,
            end.lifeline_url,
            self._lifeline.keys[0],
            end.engine_info,
            cwd=shared.folders.get(end.name) or host.cwd or shared.cwd,
            cwd_may_lack=shared.options.sync or not (host.local or host.cwd or shared.cwd_named),
            env=dict(shared.env),
            lease=shared.lease_of_ranks,
        )

    def offer(self, plan: WorldPlan, numbers: Sequence[int]) -> list[Spawn]:
        """Write the settings of new ranks that other ranks are to start; return how to start them."""
        configs = [self._rank_config(plan, number) for number in numbers]
        for each in configs:
            self._monitor.put(Rank(each.rank, each.host, each.uuid))
        self._offered = {each.uuid for each in configs}
        self._offer(configs)
        return [self._spawn(each) for each in configs]

    def _spawn(self, config: RankConfig) -> Spawn:
        which = ["--cluster", self._cluster, "--number", str(config.rank), "--uuid", config.uuid]
        return Spawn(config.rank, [self._settings.python, "-m", "allranks.rank", *which])

    def _offer(self, configs: Sequence[RankConfig]) -> None:
        """Give each host the settings of its own ranks; the ranks find their settings by the cluster's id."""
        for end in {id(end): end for end in map(self.end_of_rank, (each.rank for each in configs))}.values():
            end.offer(self._cluster, [each for each in configs if self.end_of_rank(each.rank) is end])

    def _launch_mpi(self, plan: WorldPlan, backend: Any, configs: Sequence[RankConfig]) -> None:
        as_root = os.geteuid() == 0
        join = ["--join", "{join}"]
        if self._hosts.others:
            self._offer(configs)
            join = ["--cluster", self._cluster]
        here = self._hosts.here
        hostfile, text = here.directory / "mpi-hosts", backend.hostfile(plan)
        if text is not None:
            hostfile.write_text(text)
        command = backend.command(
            plan,
            mpirun=find_mpirun(),
            python_args=[self._settings.python, "-m", "allranks.rank", *join],
            mpi_args=self._settings.options.mpi_args,
            as_root=as_root,
            cores=os.cpu_count() or 1,
            hostfile=str(hostfile) if text is not None else None,
            reached_at=self._hosts.meet_at(),
        )
        self.first_generation = plan.generation
        here.launch(command, backend.launcher_env(as_root=as_root), configs)

    def on_their_way(self, backend: Backend, numbers: Sequence[int]) -> list[Rank]:
        """Return which of these ranks have been started but have not reported yet."""
        self._know(numbers)
        silent = [
            rank for rank in map(self._monitor.ranks.__getitem__, numbers) if not rank.received_at and not rank.dead
        ]
        if backend.launcher == "mpirun":
            return [rank for rank in silent if self._process_events.launcher and rank.uuid not in self._offered]
        return [rank for rank in silent if rank.pid]

    def describe(self, plan: WorldPlan) -> None:
        """Have each host write down the cluster that its ranks belong to."""
        hosts = list(dict.fromkeys(placement.host.shown for placement in plan.placements))
        reached = {name: end for name, end in self._hosts.others.items() if end.alive}
        logins = {name: end.python for name, end in reached.items() if isinstance(end, RemoteHost)}
        for end in (self._hosts.here, *self._hosts.others.values()):
            if isinstance(end, JoinedHost):  # a scheduler lists and ends its processes itself
                continue
            members = [rank for rank in self._monitor.ranks if rank.host == end.name and not rank.dead]
            pids = {f"rank {rank.rank}": rank.pid for rank in members if rank.pid}
            end.describe(
                DescribeCluster(
                    self._cluster,
                    self._settings.name,
                    plan.backend,
                    plan.size,
                    hosts,
                    logins,
                    end.name,
                    f"process {os.getpid()} on {platform.node()}",
                    end.python if isinstance(end, RemoteHost) else self._settings.python_here,
                    pids,
                )
            )

    # End.

    def _know(self, numbers: Sequence[int]) -> None:
        """Wait until the pids of these ranks are known: their start may have been requested a moment ago."""
        for end in {id(end): end for end in map(self.end_of_rank, numbers)}.values():
            end.wait_started(END_WITHIN)

    def stop(self, backend: Backend, numbers: Sequence[int], *, everybody: bool) -> None:
        """End these ranks' processes and wait until they are gone; their ends do not count as deaths.

        `everybody`: whether these are all ranks; then mpirun is ended, too.
        """
        self._know(numbers)
        ended = {number: pid for number in numbers if (pid := self._monitor.ranks[number].pid)}
        for number in numbers:
            self._monitor.ranks[number].pid = None  # its end must not be taken for the rank's death
        if backend.launcher == "mpirun" and everybody:
            self._stop_mpi(ended)
        elif backend.launcher == "mpirun":
            for number in numbers:
                self._lifeline.tell(self._monitor.ranks[number].uuid, Exit())
            for number, pid in ended.items():
                end = self.end_of_rank(number)
                if not end.wait_ended(pid, END_WITHIN) and end is self._hosts.here:  # a stopped process
                    with suppress(psutil.NoSuchProcess):
                        psutil.Process(pid).kill()
        else:
            self._stop_each(ended)
        self._hosts.here.forget([self._monitor.ranks[number].uuid for number in numbers])

    def _stop_mpi(self, ended: Mapping[int, int]) -> None:
        """End mpirun and the ranks that it started; `ended` maps the ranks to pids."""
        here = self._hosts.here
        launcher, self._process_events.launcher = self._process_events.launcher, None
        here.signal(launcher or 0, _SIGTERM)
        own = [pid for number, pid in ended.items() if self.end_of_rank(number) is here]
        processes = [psutil.Process(pid) for pid in own if psutil.pid_exists(pid)]
        for process in psutil.wait_procs(processes, END_WITHIN)[1]:
            process.kill()
        if launcher is not None and here.wait_gone([launcher], END_WITHIN):  # it may have ranks that never connected
            here.signal(launcher, _SIGKILL)
            here.wait_gone([launcher], END_WITHIN)
        for number, pid in ended.items():
            if (end := self.end_of_rank(number)) is not here:
                end.wait_ended(pid, END_WITHIN)

    def _stop_each(self, ended: Mapping[int, int]) -> None:
        """End each process with SIGTERM, or else SIGKILL; `ended` maps ranks to pids."""
        for number, pid in ended.items():
            self.end_of_rank(number).signal(pid, _SIGTERM)
        for end in {id(end): end for end in map(self.end_of_rank, ended)}.values():
            members = [pid for number, pid in ended.items() if self.end_of_rank(number) is end]
            left = end.wait_gone(members, END_WITHIN)
            for pid in left:  # a process that is stopped or deep in C code does not react to SIGTERM
                end.signal(pid, _SIGKILL)
            end.wait_gone(left, END_WITHIN)

    def _release(self, numbers: Sequence[int]) -> None:
        """Have these ranks free their RDMA resources and end; a rank that is killed does not free them."""
        living = [each for number in numbers if (each := self._monitor.ranks[number]).pid and not each.dead]
        for rank in living:
            self.end_of_rank(rank.rank).signal(rank.pid or 0, _SIGTERM)
        self._monitor.wait(
            lambda: all(rank.dead or self.end_of_rank(rank.rank).away for rank in living), RELEASED_WITHIN
        )

    def kill(self, backend: Backend, numbers: Sequence[int]) -> None:
        """End these ranks' processes, busy or not; ranks of RDMA backends get time to free their resources."""
        self._know(numbers)
        if backend.verbs:
            self._release(numbers)
        for number in numbers:
            rank = self._monitor.ranks[number]
            if rank.pid is None or rank.dead:
                continue
            end = self.end_of_rank(number)
            if backend.launcher != "mpirun":
                end.signal(rank.pid, _SIGKILL)
                if end.away:
                    self._process_events.died(number, f"given up while {rank.host} was out of reach")
            elif end is self._hosts.here:
                with suppress(psutil.NoSuchProcess):
                    psutil.Process(rank.pid).kill()
            else:  # mpirun started the rank there; the rank's agent handles requests while its main thread is blocked
                self._lifeline.tell(rank.uuid, Exit())
