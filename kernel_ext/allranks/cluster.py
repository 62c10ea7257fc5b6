"""What a user holds: a cluster of ranks that stay up between cells."""

from __future__ import annotations

import itertools
import os
import re
import secrets
import shutil
import sys
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from allranks_backends._backend import BackendError, cannot_run, choose, get_backend, this_platform
from allranks_backends._plan import Host, Snapshot, WorldPlan, rank_label
from allranks_backends.hostfile import read_hostfile

from . import _world
from ._cell import Cell, CellResult, Screen
from ._engines import LocalHost, ended_because, rank_settings
from ._lifeline import Lifeline
from ._monitor import Monitor, Rank
from .errors import Busy, CannotStart, CannotTravel, NoCluster, UsageError, WorldBroken
from .rank import values

if TYPE_CHECKING:
    from typing import Self

START_WITHIN = 60.0
"""Seconds a rank's process gets to come up."""
HEAL_WAIT = 3.0
"""Seconds running cells get to end before `heal` gives up."""
DEFAULT_RANKS = 2
"""The smallest world in which something is communicated."""
LOCAL_NAMES = ("localhost", "127.0.0.1", "::1", os.uname().nodename)
HERE = Host("localhost")


class Cluster:
    """A world of MLX ranks.

    ``n`` ranks on this machine, or one for each entry of ``hosts`` or ``hostfile``. ``backend`` is ``auto``, ``ring``,
    ``jaccl``, ``jaccl-ring``, ``mpi`` or ``nccl``. ``env`` is set in every rank, ``cwd`` is where they work (here by
    default), ``python`` the interpreter they run. ``connections`` is the number of TCP connections of a ring link,
    ``mpi_args`` go to mpirun. A cluster with ``keep=True`` outlives this process.

    Nothing starts before `up`, which ``with`` calls. Raises UsageError for an argument that cannot be.
    """

    def __init__(
        self,
        n: int | None = None,
        *,
        backend: str = "auto",
        hosts: Sequence[str] | None = None,
        hostfile: str | Path | None = None,
        ranks_per_host: int = 1,
        env: Mapping[str, str] | None = None,
        python: str | None = None,
        cwd: str | Path | None = None,
        connections: int = 1,
        mpi_args: Sequence[str] = (),
        name: str = "main",
        keep: bool = False,
    ) -> None:
        self.name = name
        self.chosen_because = ""
        self._env, self._python, self._cwd = dict(env or {}), python or sys.executable, str(cwd or Path.cwd())
        self._connections, self._mpi_args, self._keep = connections, tuple(mpi_args), keep
        self._hosts, named = _hosts(n, hosts, hostfile, ranks_per_host)
        self._backend_name = named if backend == "auto" and named else backend
        if self._backend_name != "auto":
            _known(self._backend_name)
        if connections < 1:
            raise UsageError(f"--connections {connections}: a ring link needs at least 1.")
        if not Path(self._cwd).is_dir():
            raise UsageError(f"--cwd {self._cwd}: there is no such folder.")
        if shutil.which(self._python) is None:
            raise UsageError(f"--python {self._python}: there is no such program.")
        if not re.fullmatch(r"[\w.-]+", name):
            raise UsageError(f"--name {name}: letters, digits, points, dashes and underscores make a name.")
        self._monitor = Monitor(name)
        self._monitor.state = "down"
        self._lifeline: Lifeline | None = None
        self._host: LocalHost | None = None
        self._plan: WorldPlan | None = None
        self._cells = itertools.count(1)
        self._client: Any = None
        self._settings: list[dict[str, Any]] = []
        self._down: Callable[[], None] = lambda: None

    @property
    def size(self) -> int:
        """Number of ranks."""
        return len(self._hosts)

    @property
    def backend(self) -> str:
        """The collective runtime in use; ``auto`` before `up` has chosen."""
        return self._monitor.backend or self._backend_name

    @property
    def state(self) -> str:
        """``down``, ``starting``, ``whole`` or ``broken``."""
        return self._monitor.state

    @property
    def snapshot(self) -> Snapshot:
        """Everything there is to show about the cluster now."""
        return self._monitor.snapshot()

    # Up and down.

    def up(self) -> Self:
        """Start the ranks and form the world.

        Raises CannotStart with the reason; then nothing is left running.
        """
        if self._monitor.state != "down":
            raise UsageError(f"the cluster {self.name!r} is up already.")
        platform = this_platform()
        if self._backend_name == "auto":
            self._backend_name, self.chosen_because = choose(platform, self.size)
        elif reason := cannot_run(self._backend_name, platform, self.size):
            raise CannotStart(reason)
        backend = get_backend(self._backend_name)
        try:
            plan = backend.plan(_world.place(self._hosts, backend, self._connections), connections=self._connections)
        except BackendError as error:
            raise CannotStart(str(error)) from None
        self._monitor = Monitor(self.name)
        self._monitor.backend = plan.backend
        self._plan = plan
        try:
            self._start_processes(plan, platform.mpirun)
            self._wait_for("connected", lambda rank: rank.connected)
            assert self._lifeline is not None
            _world.form(plan, backend, self._monitor, self._lifeline)
            self._wait_for("ready", lambda rank: rank.ready)
        except BaseException:
            self.down()
            raise
        return self

    def _start_processes(self, plan: WorldPlan, mpirun: str | None) -> None:
        token = secrets.token_hex(32)
        self._host = host = LocalHost(self.name, keep=self._keep, python=self._python, on_event=self._on_host_event)
        self._lifeline = lifeline = Lifeline(
            "127.0.0.1", token, on_message=self._monitor.heard, on_gone=self._on_disconnect
        )
        self._arrange_end(host, lifeline)
        self._monitor.acknowledge = lambda uuid, cell: lifeline.tell(uuid, {"do": "acknowledge", "cell": cell})
        settings = [
            rank_settings(
                host,
                placement.rank,
                token=token,
                lifeline_url=lifeline.url,
                lifeline_key=lifeline.key,
                backend=plan.backend,
                cwd=self._cwd,
                env=self._env,
                keep=self._keep,
            )
            for placement in plan.placements
        ]
        self._settings = settings
        for each in settings:
            self._monitor.add(Rank(each["rank"], each["host"], each["uuid"]))
        if host.ended is not None:  # before there was a rank to tell of
            self._on_host_event(host.ended)
        backend: Any = get_backend(plan.backend)
        if backend.launcher == "mpirun":
            command = backend.command(
                plan,
                mpirun=mpirun,
                python_args=[self._python, "-m", "allranks.rank", "--join", "{join}"],
                mpi_args=self._mpi_args,
                as_root=os.geteuid() == 0,
                cores=os.cpu_count() or 1,
            )
            host.launch(command, backend.launcher_env(as_root=os.geteuid() == 0), settings)
        else:
            host.start(settings)
        lifeline.connect_engines(host.client_info)

    def _arrange_end(self, host: LocalHost, lifeline: Lifeline) -> None:
        """`down` at interpreter exit, without keeping the cluster alive for it."""
        keep = self._keep

        def end() -> None:
            lifeline.close()
            if not keep:
                host.end()

        self._down = end
        self._at_exit = weakref.finalize(self, end)
        self._at_exit.atexit = True

    def _wait_for(self, what: str, condition: Callable[[Rank], bool]) -> None:
        monitor = self._monitor

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
        log = self._host.log() if self._host else ""
        return f"\n{log}" if log else ""

    def down(self) -> None:
        """End every process this cluster started and remove its files; harmless when it is down already."""
        if self._monitor.state == "down":
            return
        self._monitor.state = "down"
        if self._client is not None:
            self._client.close()
            self._client = None
        if self._lifeline is not None:
            self._lifeline.close()
        if self._host is not None:
            self._host.end()
        if (finalizer := getattr(self, "_at_exit", None)) is not None:
            finalizer.detach()

    def __enter__(self) -> Self:
        return self.up()

    def __exit__(self, *_: object) -> None:
        self.down()

    # News from the processes.

    def _on_host_event(self, event: Mapping[str, Any]) -> None:
        if event["event"] == "started":
            self._monitor.ranks[event["rank"]].pid = event["pid"]
        elif event["event"] == "ended":
            self._on_ended(event)
        elif event["event"] == "host gone":
            for rank in self._monitor.alive():
                self._monitor.died(
                    rank.rank, f"ended with the host process ({self._python}), which {ended_because(event)}"
                )

    def _on_ended(self, event: Mapping[str, Any]) -> None:
        kind, _, number = event["name"].partition(" ")
        if kind == "rank":
            self._rank_died(int(number), ended_because(event))
        elif kind == "launcher":
            said = "\n".join(line for line in event.get("log", "").splitlines() if line.strip("-"))
            for rank in self._monitor.alive():
                self._monitor.died(
                    rank.rank,
                    f"ended by mpirun, which {ended_because({**event, 'log': ''})}" + (f":\n{said}" if said else ""),
                )
        elif kind == "controller":
            for rank in self._monitor.alive():
                self._monitor.died(rank.rank, f"cannot be reached: ipyparallel's controller {ended_because(event)}")

    def _rank_died(self, number: int, cause: str) -> None:
        self._monitor.died(number, cause)
        if self._lifeline is not None:
            for rank in self._monitor.alive():
                because = f"the world is broken: rank {number} is dead. %distributed heal replaces it"
                self._lifeline.tell(rank.uuid, {"do": "refuse", "because": because})

    def _on_disconnect(self, uuid: str) -> None:
        """A rank's connection closed. Its parent tells how it ended; a rank of mpirun has a parent that does not."""
        self._monitor.disconnected(uuid)
        rank = next((rank for rank in self._monitor.ranks if rank.uuid == uuid), None)
        if rank is not None and self._plan is not None and get_backend(self._plan.backend).launcher == "mpirun":
            threading.Thread(target=self._watch_end, args=(rank,), daemon=True).start()

    def _watch_end(self, rank: Rank) -> None:
        try:
            psutil.Process(rank.pid).wait(2.0)
        except psutil.NoSuchProcess:
            pass
        except psutil.TimeoutExpired:
            return
        self._rank_died(rank.rank, "its process ended (mpirun does not say how)")

    # Cells.

    def run(
        self,
        code: str,
        *,
        ranks: Sequence[int] | int | None = None,
        timeout: float | None = None,
        want_values: bool = True,
        screen: Screen | None = None,
        count: int | None = None,
        max_output: int | None = None,
    ) -> CellResult:
        """Run `code` as an IPython cell on `ranks` (all by default) and wait for its end.

        What ranks raise is in the result (`CellResult.check` raises it). Output is in the result, and shown where a
        `screen` is given. Raises NoCluster, WorldBroken, Busy, UsageError, CellTimeout (after `timeout` seconds) and
        CellInterrupted (Ctrl-C); the ranks live on after each of them.
        """
        cell = self.begin(code, ranks=ranks, want_values=want_values, screen=screen, count=count, max_output=max_output)
        return cell.finish(timeout)

    def begin(
        self,
        code: str,
        *,
        ranks: Sequence[int] | int | None = None,
        want_values: bool = True,
        screen: Screen | None = None,
        count: int | None = None,
        max_output: int | None = None,
    ) -> Cell:
        """Send a cell without waiting; `Cell.finish` follows it and has the result, `Cell.interrupt` stops it."""
        chosen = self.choose_ranks(ranks)
        self._refuse_if_unable(chosen)
        number = next(self._cells)
        assert self._lifeline is not None
        cell = Cell(
            number,
            code,
            chosen,
            self._monitor,
            self._lifeline,
            count=count or number,
            screen=screen,
            want_values=want_values,
            max_output=max_output,
            on_end=self._after_cell,
        )
        cell.start()
        return cell

    def _after_cell(self, cell: Cell) -> str | None:
        """Form the world anew if the cell had to break it; returns what to tell the user."""
        if not cell.broke or self._monitor.state != "broken":
            return None
        if any(rank.dead for rank in self._monitor.ranks) or self._monitor.busy(range(self.size)):
            return None
        started = time.monotonic()
        try:
            self._form_anew()
        except CannotStart as error:
            return f"The world could not be formed anew: {error} %distributed heal tries again."
        return (
            f"The world was formed anew (epoch {self._monitor.epoch}) in {time.monotonic() - started:.2f} s; "
            "all variables are kept."
        )

    def _form_anew(self) -> None:
        """Join a new epoch over the same ranks, in place."""
        assert self._plan is not None and self._lifeline is not None
        backend = get_backend(self._plan.backend)
        placements = _world.place(self._hosts, backend, self._connections)
        plan = backend.plan(placements, epoch=self._plan.epoch + 1, connections=self._connections)
        self._plan = plan
        _world.form(plan, backend, self._monitor, self._lifeline)

    def heal(self, *, source: int | None = None) -> str:
        """Replace dead ranks by new processes and form the world anew; the others keep every variable.

        With ``source``, a new rank gets the variables of that rank, as far as they can travel. Returns a sentence on
        what was kept and what was lost. Raises CannotStart where the backend cannot take in a new process.
        """
        monitor = self._monitor
        if monitor.state in ("down", "starting"):
            raise NoCluster(f"the cluster {self.name!r} is {monitor.state}. Start it with %distributed up.")
        dead = [rank.rank for rank in monitor.ranks if rank.dead]
        if not dead and monitor.state == "whole":
            return "Nothing to heal: every rank is alive and the world is whole."
        if source is not None and (self.choose_ranks(source)[0] in dead):
            raise UsageError(f"rank {source} is dead itself: name a living rank to copy from.")
        assert self._plan is not None
        if get_backend(self._plan.backend).reform != "in place":
            raise CannotStart(
                f"a {self._plan.backend} world cannot take in a new process. Save what you need with "
                "%distributed pull, then %distributed down and up."
            )
        self._end_running_cells()
        self._start_again(dead)
        self._wait_for("connected", lambda rank: rank.connected)
        self._form_anew()
        self._wait_for("ready", lambda rank: rank.ready)
        kept = [rank.rank for rank in monitor.ranks if rank.rank not in dead]
        told = [f"{rank_label(kept)} kept every variable"] if kept else []
        if dead:
            told.append(f"{rank_label(dead)} started empty" if source is None else self._copy_variables(source, dead))
        return f"The world is whole again (epoch {monitor.epoch}): {'; '.join(told)}."

    def _end_running_cells(self) -> None:
        self.interrupt()
        if not self._monitor.wait(lambda: not self._monitor.busy(range(self.size)), HEAL_WAIT):
            busy = rank_label([rank.rank for rank in self._monitor.busy(range(self.size))])
            raise Busy(
                f"{busy} cannot be interrupted. %distributed status says where; %distributed down and up start over."
            )

    def _start_again(self, dead: Sequence[int]) -> None:
        assert self._host is not None
        settings = [{**self._settings[number], "uuid": secrets.token_hex(8)} for number in dead]
        for each in settings:
            self._monitor.replace(Rank(each["rank"], each["host"], each["uuid"]))
        self._host.start(settings)

    def _copy_variables(self, source: int, targets: Sequence[int]) -> str:
        answer = self._ask_all({"do": "dump"}, source)[source]
        header, buffers = answer.result()
        self._push_packed(buffers, targets)
        left = f" except {', '.join(header['left'])}, which cannot travel" if header["left"] else ""
        return f"{rank_label(list(targets))} got the variables of rank {source}{left}"

    def interrupt(self) -> None:
        """SIGINT to every rank that runs a cell; Python code there raises KeyboardInterrupt."""
        if self._lifeline is not None:
            for rank in self._monitor.busy(range(self.size)):
                self._lifeline.tell(rank.uuid, {"do": "interrupt", "cell": rank.cell})

    def choose_ranks(self, ranks: Sequence[int] | int | None) -> list[int]:
        """The ranks meant, checked; all of them for None."""
        if ranks is None:
            return list(range(self.size))
        chosen = sorted({ranks} if isinstance(ranks, int) else set(ranks))
        if not chosen:
            raise UsageError("no ranks were named.")
        if absent := [rank for rank in chosen if not 0 <= rank < self.size]:
            there = "only rank 0 is" if self.size == 1 else f"ranks 0-{self.size - 1} are"
            raise UsageError(f"there is no {rank_label(absent)}: {there} there.")
        return chosen

    def _refuse_if_unable(self, ranks: Sequence[int]) -> None:
        if self._monitor.state in ("down", "starting"):
            raise NoCluster(f"the cluster {self.name!r} is {self._monitor.state}. Start it with %distributed up.")
        if self._monitor.state == "broken":
            dead = "; ".join(f"rank {rank.rank} {rank.dead}" for rank in self._monitor.ranks if rank.dead)
            raise WorldBroken(
                f"the world is broken: {dead or 'a collective was broken off'}. %distributed heal replaces dead ranks "
                "and forms it anew; the other ranks keep their variables."
            )
        if busy := self._monitor.busy(ranks):
            snapshot = self._monitor.snapshot()
            doing = "; ".join(f"rank {rank.rank} {snapshot.ranks[rank.rank].doing}" for rank in busy[:4])
            verb = "is" if len(busy) == 1 else "are"
            raise Busy(
                f"{rank_label([rank.rank for rank in busy])} {verb} still busy with an earlier cell ({doing}). "
                "Wait for it, stop it with %distributed interrupt, or start over with %distributed down and up."
            )

    # Values.

    def push(self, values_by_name: Mapping[str, Any], *, ranks: Sequence[int] | int | None = None) -> None:
        """Set variables on the ranks. Arrays travel as raw bytes. Raises CannotTravel and what `run` raises."""
        for name in values_by_name:
            if not name.isidentifier():
                raise UsageError(f"{name!r} is no variable name.")
        buffers = []
        try:
            buffers = values.pack(dict(values_by_name))
        except values.CannotTravel:
            for name, value in values_by_name.items():
                try:
                    values.pack(value)
                except values.CannotTravel as error:
                    raise CannotTravel(f"{name}: {error}") from None
        self._push_packed(buffers, ranks)

    def _push_packed(self, buffers: Sequence[Any], ranks: Sequence[int] | int | None) -> None:
        for rank, answer in self._ask_all({"do": "push"}, ranks, buffers).items():
            self._answer(rank, answer, "push")

    def pull(self, name: str, *, ranks: Sequence[int] | int | None = None) -> list[Any]:
        """The value of `name` (or of a dotted path such as ``model.layers``) on each rank, in rank order.

        Raises CannotTravel for what cannot be moved, NameError where a rank does not have it, and what `run` raises.
        """
        answers = self._ask_all({"do": "pull", "name": name}, ranks)
        return [values.unpack(self._answer(rank, answer, name)) for rank, answer in answers.items()]

    def _ask_all(
        self, order: dict[str, Any], ranks: Sequence[int] | int | None, buffers: Sequence[Any] = ()
    ) -> dict[int, Future[tuple[dict[str, Any], list[Any]]]]:
        chosen = self.choose_ranks(ranks)
        if self._monitor.state != "broken":
            self._refuse_if_unable(chosen)
        assert self._lifeline is not None
        alive = [rank for rank in chosen if self._monitor.ranks[rank].dead is None]
        return {rank: self._lifeline.ask(self._monitor.ranks[rank].uuid, order, buffers) for rank in alive}

    def _answer(self, rank: int, answer: Future[tuple[dict[str, Any], list[Any]]], name: str) -> list[Any]:
        try:
            header, buffers = answer.result()
        except ConnectionError:
            raise WorldBroken(
                f"rank {rank} ended meanwhile: {self._monitor.ranks[rank].dead or 'its connection closed'}."
            ) from None
        if "error" in header:
            kinds: dict[str, type[Exception]] = {"CannotTravel": CannotTravel, "NameError": UsageError}
            raise kinds.get(header["kind"], CannotTravel)(f"rank {rank}: {name}: {header['error']}")
        return buffers

    # Looking.

    def complete(self, code: str, cursor: int) -> dict[str, Any] | None:
        """Completions the first rank alive knows; evaluates nothing and works while it is busy."""
        header = self._ask_one({"do": "complete", "code": code, "cursor": cursor})
        return header.get("matches") if header else None

    def inspect(self, name: str, detail: int = 0) -> dict[str, str] | None:
        """What a rank says of a name, as a MIME bundle; evaluates nothing and works while it is busy."""
        header = self._ask_one({"do": "inspect", "name": name, "detail": detail})
        return header.get("found") if header else None

    def _ask_one(self, order: dict[str, Any], within: float = 1.0) -> dict[str, Any] | None:
        rank = next((rank for rank in self._monitor.alive() if rank.ready), None)
        if rank is None or self._lifeline is None or self._monitor.state == "down":
            return None
        try:
            return self._lifeline.ask(rank.uuid, order).result(within)[0]
        except (TimeoutError, ConnectionError):
            return None

    @property
    def connection_file(self) -> Path:
        """ipyparallel's client connection file: ``ipyparallel.Client(str(cluster.connection_file))``."""
        if self._host is None or self._monitor.state == "down":
            raise NoCluster("nothing is up. Start a cluster with %distributed up.")
        return self._host.connection_file

    @property
    def client(self) -> Any:
        """A plain ``ipyparallel.Client`` of the same engines; made when first asked for."""
        if self._client is None:
            import ipyparallel

            client = ipyparallel.Client(str(self.connection_file))
            # An engine counts as registered after a heartbeat; ours are up already, so this is at most a second or two.
            deadline = time.monotonic() + 10
            while len(client.ids) < len(self._monitor.alive()) and time.monotonic() < deadline:
                time.sleep(0.02)
            self._client = client
        return self._client

    def status(self) -> str:
        """The status table as text."""
        from allranks_widgets import status_text

        return status_text(self.snapshot)

    def __repr__(self) -> str:
        if self._monitor.state == "down":
            return f"<Cluster {self.name!r}: down>"
        return self.status()

    def _repr_html_(self) -> str | None:
        from allranks_widgets import status_html

        return status_html(self.snapshot) if self._monitor.state != "down" else None


