"""The living processes of one cluster, and the epochs of the world they form."""

from __future__ import annotations

import os
import secrets
import shlex
import threading
import time
import weakref
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil

from allranks_backends._backend import Backend, BackendError, can_run, get_backend, this_platform
from allranks_backends._plan import Host, Placement, Platform, Site, WorldPlan, rank_label
from allranks_backends.mpi import find_mpirun
from allranks_backends.nccl import visible_devices

from . import _world
from ._addresses import LOOPBACK, Told, meeting_addresses
from ._door import Door, Progress
from ._host_process import HostEnd, ended_because, rank_settings
from ._joined import JoinedHost
from ._kept import Kept, kept_file
from ._lifeline import Lifeline
from ._local import LocalHost
from ._monitor import Monitor, Rank
from ._profile import Profile
from ._remote import RemoteHost, reach
from ._settings import Settings
from .errors import CannotStart
from .rank.addresses import own_addresses

START_WITHIN = 60.0
"""Seconds a rank's process gets to come up."""
TAKE_OVER_WITHIN = 10.0
"""Seconds the ranks of a kept cluster get to find the new notebook; they try once a second."""
END_WITHIN = 6.0
"""Seconds the processes of the world before get to end in a restart."""

EVERYWHERE = "0.0.0.0"

Answer = Future[tuple[dict[str, Any], list[Any]]]


