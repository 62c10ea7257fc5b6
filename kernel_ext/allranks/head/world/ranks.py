"""The ranks of one cluster, and the generations of the world they form."""

from __future__ import annotations

import platform
import shlex
import time
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TypeVar

from zmq import ZMQError

from allranks.cluster_settings import Settings
from allranks.errors import CannotStart, HostCause
from allranks.head.state.collective_times import CollectiveTimes
from allranks.head.state.known_rank import RETURNS_WITHIN, Rank
from allranks.head.state.monitor import Monitor
from allranks.head.state.widget_comms import WidgetComms
from allranks.hosts.accept_scheduler_ranks import Listener, Progress
from allranks.hosts.join_file import JoinSettings
from allranks.hosts.local import LocalHost
from allranks.hosts.reachable_addresses import LOOPBACK
from allranks.hosts.reached_hosts import Hosts
from allranks.lifeline.head_end import Lifeline
from allranks.lifeline.open_questions import Reply
from allranks.machine.shortages import cannot_start, shortages
from allranks.machine.tcp_ports import says_transient
from allranks.messages.requests import Answer, Interrupt, Question, Spawn
from allranks.messages.wire import Buffer
from allranks_backends.machines.platform import this_platform
from allranks_backends.plan import Host, Platform, Site, WorldPlan, alike
from allranks_backends.protocol import Backend, BackendError
from allranks_backends.registry import can_run, get_backend

from . import choose_network, forming
from .detached_cluster_file import Detached, detached_file, free_name
from .process_events import ProcessEvents
from .processes import Processes

START_WITHIN = 60.0  # seconds a rank's process gets to start
COMES_WITHIN = 30.0
"""Seconds that ranks started by an interrupted change of the world get to connect."""
START_TRIES = 3  # attempts to start, if the cause of a failure may be gone at the next one
EVERYWHERE = "0.0.0.0"

A = TypeVar("A", bound=Answer)