def _hosts(
    n: int | None, hosts: Sequence[str] | None, hostfile: str | Path | None, ranks_per_host: int
) -> tuple[list[Host], str | None]:
    """One Host for every rank, and the backend a hostfile names."""
    if sum(given is not None for given in (n, hosts, hostfile)) > 1:
        raise UsageError("-n, --hosts and --hostfile exclude each other: each says how many ranks there are.")
    if ranks_per_host < 1:
        raise UsageError(f"--ranks-per-host {ranks_per_host}: at least 1 rank a host is needed.")
    named = None
    if hostfile is not None:
        try:
            world = read_hostfile(hostfile)
        except (BackendError, OSError) as error:
            raise UsageError(str(error)) from None
        found, named = list(world.hosts), world.backend
    elif hosts is not None:
        found = [Host(host) for host in hosts]
    else:
        count = DEFAULT_RANKS if n is None else n
        if count < 1:
            raise UsageError(f"-n {count}: a world needs at least 1 rank.")
        return [HERE] * count, None
    if remote := [host.name for host in found if host.name not in LOCAL_NAMES]:
        raise UsageError(
            f"{', '.join(dict.fromkeys(remote))}: ranks on other machines are not supported by this version; "
            "only localhost is. Use -n N for ranks on this machine."
        )
    return [HERE for _ in found for _ in range(ranks_per_host)], named


def _known(backend: str) -> None:
    try:
        get_backend(backend)
    except BackendError as error:
        raise UsageError(str(error)) from None