class Ranks:
    """Processes on their hosts, their lifeline, and the monitor that knows them.

    Starts a host process, or takes over the one that `kept` describes. Raises OSError where that is no more.
    """

    def __init__(self, settings: Settings, kept: Kept | None = None) -> None:
        self.settings = settings
        self.monitor = Monitor(settings.name)
        self.plan: WorldPlan | None = None
        self.hosts: list[Host] = []
        self.can_run: Sequence[str] | None = None
        """Names of the backends that the hosts can run; None where it was not asked."""
        self._launcher: int | None = None
        self._controller_ended: Mapping[str, Any] | None = None
        self.monitor.acknowledge = self._acknowledge
        self.monitor.comms.tell = lambda uuid, order, buffers: self.lifeline.tell(uuid, order, buffers)
        if kept is not None:
            self._know(kept)
        self.door: Door | None = None
        """Where ranks come in that a scheduler started."""
        if settings.joins:
            file = Path(settings.join_file) if settings.join_file else None
            command = f"{shlex.quote(settings.python)} -m allranks.rank --join {shlex.quote(str(file))}" if file else ""
            self.door = Door(self.monitor.heard, file, command)
        listen = EVERYWHERE if self.door is not None else LOOPBACK
        self.lifeline = Lifeline(
            settings.token,
            on_message=self.door.heard if self.door is not None else self.monitor.heard,
            on_gone=self._on_disconnect,
            url=kept.url if kept is not None else f"tcp://{listen}:*",
            keys=kept.keys if kept is not None else None,
        )
        self._cluster = secrets.token_hex(6)
        """What the hosts call it, where a launcher's ranks look for their settings."""
        self._remote: dict[str, RemoteHost | JoinedHost] = {}
        """The other hosts, by name."""
        if kept is not None:
            self.host = LocalHost.adopt(Path(kept.directory), kept.engine_info, self._on_host_event)
        else:
            self.host = LocalHost.begin(
                settings.name,
                kept_as=kept_file(settings.name) if settings.keep else None,
                python=settings.python_here,
                on_event=self._on_host_event,
                shared=settings.shared,
                listen=listen,
            )
        self.host.lifeline_url = self.lifeline.url
        self._at_exit = weakref.finalize(
            self, _end, self.lifeline, None if settings.keep else self.host, self._remote, self.door
        )
        self.lifeline.connect_engines(self.host.client_info)

    def _know(self, kept: Kept) -> None:
        """Expect the ranks of a kept cluster to connect."""
        self.monitor.adopting = True
        self.hosts = [Host("localhost")] * len(kept.ranks)
        placements = tuple(Placement(number, host, number) for number, host in enumerate(self.hosts))
        self.plan = WorldPlan(kept.backend, placements, kept.epoch, self.settings.connections)
        self.monitor.backend, self.monitor.epoch = kept.backend, kept.epoch
        self.monitor.breakable = kept.backend == "ring"
        self.monitor.links = self.backend.links(self.plan)
        for number, (uuid, pid) in enumerate(kept.ranks):
            self.monitor.put(Rank(number, "localhost", uuid, pid=pid))

    def take_over(self) -> None:
        """Wait until the ranks of a kept cluster have connected; those that did not are dead."""
        self.monitor.wait(lambda: all(rank.connected for rank in self.monitor.ranks), TAKE_OVER_WITHIN)
        self.monitor.state = "whole"
        for rank in self.monitor.ranks:
            if not rank.connected:
                self._rank_died(rank.rank, "ended while no notebook was attached")

    def _keep(self) -> None:
        """Write down how another notebook can take over."""
        assert self.plan is not None
        Kept(
            settings={**vars(self.settings), "env": dict(self.settings.env)},
            directory=str(self.host.directory),
            engine_info=self.host.engine_info,
            url=self.lifeline.url,
            keys=self.lifeline.keys,
            backend=self.plan.backend,
            epoch=self.plan.epoch,
            ranks=[(rank.uuid, rank.pid or 0) for rank in self.monitor.ranks],
        ).write()

    def _acknowledge(self, uuid: str, cell: int) -> None:
        self.lifeline.tell(uuid, {"do": "acknowledge", "cell": cell})

    # Start and end.

    def open_door(self) -> dict[str, Any]:
        """Let ranks in that others start; returns what these must know, which is secret. Raises UsageError."""
        assert self.door is not None
        return self.door.open(self.lifeline, self.settings.token, self.host.engine_info)

    def gather(self, count: int | None, timeout: float, progress: Progress) -> list[Host]:
        """Wait for the ranks that a scheduler starts; returns the host of each. Raises CannotStart."""
        assert self.door is not None
        hosts, ends = self.door.gather(count, timeout, progress, self._news_of)
        self._remote.update(ends)
        return hosts

    def start(self, hosts: Sequence[Host], backend: str) -> None:
        """Start one rank for each of `hosts` and form the world. Raises CannotStart."""
        self.hosts = list(hosts)
        self.plan_next(hosts, backend)
        self.launch(range(len(hosts)))
        self.form()

    def plan_next(self, hosts: Sequence[Host], backend: str) -> WorldPlan:
        """The next epoch's plan, over one rank for each of `hosts`. Raises CannotStart."""
        plan = self.draft(hosts, backend, self.settings.connections)
        if self.plan is None or (self.plan.backend, self.plan.size) != (plan.backend, plan.size):
            self.monitor.peak = None  # it was measured on another world
            self.monitor.profile = Profile()
        self.plan, self.hosts = plan, [placement.host for placement in plan.placements]
        self.monitor.backend = plan.backend
        return plan

    def draft(self, hosts: Sequence[Host], backend: str, connections: int) -> WorldPlan:
        """A plan that could be the next epoch's: hosts are reached, everything is checked. Raises CannotStart."""
        runtime = get_backend(backend)
        if self.door is not None and runtime.launcher == "mpirun":
            raise CannotStart(
                f"{backend} ranks are children of mpirun, and these were started by something else: take another "
                "backend, or start them with --hosts."
            )
        hosts = self._reach(hosts)
        epoch = self.plan.epoch + 1 if self.plan is not None else 1
        try:
            return runtime.plan(
                _world.place(hosts, runtime, connections, self._ports), epoch=epoch, connections=connections
            )
        except BackendError as error:
            raise CannotStart(str(error)) from None

    def sites(self, hosts: Sequence[Host]) -> list[Site]:
        """What each of these hosts (one entry a rank) can run, this machine first, which may have no rank.

        Logs in to the others. Raises CannotStart.
        """
        with ThreadPoolExecutor(1) as meanwhile:
            here = meanwhile.submit(this_platform)  # importing mlx takes a while
            reached = self._reach(hosts)
        counts = Counter(host.name for host in reached)
        by_name = {host.name: host for host in reached}
        others = [
            Site(name, _with_devices(self._remote[name].platform, host.cuda), counts[name], local=False)
            for name, host in by_name.items()
            if not host.local
        ]
        mine = by_name.get(self.host.name)
        platform = _with_devices(here.result(), mine.cuda if mine else ())
        sites = [Site(self.host.name, platform, counts[self.host.name]), *others]
        rdma = any(host.rdma for host in reached)
        self.can_run = [name for name in can_run(sites) if self._worth_naming(name, rdma)]
        return sites

    def _worth_naming(self, name: str, rdma: bool) -> bool:
        """Whether to advise a backend that can run: JACCL where links are known, MPI where mpirun starts the ranks."""
        return (rdma or "jaccl" not in name) and (self.door is None or get_backend(name).launcher == "engines")

    def _devices(self, host: Host) -> tuple[str, ...]:
        """The CUDA devices that ranks may use there; empty where nobody chose."""
        if "CUDA_VISIBLE_DEVICES" in self.settings.env:
            return visible_devices(self.settings.env)
        if host.local:
            return visible_devices(os.environ)
        return self._remote[host.name].cuda

    def _reach(self, hosts: Sequence[Host]) -> list[Host]:
        """Log in to the other hosts, where that is not done; returns all, with addresses for each other."""
        if self.door is not None:
            joined = {name: end for name, end in self._remote.items() if isinstance(end, JoinedHost)}
            placed, living = self.door.refill(hosts, joined, self._news_of)
            self._remote.update(living)
            # What was taken in stays, whatever else fails now: every later plan counts on it.
            self.hosts[: len(placed)] = placed[: len(self.hosts)]
            return self._with_addresses(placed)
        wanted = {host.name: host for host in hosts if not host.local}
        missing = [host for name, host in wanted.items() if name not in self._remote or not self._remote[name].alive]
        for host in missing:
            if host.name in self._remote:
                self._remote[host.name].end()
        ends = reach(
            missing,
            python=self.settings.python,
            engine_info=self.host.engine_info,
            lifeline_url=self.host.lifeline_url,
            on_event=self._news_of,
        )
        self._remote.update({end.name: end for end in ends})
        return self._with_addresses(hosts)

    def _with_addresses(self, hosts: Sequence[Host]) -> list[Host]:
        """`hosts`, with an address for those that have none and others must reach."""
        if all(host.local for host in hosts):
            return [replace(host, cuda=self._devices(host)) for host in hosts]
        told = {host.name: self._told(host) for host in hosts}
        found = meeting_addresses(told)
        nameless = {host for host in hosts if not host.addresses or (host.local and host.addresses == (LOOPBACK,))}
        placed = [
            replace(host, addresses=(found[host.name],)) if host in nameless and host.name in found else host
            for host in hosts
        ]
        return [replace(host, cuda=self._devices(host)) for host in placed]

    def _told(self, host: Host) -> Told:
        """The host's network, as far as it matters: addresses that were named, or chosen before, stay."""
        if host.local:
            seen = (end.sees_notebook_at for end in self._remote.values() if isinstance(end, RemoteHost))
            told = Told(own_addresses(), next(filter(None, seen), None))
        else:
            told = self._remote[host.name].told
        fixed = [each for each in told.own if each.partition("/")[0] in host.addresses]
        return Told(fixed, host.addresses[0]) if fixed else told

    def _news_of(self, name: str) -> Callable[[Mapping[str, Any]], None]:
        """What hears the events of the host of that name."""
        return lambda event: self._on_host_event(event, name)

    def end_of(self, host: Host) -> HostEnd:
        """The notebook's end of that host's process."""
        return self.host if host.local else self._remote[host.name]

    def end_of_rank(self, number: int) -> HostEnd:
        """The notebook's end of the host process where the rank lives."""
        name = self.monitor.ranks[number].host
        return self.host if name == self.host.name else self._remote[name]

    def _ports(self, host: Host, count: int) -> list[int]:
        return self.end_of(host).ports(count)

    def launch(self, numbers: Sequence[int]) -> None:
        """Start new processes for these ranks of the plan, in place of any they had."""
        assert self.plan is not None
        settings = [self._rank_settings(number) for number in numbers]
        for each in settings:
            self.monitor.put(Rank(each["rank"], each["host"], each["uuid"]))
        for ended in (self.host.ended, self._controller_ended):
            if ended is not None:  # before there was a rank to tell of
                self._on_host_event(ended)
        for name, end in self._remote.items():
            if end.ended is not None:
                self._on_host_event(end.ended, name)
        backend: Any = get_backend(self.plan.backend)
        if backend.launcher == "mpirun":
            self._launch_mpi(backend, settings)
        else:
            by_host: dict[str, list[dict[str, Any]]] = {}
            for each in settings:
                by_host.setdefault(each["host"], []).append(each)
            for members in by_host.values():
                self.end_of_rank(members[0]["rank"]).start(members)

    def _rank_settings(self, number: int) -> dict[str, Any]:
        assert self.plan is not None
        shared, host = self.settings, self.plan.placements[number].host
        return rank_settings(
            self.end_of(host),
            number,
            token=shared.token,
            lifeline_key=self.lifeline.keys[0],
            backend=self.plan.backend,
            cwd=shared.cwd,
            env=dict(shared.env),
            keep=shared.keep,
            cwd_may_lack=not host.local and not shared.cwd_named,
        )

    def _launch_mpi(self, backend: Any, settings: Sequence[Mapping[str, Any]]) -> None:
        as_root = os.geteuid() == 0
        join = ["--join", "{join}"]
        if self._remote:
            # Each host gets the settings of its own ranks, where they look for them by the cluster's name.
            cluster = self._cluster
            for end in {id(end): end for end in map(self.end_of_rank, range(len(settings)))}.values():
                end.offer(cluster, [each for each in settings if self.end_of_rank(each["rank"]) is end])
            join = ["--cluster", cluster]
        hostfile, text = self.host.directory / "mpi-hosts", backend.hostfile(self.plan)
        if text is not None:
            hostfile.write_text(text)
        command = backend.command(
            self.plan,
            mpirun=find_mpirun(),
            python_args=[self.settings.python, "-m", "allranks.rank", *join],
            mpi_args=self.settings.mpi_args,
            as_root=as_root,
            cores=os.cpu_count() or 1,
            hostfile=str(hostfile) if text is not None else None,
            reached_at=self._reached_at(),
        )
        self.host.launch(command, backend.launcher_env(as_root=as_root), settings)

    def _reached_at(self) -> list[str]:
        """Addresses by which this machine and the other hosts talk; empty where something between them changes them."""
        ends = [end for end in self._remote.values() if end.alive and isinstance(end, RemoteHost)]
        here = {end.sees_notebook_at for end in ends}
        own = {address.partition("/")[0] for address in own_addresses()}
        return [*map(str, here), *(str(end.told.used) for end in ends)] if ends and here <= own else []

    def form(self) -> None:
        """Have all ranks join the planned epoch; new ones are waited for. Raises CannotStart."""
        assert self.plan is not None
        self.wait_for("connected", lambda rank: rank.connected)
        if self.can_run is None:  # a cluster that was taken over
            self.sites(self.hosts)
        _world.form(self.plan, self.backend, self.monitor, self.lifeline, self.can_run)
        self.monitor.links = self.backend.links(self.plan)
        self.wait_for("ready", lambda rank: rank.ready)
        if self.settings.keep:
            self._keep()

    def form_anew(self) -> None:
        """A new epoch over the same ranks, in place."""
        assert self.plan is not None
        self.plan_next(self.hosts, self.plan.backend)
        self.form()

    def stop_ranks(self, numbers: Sequence[int]) -> None:
        """End these ranks' processes and wait until they are gone; the monitor forgets their deaths."""
        assert self.plan is not None
        ended = {number: self.monitor.ranks[number].pid or 0 for number in numbers}
        for number in numbers:
            self.monitor.ranks[number].pid = None  # what is told of this process from now on is no news
        if self.backend.launcher == "mpirun":
            launcher, self._launcher = self._launcher, None
            self.host.signal(launcher or 0, _SIGTERM)
            here = [ended[number] for number in numbers if self.end_of_rank(number) is self.host]
            processes = [psutil.Process(pid) for pid in here if psutil.pid_exists(pid)]
            for process in psutil.wait_procs(processes, END_WITHIN)[1]:
                process.kill()
            for number in numbers:
                self._wait_elsewhere(self.end_of_rank(number), ended[number], END_WITHIN)
            return self.host.forget([self.monitor.ranks[number].uuid for number in numbers])
        for number in numbers:
            self.end_of_rank(number).signal(ended[number], _SIGTERM)
        for end in {id(end): end for end in map(self.end_of_rank, numbers)}.values():
            members = [ended[number] for number in numbers if self.end_of_rank(number) is end]
            left = end.wait_gone(members, END_WITHIN)
            for pid in left:  # one that is stopped or deep in C does not hear SIGTERM
                end.signal(pid, _SIGKILL)
            end.wait_gone(left, END_WITHIN)
        self.host.forget([self.monitor.ranks[number].uuid for number in numbers])

    def kill(self, numbers: Sequence[int]) -> None:
        """End these ranks' processes at once, whatever they do."""
        for number in numbers:
            rank = self.monitor.ranks[number]
            if rank.pid is None or rank.dead:
                continue
            end = self.end_of_rank(number)
            if self.backend.launcher != "mpirun":
                end.signal(rank.pid, _SIGKILL)
            elif end is self.host:
                with suppress(psutil.NoSuchProcess):
                    psutil.Process(rank.pid).kill()
            else:  # the process is mpirun's there; its agent obeys while its main thread is blocked
                self.lifeline.tell(rank.uuid, {"do": "die"})

    def end(self) -> None:
        """End every process and remove every file."""
        self.monitor.state = "down"
        self.monitor.comms.close()
        self._at_exit.detach()
        _end(self.lifeline, self.host, self._remote, self.door)

    @property
    def backend(self) -> Backend:
        assert self.plan is not None
        return get_backend(self.plan.backend)

    # Waiting and asking.

    def wait_for(self, what: str, condition: Callable[[Rank], bool]) -> None:
        """Wait until `condition` holds for every rank. Raises CannotStart with what they died of."""
        monitor = self.monitor

        def settled() -> bool:
            return any(rank.dead for rank in monitor.ranks) or all(condition(rank) for rank in monitor.ranks)

        monitor.wait(settled, START_WITHIN)
        if dead := [rank for rank in monitor.ranks if rank.dead]:
            causes: dict[str, list[int]] = {}
            for rank in dead:
                causes.setdefault(rank.dead or "", []).append(rank.rank)
            listing = "; ".join(f"{rank_label(ranks)} {cause}" for cause, ranks in causes.items())
            raise CannotStart(f"the ranks did not start: {listing}{self._host_log()}")
        if missing := [rank.rank for rank in monitor.ranks if not condition(rank)]:
            raise CannotStart(f"{rank_label(missing)} did not get {what} in {START_WITHIN:g} s.{self._host_log()}")

    def _host_log(self) -> str:
        logs = [self.host.log(), *(f"{end.name}: {end.log()}" for end in self._remote.values() if end.log())]
        return "".join(f"\n{log}" for log in logs if log)

    def ask(self, numbers: Sequence[int], order: dict[str, Any], buffers: Sequence[Any] = ()) -> dict[int, Answer]:
        """Ask those of the ranks that live."""
        ranks = [self.monitor.ranks[number] for number in numbers]
        return {rank.rank: self.lifeline.ask(rank.uuid, order, buffers) for rank in ranks if rank.dead is None}

    def interrupt(self, numbers: Sequence[int] | None = None) -> None:
        """Stop the cells that run, on all ranks or on these."""
        for rank in self.monitor.busy(range(len(self.monitor.ranks)) if numbers is None else numbers):
            self.lifeline.tell(rank.uuid, {"do": "interrupt", "cell": rank.cell})

    # News from the processes.

    def _on_host_event(self, event: Mapping[str, Any], name: str | None = None) -> None:
        """News from the notebook's own host process, or from the host of that name."""
        if event["event"] == "started":
            self.monitor.ranks[event["rank"]].pid = event["pid"]
        elif event["event"] == "present":
            self._launcher = event["processes"].get("launcher")
        elif event["event"] == "launched":
            self._launcher = event["pid"]
        elif event["event"] == "ended":
            self._on_ended(event, name)
        elif event["event"] == "lost":
            if self._is_rank(event["rank"], event["pid"], name):
                self._rank_died(event["rank"], f"lost on {name}: {event['because']}")
        elif event["event"] == "host gone" and name is not None:
            for rank in self.monitor.alive():
                if rank.host == name:
                    self._rank_died(rank.rank, f"lost with its host {name}: {event['because']}")
        elif event["event"] == "host gone":
            how = f"ended with the host process ({self.settings.python_here}), which {ended_because(event)}"
            for rank in self.monitor.alive():
                self.monitor.died(rank.rank, how)

    def _on_ended(self, event: Mapping[str, Any], name: str | None) -> None:
        kind, _, number = event["name"].partition(" ")
        if kind == "rank":
            if self._is_rank(int(number), event["pid"], name):
                self._rank_died(int(number), ended_because(event))
        elif kind == "launcher" and event["pid"] == self._launcher:
            said = "\n".join(line for line in event.get("log", "").splitlines() if line.strip("-"))
            how = f"ended by mpirun, which {ended_because({**event, 'log': ''})}" + (f":\n{said}" if said else "")
            alive = self.monitor.alive()
            for rank in alive:
                self.monitor.died(rank.rank, how)
            self.host.forget([rank.uuid for rank in alive])
        elif kind == "controller":
            self._controller_ended = event
            for rank in self.monitor.alive():
                self.monitor.died(rank.rank, f"cannot be reached: ipyparallel's controller {ended_because(event)}")

    def _is_rank(self, number: int, pid: int, name: str | None) -> bool:
        """Whether that process of the host of that name is the rank: one that was replaced meanwhile is nobody's."""
        rank = self.monitor.ranks[number] if number < len(self.monitor.ranks) else None
        return rank is not None and rank.pid == pid and rank.host == (name or self.host.name)

    def _rank_died(self, number: int, cause: str) -> None:
        self.monitor.died(number, cause)
        self.host.forget([self.monitor.ranks[number].uuid])
        because = f"the world is broken: rank {number} is dead. %distributed heal replaces it"
        for rank in self.monitor.alive():
            self.lifeline.tell(rank.uuid, {"do": "refuse", "because": because})

    def _on_disconnect(self, uuid: str) -> None:
        """A rank's connection closed. Its parent tells how it ended; a rank of mpirun has a parent that does not."""
        if self.door is not None and self.door.lost(uuid):
            return
        self.monitor.disconnected(uuid)
        rank = next((rank for rank in self.monitor.ranks if rank.uuid == uuid), None)
        if rank is not None and rank.pid and self.plan is not None and self.backend.launcher == "mpirun":
            threading.Thread(target=self._watch_end, args=(rank, rank.pid), daemon=True).start()

    def _wait_elsewhere(self, end: HostEnd, pid: int, within: float) -> bool:
        """Wait until a process of mpirun's on another host has ended; whether it has."""
        deadline = time.monotonic() + within
        while end is not self.host and end.runs(pid):
            if time.monotonic() > deadline:
                return False
            time.sleep(0.1)
        return True

    def _watch_end(self, rank: Rank, pid: int) -> None:
        end = self.end_of_rank(rank.rank)
        if end is self.host:
            try:
                psutil.Process(pid).wait(2.0)
            except psutil.NoSuchProcess:
                pass
            except psutil.TimeoutExpired:
                return
        elif not self._wait_elsewhere(end, pid, 2.0):
            return
        if self.monitor.ranks[rank.rank] is rank and rank.pid == pid:
            self._rank_died(rank.rank, "its process ended (mpirun does not say how)")


_SIGTERM, _SIGKILL = 15, 9


def _with_devices(platform: Platform, chosen: Sequence[str]) -> Platform:
    """No more CUDA devices than ranks may use."""
    return replace(platform, cuda_devices=min(platform.cuda_devices, len(chosen))) if chosen else platform


def _end(
    lifeline: Lifeline,
    host: LocalHost | None,
    remote: Mapping[str, RemoteHost | JoinedHost],
    door: Door | None = None,
) -> None:
    if door is not None:  # its ends are reached over the lifeline
        door.close()
        _end_all(list(remote.values()))
        lifeline.close()
        _end_all([host] if host is not None else [])
        return
    lifeline.close()
    _end_all([*remote.values(), *([host] if host is not None else [])])


def _end_all(ends: Sequence[HostEnd]) -> None:
    threads = [threading.Thread(target=end.end) for end in ends[1:]]
    for thread in threads:
        thread.start()
    for end in ends[:1]:
        end.end()
    for thread in threads:
        thread.join()
