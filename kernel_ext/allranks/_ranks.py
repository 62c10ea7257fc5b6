"""The ranks of one cluster, and the epochs of the world they form."""

from __future__ import annotations

import shlex
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from allranks_backends._backend import Backend, BackendError, can_run, get_backend, this_platform
from allranks_backends._plan import Host, Placement, Site, WorldPlan, rank_label

from . import _world
from ._addresses import LOOPBACK
from ._door import Door, Progress
from ._hosts import Hosts
from ._kept import Kept, kept_file
from ._known_rank import Rank
from ._lifeline import Lifeline
from ._local import LocalHost
from ._monitor import Monitor
from ._news import News
from ._processes import Processes
from ._profile import Profile
from ._settings import Settings
from .errors import CannotStart

START_WITHIN = 60.0
"""Seconds a rank's process gets to come up."""
TAKE_OVER_WITHIN = 10.0
"""Seconds the ranks of a kept cluster get to find the new notebook; they try once a second."""
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
        self.monitor.acknowledge = self._acknowledge
        self.monitor.comms.tell = lambda uuid, order, buffers: self.lifeline.tell(uuid, order, buffers)
        self.news = News(
            self.monitor,
            end_at=lambda name: self.reached.end_at(name),
            tell=lambda uuid, order: self.lifeline.tell(uuid, order),
            python_here=settings.python_here,
        )
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
        try:
            self.host = self._local_host(kept, listen)
        except BaseException:
            self.lifeline.close()
            raise
        self.host.lifeline_url = self.lifeline.url
        self.reached = Hosts(settings, self.host, self.door, self.news.of)
        self.processes = Processes(settings, self.monitor, self.lifeline, self.reached, self.news)
        self._at_exit = weakref.finalize(self, self.reached.end, self.lifeline, here=not settings.keep)
        self.lifeline.connect_engines(self.host.client_info)

    def _local_host(self, kept: Kept | None, listen: str) -> LocalHost:
        """The host process of this machine, begun or taken over."""
        settings, on_event = self.settings, self.news.of(LocalHost.NAME)
        if kept is not None:
            return LocalHost.adopt(Path(kept.directory), kept.engine_info, on_event)
        return LocalHost.begin(
            settings.name,
            kept_as=kept_file(settings.name) if settings.keep else None,
            python=settings.python_here,
            on_event=on_event,
            shared=settings.shared,
            listen=listen,
        )

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
                self.news.died(rank.rank, "ended while no notebook was attached")

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
        return self.reached.gather(count, timeout, progress)

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
                _world.place(hosts, runtime, connections, self.reached.ports), epoch=epoch, connections=connections
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
        sites = self.reached.sites(reached, here.result())
        rdma = any(host.rdma for host in reached)
        self.can_run = [name for name in can_run(sites) if self.reached.worth_naming(name, rdma=rdma)]
        return sites

    def _reach(self, hosts: Sequence[Host]) -> list[Host]:
        """Reach the other hosts, where that is not done; returns all, with addresses for each other."""
        if self.door is None:
            self.reached.log_in(hosts)
        else:
            hosts = self.reached.refill(hosts)
            # What was taken in stays, whatever else fails now: every later plan counts on it.
            self.hosts[: len(hosts)] = hosts[: len(self.hosts)]
        return self.reached.with_addresses(hosts)

    def launch(self, numbers: Sequence[int]) -> None:
        """Start new processes for these ranks of the plan, in place of any they had."""
        assert self.plan is not None
        self.processes.launch(self.plan, numbers)

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
        self.processes.stop(self.backend, numbers)

    def kill(self, numbers: Sequence[int]) -> None:
        """End these ranks' processes at once, whatever they do."""
        self.processes.kill(self.backend, numbers)

    def end(self) -> None:
        """End every process and remove every file."""
        self.monitor.state = "down"
        self.monitor.comms.close()
        self._at_exit.detach()
        self.reached.end(self.lifeline)

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
            raise CannotStart(f"the ranks did not start: {listing}{self.reached.log()}")
        if missing := [rank.rank for rank in monitor.ranks if not condition(rank)]:
            raise CannotStart(f"{rank_label(missing)} did not get {what} in {START_WITHIN:g} s.{self.reached.log()}")

    def ask(self, numbers: Sequence[int], order: dict[str, Any], buffers: Sequence[Any] = ()) -> dict[int, Answer]:
        """Ask those of the ranks that live."""
        ranks = [self.monitor.ranks[number] for number in numbers]
        return {rank.rank: self.lifeline.ask(rank.uuid, order, buffers) for rank in ranks if rank.dead is None}

    def interrupt(self, numbers: Sequence[int] | None = None) -> None:
        """Stop the cells that run, on all ranks or on these."""
        for rank in self.monitor.busy(range(len(self.monitor.ranks)) if numbers is None else numbers):
            self.lifeline.tell(rank.uuid, {"do": "interrupt", "cell": rank.cell})

    def _on_disconnect(self, uuid: str) -> None:
        if self.door is not None and self.door.lost(uuid):
            return
        self.news.disconnected(uuid, by_mpirun=self.plan is not None and self.backend.launcher == "mpirun")