class Ranks:
    """The ranks' processes on their hosts, their lifeline, and their monitor.

    Starts this machine's host process, or takes over the one that `kept` describes. With `forks`, a new host process
    imports the ranks' modules at once, since it will soon start ranks. Raises CannotStart; with `kept`, OSError if the
    host process is gone, and ZMQError if the lifeline's address is in use.
    """

    def __init__(
        self,
        settings: Settings,
        kept: Detached | None = None,
        comms: WidgetComms | None = None,
        *,
        forks: bool = True,
    ) -> None:
        self.settings = settings
        self.hosts: list[Host] = []
        self.can_run: Sequence[str] | None = None  # names of the backends that the hosts can run, once known
        self.plan: WorldPlan | None = None
        self._reached_at: set[tuple[str, str]] = set()
        """Hosts that other hosts have already reached, each with the address that they used."""
        self.chosen_network = ""
        """In words, the network that was chosen because it is faster than ssh's, with both rates; empty if none was."""
        self.gathered_at = 0.0
        """The `time.monotonic` at which a scheduler's ranks had joined; 0 if no scheduler starts them."""
        self.formed_at: dict[str, float] = {}
        """By step of forming the first world, the `time.monotonic` at which it ended; in the order of the steps."""
        self._spawn: list[Spawn] = []  # processes that the ranks of MPI start when they form the next world
        listen = EVERYWHERE if settings.options.joins else LOOPBACK
        self.lifeline = (
            Lifeline(settings.token, url=kept.url, keys=kept.keys)
            if kept is not None
            else Lifeline(settings.token, url=f"tcp://{listen}:*")
        )
        self.monitor = Monitor(settings.name, comms, self.lifeline.tell, self.lifeline.forget)
        self.monitor.comms.tell = self.lifeline.tell
        self.owed = self.monitor.owed
        """Variables that ranks still lack after an interrupted change (see `KnownWorld.owed`). The next change loads
        them, even from another notebook: `save` writes them to the file for `attach`."""
        try:
            if kept is not None:
                self.plan = kept.expect(self.monitor, settings.options.connections)
                self.hosts = [placement.host for placement in self.plan.placements]
                self.monitor.shown = {host.name: host.shown for host in self.hosts}
                self.owed |= kept.still_owed()
            self.host = _local_host(settings, kept, listen, forks)
        except BaseException:
            self.lifeline.close()
            raise
        self.most_hosts = self.hosts  # the hosts of the largest world so far
        self.host.lifeline_url = self.lifeline.url
        self.listener = _listener(settings, self.monitor)
        """Accepts ranks that a scheduler starts; None if the cluster uses none."""
        self.reached = Hosts(settings, self.host, self.listener)
        self.process_events = ProcessEvents(
            self.monitor, end_at=self.reached.end_at, tell=self.lifeline.tell, python_here=settings.python_here
        )
        self.processes = Processes(settings, self.monitor, self.lifeline, self.reached, self.process_events)
        ends = partial(self.reached.end, self.lifeline)
        at_exit = partial(self.lifeline.close, deliver=True) if settings.options.keep else ends
        self._at_exit = weakref.finalize(self, at_exit)
        # Messages are handled from here on, since all parts that handle them exist now.
        self.lifeline.listen(
            on_message=self.listener.receive if self.listener is not None else self.monitor.receive,
            on_gone=self._on_disconnect,
            is_stopped=self.monitor.is_stopped,
        )
        self.reached.follow(self.process_events.of)

    def open_listener(self) -> JoinSettings:
        """Accept ranks that a scheduler starts; return the secret settings that they need. Raises UsageError."""
        assert self.listener is not None
        return self.listener.open(self.lifeline, self.settings.token, self.host.engine_info)

    def gather(self, count: int | None, timeout: float, progress: Progress) -> list[Host]:
        """Wait for the ranks that a scheduler starts; return the host of each.

        `count` is their number; with None, their launcher reports it. Raises CannotStart if they do not join within
        `timeout` seconds.
        """
        hosts = self.reached.gather(count, timeout, progress)
        self.gathered_at = time.monotonic()
        return hosts

    def start(self, hosts: Sequence[Host], backend: str) -> None:
        """Start one rank for each of `hosts` and form the world. Raises CannotStart."""
        self.hosts = list(hosts)
        self.plan_next(hosts, backend)
        self.launch(range(len(hosts)))
        self.formed_at.clear()
        self.form()

    def plan_next(self, hosts: Sequence[Host], backend: str) -> WorldPlan:
        """Plan the next generation, with one rank for each of `hosts`, and return the plan. Raises CannotStart."""
        plan = self.draft(hosts, backend, self.settings.options.connections)
        if self.plan is None or (self.plan.backend, self.plan.size) != (plan.backend, plan.size):
            self.monitor.peak = None  # it was measured on another world
            self.monitor.times = CollectiveTimes()
        self.plan, self.hosts = plan, [placement.host for placement in plan.placements]
        self.most_hosts = max(self.hosts, self.most_hosts, key=len)
        self.monitor.shown = {host.name: host.shown for host in self.hosts}
        self.monitor.backend = plan.backend
        return plan

    def draft(self, hosts: Sequence[Host], backend: str, connections: int) -> WorldPlan:
        """Reach the hosts; return a checked plan for the next generation, without adopting it. Raises CannotStart."""
        runtime = get_backend(backend)
        if self.listener is not None and runtime.launcher == "mpirun":
            raise CannotStart(
                f"{backend} ranks must be started by mpirun, and these were started by something else: choose another "
                "backend, or start them with --hosts."
            )
        self.reached.others_fork = runtime.launcher == "engines"
        hosts = self._reach(hosts)
        generation = self.plan.generation + 1 if self.plan is not None else 1
        try:
            placed = forming.place(hosts, runtime, connections, self.reached.ask_ports)
            return runtime.plan(placed, generation=generation, connections=connections)
        except BackendError as error:
            raise CannotStart(str(error)) from None

    def sites(self, hosts: Sequence[Host]) -> list[Site]:
        """Return what each of these hosts (one entry per rank) can run; this machine is first, even without a rank.

        Logs in to the other hosts, and sets `can_run`. Raises CannotStart.
        """
        with ThreadPoolExecutor(1) as meanwhile:
            asked = meanwhile.submit(this_platform)  # importing mlx takes a while
            reached = self._reach(hosts)
        try:
            here = asked.result()
        except BackendError as error:
            if any(host.local for host in reached):
                raise CannotStart(str(error)) from error
            here = Platform(platform.system())  # no rank is to run here: it may be a login node
        sites = self.reached.sites(reached, here)
        rdma = any(host.rdma for host in reached)
        self.can_run = [name for name in can_run(sites) if self.reached.worth_naming(name, rdma=rdma)]
        return sites

    def _reach(self, hosts: Sequence[Host]) -> list[Host]:
        """Reach the other hosts that are not reached yet; return all hosts, with their addresses and CUDA devices."""
        if self.listener is None:
            self.reached.log_in(hosts)
        else:
            hosts = self.reached.refill(hosts)
            # Keep the hosts that have joined, even if a later step fails: every later plan relies on them.
            self.hosts[: len(hosts)] = hosts[: len(self.hosts)]
        return self.reached.with_addresses(hosts)

    def launch(self, numbers: Sequence[int]) -> None:
        """Start new processes for these ranks of the plan; if only some ranks of mpirun are new, `form` spawns them."""
        assert self.plan is not None
        if self.backend.launcher == "mpirun" and len(numbers) < self.plan.size:
            self._spawn = self.processes.offer(self.plan, numbers)
        else:
            self.processes.launch(self.plan, numbers)

    def form(self) -> None:
        """Wait for new ranks to connect, and have all ranks join the planned generation. Raises CannotStart."""
        assert self.plan is not None
        spawn, self._spawn = self._spawn, []
        if self.monitor.state == "whole":
            self.monitor.state = "broken"  # until all have joined
        if not spawn:
            self.connect()
            self.look_at_network()
            if len(self.plan.hosts) > 1:
                self.formed_at.setdefault("look at the network", time.monotonic())
        if self.can_run is None:  # the cluster was taken over
            self.sites(self.hosts)
        if self.monitor.state == "broken":
            self.save()  # before any rank leaves its world
        try:
            self._join(spawn)
        except CannotStart as error:
            if not self._may_join_again(error):
                raise
            self.connect()
            self.plan_next(self.hosts, self.backend.name)
            self.save()
            self._join()
        self.formed_at.setdefault("form the world", time.monotonic())
        self.monitor.links = self.backend.links(self.plan)
        self.wait_for("ready", lambda rank: rank.ready)
        self.save()
        self.formed_at.setdefault("make it ready", time.monotonic())

    def _join(self, spawn: Sequence[Spawn] = ()) -> None:
        assert self.plan is not None
        world = self.plan, self.backend, self.monitor, self.lifeline, self.can_run
        try:
            forming.form(*world, spawn=spawn, until_connected=self.connect)
        except CannotStart as error:
            lacks = shortages(self.host.directory.parent)
            raise CannotStart(f"{error}{lacks}", transient=error.transient, causes=error.causes) from None

    def _may_join_again(self, error: CannotStart) -> bool:
        """Whether the same ranks may join the next generation, for example after a connection was lost for a moment.

        Ranks of a first world, and ranks of mpirun, are started again instead.
        """
        alive = all(rank.dead is None for rank in self.monitor.ranks)
        return error.transient and alive and self.monitor.generation > 0 and self.backend.launcher == "engines"

    def look_at_network(self, backend: str = "") -> None:
        """Choose the fastest of several networks, and check that hosts reach each other in it. Raises CannotStart.

        A network is chosen only for the first world, and only if mpirun does not start the ranks. Hosts are checked
        only at addresses that are new. The check tries the connections of `backend`; if it is empty, the connections of
        the plan's backend.
        """
        assert self.plan is not None
        plan, networks = self.plan, self.reached.networks
        if plan.generation == 1 and len(networks) > 1 and self.backend.launcher == "engines":
            faster = choose_network.fastest(plan, networks, self.monitor, self.lifeline)
            if faster is not None:
                self._move_to(faster[0])
                plan, self.chosen_network = self.plan, faster[1]
        at = {(host.name, address) for host in plan.hosts for address in host.addresses[:1]}
        if len({name for name, _ in at}) > 1 and not at <= self._reached_at:
            choose_network.refuse_if_apart(plan, self.monitor, self.lifeline, backend)
            self._reached_at |= at

    def _move_to(self, network: choose_network.Network) -> None:
        """Have the planned world use the hosts' addresses in this network."""
        assert self.plan is not None
        plan = self.plan
        placed = [
            replace(each, host=replace(each.host, addresses=(network[each.host.name],))) for each in plan.placements
        ]
        self.plan = self.backend.plan(placed, generation=plan.generation, connections=plan.connections)
        self.hosts = self.most_hosts = [each.host for each in placed]

    def save(self) -> None:
        """Have the hosts note the cluster's current state, and write the file with which another notebook can attach.

        Called at each step of a change of the world. With a lease of 0, the ranks end with this process, and no
        file is written.
        """
        assert self.plan is not None
        self.processes.describe(self.plan)
        if self.settings.lease != 0:
            self.settings.attached_as = self.settings.attached_as or free_name(self.settings.name)
            Detached.of(self.settings, self.plan, self.reached, self.lifeline, self.monitor, self.owed).write()
            self.reached.keep(detached_file(self.settings.attached_as))

    def connect(self, unless: Callable[[], bool] = lambda: False) -> None:
        """Wait until all ranks have connected, or `unless` holds. Raises CannotStart."""
        self.wait_for("connected", lambda rank: rank.connected or unless())

    def let_come(self, numbers: Sequence[int]) -> None:
        """Wait until each of these ranks that was started has reported or died, for at most `COMES_WITHIN` seconds."""
        coming = self.processes.on_their_way(self.backend, numbers)
        self.monitor.wait(lambda: all(rank.received_at or rank.dead for rank in coming), COMES_WITHIN)

    def in_place(self, new: Sequence[int]) -> bool:
        """Whether the next world can be formed with the current processes, and new ones only for the ranks in `new`."""
        if self.backend.reform != "if abortable":
            return self.backend.reform == "in place"
        if new and self.backend.launcher == "mpirun":
            # Spawning a process while ranks run on several hosts ends daemons of mpirun, and all ranks with them (Open
            # MPI 5.0.11: with two hosts if mpirun's own machine has no ranks, with three if it has some).
            here = all(host.local for host in self.hosts)
            return here and self.monitor.breakable and self.monitor.generation >= self.processes.first_generation
        return self.monitor.breakable

    def form_again(self, backend: str | None = None) -> None:
        """Form a new generation of the same ranks in place, over another `backend` if given. Raises CannotStart."""
        self.plan_next(self.hosts, backend or self.backend.name)
        self.form()

    def stop_ranks(self, numbers: Sequence[int]) -> None:
        """End these ranks' processes and wait until they are gone; their ends do not count as deaths."""
        self.processes.stop(self.backend, numbers, everybody=len(numbers) == len(self.monitor.ranks))

    def kill(self, numbers: Sequence[int]) -> None:
        """End these ranks' processes, busy or not (see `Processes.kill`)."""
        self.processes.kill(self.backend, numbers)

    def end(self) -> None:
        """End every process of the cluster, and remove its folders on all hosts."""
        self.monitor.state = "down"
        self.monitor.comms.close()
        self._at_exit.detach()
        self.reached.end(self.lifeline)

    def let_go(self) -> None:
        """Do not end the ranks when this process exits: it is a fork, or another process is to take them over."""
        self._at_exit.detach()

    @property
    def backend(self) -> Backend:
        assert self.plan is not None
        return get_backend(self.plan.backend)

    def wait_for(self, what: str, condition: Callable[[Rank], bool]) -> None:
        """Wait until `condition` holds for every rank; `what` names the condition in the error.

        Raises CannotStart if a rank dies, or after `START_WITHIN` seconds.
        """
        monitor = self.monitor

        def settled() -> bool:
            return any(rank.dead for rank in monitor.ranks) or all(condition(rank) for rank in monitor.ranks)

        monitor.wait(settled, START_WITHIN)
        if dead := [rank for rank in monitor.ranks if rank.dead]:
            causes = alike({rank.rank: rank.dead or "" for rank in dead})
            listing = "; ".join(f"{monitor.label(ranks)} {cause}" for cause, ranks in causes.items())
            raise self._not_started(
                f"the ranks did not start: {listing}",
                [HostCause(each.host, f"rank {each.rank} did not start: {each.dead}") for each in dead],
            )
        if missing := [rank for rank in monitor.ranks if not condition(rank)]:
            raise self._not_started(
                f"{monitor.label([each.rank for each in missing])} not {what} after {START_WITHIN:g} s.",
                [HostCause(each.host, f"rank {each.rank} not {what} after {START_WITHIN:g} s.") for each in missing],
            )

    def _not_started(self, why: str, causes: Sequence[HostCause]) -> CannotStart:
        """Return the error for a failed start, with the errors that host processes reported."""
        said = why + self.reached.log() + shortages(self.host.directory.parent)
        if not self.host.alive:  # the host process was killed, or ended from a shell
            said += (
                "\nNo rank can be started any more: end what is left with %distributed down, then run %distributed up."
            )
        first = self.plan is not None and self.plan.generation == 1  # later, the log may be about an earlier world
        return CannotStart(said, transient=says_transient(said if first else why), causes=causes)

    def ask(
        self, numbers: Sequence[int], question: Question[A], buffers: Sequence[Buffer] = ()
    ) -> dict[int, Future[Reply[A]]]:
        """Send a question to these ranks, except dead ones, and return the futures of their answers by rank.

        The future of a rank that cannot answer raises ConnectionError.
        """
        ranks = [self.monitor.ranks[number] for number in numbers]
        self.monitor.wait(lambda: not any(rank.returning for rank in ranks), RETURNS_WITHIN)
        return {rank.rank: self.lifeline.ask(rank.uuid, question, buffers) for rank in ranks if rank.dead is None}

    def interrupt(self, numbers: Sequence[int] | None = None) -> None:
        """Interrupt running cells, on the ranks in `numbers` or on all ranks."""
        for rank in self.monitor.busy(range(len(self.monitor.ranks)) if numbers is None else numbers):
            self.monitor.interrupted.add((rank.rank, rank.cell))
            self.lifeline.tell(rank.uuid, Interrupt(rank.cell))

    def _on_disconnect(self, uuid: str) -> None:
        if self.listener is not None and self.listener.lost(uuid):
            return
        self.process_events.disconnected(uuid, by_mpirun=self.plan is not None and self.backend.launcher == "mpirun")


def _listener(settings: Settings, monitor: Monitor) -> Listener | None:
    if not settings.options.joins:
        return None
    file = Path(settings.join_file) if settings.join_file else None
    command = f"{shlex.quote(settings.python)} -m allranks.rank --join {shlex.quote(str(file))}" if file else ""
    return Listener(monitor.receive, file, command)


def _local_host(settings: Settings, kept: Detached | None, listen: str, forks: bool) -> LocalHost:
    """Start the host process of this machine (see `Ranks`), or take over the one that `kept` describes.

    Raises CannotStart if a host process cannot be started, and OSError if the one to take over is gone.
    """
    if kept is not None:
        return LocalHost.adopt(Path(kept.directory), kept.engine_info, kept.host_process)
    try:
        python, shared = settings.python_here, settings.shared
        return LocalHost.begin(settings.name, python=python, shared=shared, listen=listen, forks=forks)
    except (OSError, ZMQError) as error:
        why = cannot_start(error)
        raise CannotStart(why, causes=[HostCause(LocalHost.NAME, why)]) from None
