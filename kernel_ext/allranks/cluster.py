"""What a user holds: a cluster of ranks that stay up between cells."""

from __future__ import annotations

import itertools
import re
import shutil
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import zmq

from allranks_backends._backend import cannot_run, choose
from allranks_backends._plan import Snapshot, rank_label

from . import _debug, _heal
from ._arguments import hosts_of, known_backend, known_check, rdma_links
from ._cell import Cell, Screen
from ._kept import kept_file, kept_names, read_kept
from ._ranks import Answer, Ranks, Settings
from ._recording import Recording
from ._result import CellResult
from ._stop import undisturbed
from ._variables import MOST_COMPARED, Difference, Variables, differing, join, largest_difference
from ._watch import Nowhere, Tee, Watch
from .errors import Busy, CannotStart, CannotTravel, CellInterrupted, NoCluster, UsageError, WorldBroken, WouldHang
from .rank import values

if TYPE_CHECKING:
    from typing import Self

    import pandas

    from allranks_widgets import Dashboard, Recorder

    from ._debug import Debugger
    from ._figures import BenchResult
    from ._logged import Logged
    from ._monitor import Monitor
    from ._timeline import Timeline

JOIN_WITHIN = 600.0
"""Seconds that a scheduler gets to start its ranks."""
REPLAY_WITHIN = 3.0
"""Seconds that a cell waits for ranks which still free others."""


class Cluster:
    """A world of MLX ranks.

    ``n`` ranks on this machine, or one for each entry of ``hosts`` or ``hostfile``. With ``join``, a file that other
    hosts can read, a scheduler starts them: as ``python -m allranks.rank --join FILE``, ``n`` times, within ``timeout``
    seconds. ``profile`` is that of a running ipyparallel cluster, each of whose engines starts one.

    ``backend`` is ``auto``, ``ring``, ``jaccl``, ``jaccl-ring``, ``mpi`` or ``nccl``. ``env`` is set in every rank,
    ``cwd`` is where they work (here by default), ``python`` the interpreter they run. ``connections`` is the number of
    TCP connections of a ring link, ``mpi_args`` go to mpirun. A cluster with ``keep=True`` outlives this process.

    ``check`` says what happens when ranks enter different collectives, which MLX answers with garbage: ``warn`` says so
    after the cell, ``strict`` raises before any rank enters, ``off`` looks away. ``ordered`` (part of ``strict``)
    chains the collectives of a rank, so that evaluation order cannot swap their results.

    Nothing starts before `up`, which ``with`` calls. Raises UsageError for an argument that cannot be.
    """

    def __init__(
        self,
        n: int | None = None,
        *,
        backend: str = "auto",
        hosts: Sequence[str] | str | None = None,
        hostfile: str | Path | None = None,
        ranks_per_host: int = 1,
        join: str | Path | None = None,
        profile: str | None = None,
        timeout: float = JOIN_WITHIN,
        env: Mapping[str, str] | None = None,
        python: str | None = None,
        cwd: str | Path | None = None,
        connections: int = 1,
        mpi_args: Sequence[str] = (),
        name: str = "main",
        keep: bool = False,
        check: str = "warn",
        ordered: bool = False,
    ) -> None:
        self.name = name
        self.check, self.ordered = known_check(check), ordered
        self.chosen_because = ""
        self._join = join is not None or profile is not None
        if self._join and (hosts, hostfile, ranks_per_host) != (None, None, 1):
            raise UsageError(
                "--join and --profile take no --hosts, --hostfile or --ranks-per-host: others start these."
            )
        if join is not None and profile is not None:
            raise UsageError("--join and --profile exclude each other: each says who starts the ranks.")
        self._count, self._profile, self._timeout = n, profile, timeout
        self._hosts, named, told = hosts_of(n, hosts, hostfile, ranks_per_host)
        if self._join:
            self._hosts = []
        here = any(host.local for host in self._hosts)
        self._settings = Settings(
            name=name,
            python=python or sys.executable,
            python_here=(here and python) or sys.executable,
            cwd=str(cwd or Path.cwd()),
            cwd_named=cwd is not None,
            shared=self._join or any(not host.local for host in self._hosts),
            joins=self._join,
            join_file=str(Path(join).expanduser().absolute()) if join is not None else None,
            env={**told, **(env or {})},
            mpi_args=tuple(mpi_args),
            connections=connections,
            keep=keep,
            check=check,
            ordered=ordered,
        )
        self._backend_name = named if backend == "auto" and named else backend
        if self._backend_name != "auto":
            known_backend(self._backend_name)
        if connections < 1:
            raise UsageError(f"--connections {connections}: a ring link needs at least 1.")
        if self._join and self._backend_name == "mpi":
            raise UsageError("mpi ranks are children of mpirun, and these are started by something else: use --hosts.")
        if keep and self._settings.shared:
            raise UsageError("--keep works for ranks on this machine only: those on other hosts end with the notebook.")
        if here and not Path(self._settings.cwd).is_dir():
            raise UsageError(f"--cwd {self._settings.cwd}: there is no such folder.")
        if shutil.which(self._settings.python_here) is None:
            raise UsageError(f"--python {self._settings.python_here}: there is no such program.")
        if not re.fullmatch(r"[\w.-]+", name):
            raise UsageError(f"--name {name}: letters, digits, points, dashes and underscores make a name.")
        self._ranks: Ranks | None = None
        self._cells = itertools.count(1)
        self._client: Any = None
        self._following: list[Cell] = []
        self._monitor: Monitor | None = None
        """What the ranks told, also after `down`."""
        self.start_seconds: float | None = None
        """How long `up` took."""
        self._watch = Watch(lambda: self.snapshot, lambda seen: self._logs.since(seen))
        self._changing = threading.RLock()
        """Held while the world is changed: a click in a dashboard comes in a thread of its own."""
        self.last_bench: BenchResult | None = None
        """What `bench` measured last."""
        self.last_timeline: Timeline | None = None
        """That of the last cell that was recorded."""

    @property
    def size(self) -> int:
        """Number of ranks."""
        return len(self._hosts)

    @property
    def backend(self) -> str:
        """The collective runtime in use; ``auto`` before `up` has chosen."""
        return self._backend_name

    @property
    def state(self) -> str:
        """``down``, ``starting``, ``whole`` or ``broken``."""
        return self._ranks.monitor.state if self._ranks is not None else "down"

    @property
    def snapshot(self) -> Snapshot:
        """Everything there is to show about the cluster now."""
        if self._ranks is None:
            return Snapshot(self.name, self.backend, "down", 0, ())
        return self._ranks.monitor.snapshot()

    # Up and down.

    def up(self, progress: Callable[[str], None] = lambda _text: None) -> Self:
        """Start the ranks and form the world. `progress` is told who is still waited for.

        Raises CannotStart with the reason; then nothing is left running.
        """
        if self._ranks is not None:
            raise UsageError(f"the cluster {self.name!r} is up already.")
        if self._settings.keep and (kept := read_kept(self.name)) is not None and Path(kept.directory).exists():
            raise UsageError(
                f"a kept cluster called {self.name!r} is up already: %distributed attach {self.name} takes it over, "
                "--name starts another."
            )
        began = time.monotonic()
        for tries_left in (2, 1, 0):
            self._ranks = Ranks(self._settings)
            self._monitor = self._ranks.monitor
            try:
                if self._join:
                    self._gather(self._ranks, progress)
                self._choose_backend(self._ranks)
                self._ranks.start(self._hosts, self._backend_name)
            except BaseException as error:
                self.down()
                if isinstance(error, KeyboardInterrupt):
                    raise CellInterrupted("the start was stopped, and nothing is left of it.") from None
                if self._join or not (tries_left and isinstance(error, CannotStart) and _port_was_taken(error)):
                    raise
            else:
                break
        self.start_seconds = time.monotonic() - began
        return self

    def _gather(self, ranks: Ranks, progress: Callable[[str], None]) -> None:
        """Let in the ranks that others start."""
        assert ranks.door is not None
        settings, count = ranks.open_door(), self._count
        if self._profile is not None:
            from ._profiles import spawn_on_engines

            count = spawn_on_engines(self._profile, self._count, settings)
        self._hosts = ranks.gather(count, self._timeout, progress)

    def _choose_backend(self, ranks: Ranks) -> None:
        sites = ranks.sites(self._hosts)
        if self._backend_name == "auto":
            mesh, ring = rdma_links(self._hosts)
            self._backend_name, self.chosen_because = choose(sites, rdma_mesh=mesh, rdma_ring=ring)
        elif reason := cannot_run(self._backend_name, sites):
            raise CannotStart(reason)

    @classmethod
    def attach(cls, name: str = "main") -> Self:
        """Take over a cluster that was started with ``keep=True``, its running cell included (`adopted_cells`).

        Raises NoCluster where there is none of that name.
        """
        kept = read_kept(name)
        if kept is None:
            others = ", ".join(kept_names())
            raise NoCluster(
                f"no kept cluster is called {name!r}" + (f"; there are {others}." if others else ".") + " Clusters "
                "started with %distributed up --keep outlive their notebook and can be attached."
            )
        try:
            settings = Settings(**kept.settings)
        except TypeError:
            raise NoCluster(f"the cluster {name!r} was started by another version of allranks.") from None
        cluster = cls(
            len(kept.ranks),
            backend=kept.backend,
            name=name,
            python=settings.python,
            keep=True,
            check=settings.check,
            ordered=settings.ordered,
        )
        cluster._settings = settings
        try:
            ranks = cluster._ranks = Ranks(settings, kept)
            cluster._monitor = ranks.monitor
        except zmq.ZMQError:
            raise NoCluster(
                f"another notebook still holds the cluster {name!r}: end that one's kernel first."
            ) from None
        except OSError:
            kept_file(name).unlink(missing_ok=True)
            raise NoCluster(f"the cluster {name!r} is no more: its host process has ended.") from None
        ranks.take_over()
        cluster._cells = itertools.count(ranks.monitor.last_cell + 1)
        return cluster

    def adopted_cells(self, screen: Callable[[Sequence[int]], Screen | None] = lambda _ranks: None) -> list[Cell]:
        """The cells that ran, or ended unseen, when `attach` took the cluster over; `Cell.finish` follows one."""
        ranks = self._up()
        cells = []
        for number, (members, events) in sorted(ranks.monitor.adopted().items()):
            cell = Cell(number, "", members, ranks.monitor, ranks.lifeline, count=number, screen=screen(members))
            cell.adopt(events)
            cells.append(cell)
        return cells

    def down(self) -> None:
        """End every process this cluster started and remove its files; harmless when it is down already."""
        ranks, self._ranks = self._ranks, None
        if ranks is None:
            return
        if self._client is not None:
            self._client.close()
            self._client = None
        ranks.end()
        self._watch.stop()

    def __enter__(self) -> Self:
        return self.up()

    def __exit__(self, *_: object) -> None:
        self.down()

    def _up(self) -> Ranks:
        """The living ranks. Raises NoCluster."""
        if self._ranks is None or self._ranks.monitor.state == "starting":
            raise NoCluster(f"the cluster {self.name!r} is {self.state}. Start it with %distributed up.")
        return self._ranks

    # Who is in the world.

    def heal(self, *, source: int | None = None, kill: Sequence[int] = ()) -> str:
        """Replace dead ranks by new processes and form the world anew; the others keep every variable.

        With ``source``, a new rank gets the variables of that rank, as far as they can travel. Ranks to ``kill`` are
        ended first: for one that is stuck where nothing else reaches it. Returns a sentence on what was kept and what
        was lost. Raises CannotStart, and Busy where a cell cannot be interrupted.
        """
        ranks = self._up()
        dead = [rank.rank for rank in ranks.monitor.ranks if rank.dead]
        doomed = self.choose_ranks(kill) if kill else []
        busy = [rank.rank for rank in ranks.monitor.busy(range(self.size))]
        if not dead and not doomed and ranks.monitor.state == "whole":
            stuck = f" {rank_label(busy)} still runs a cell: %distributed interrupt stops it." if busy else ""
            return f"Nothing to heal: every rank is alive and the world is whole.{stuck}"
        if source is not None and self.choose_ranks(source)[0] in (*dead, *doomed):
            raise UsageError(f"rank {source} is dead itself: name a living rank to copy from.")
        with self._changing, undisturbed():
            return _heal.heal(ranks, source, doomed)

    def resize(self, size: int, *, source: int | None = None) -> str:
        """Grow or shrink the world to `size` ranks; those that stay keep their variables. Returns what became of them.

        With ``source``, a new rank gets the variables of that rank, as far as they can travel. Raises what `heal`
        raises.
        """
        ranks = self._up()
        if size < 1:
            raise UsageError(f"resize {size}: a world needs at least 1 rank.")
        if source is not None:
            self.choose_ranks(source)
        dead = [rank.rank for rank in ranks.monitor.ranks if rank.dead]
        if not dead or dead[0] < size:  # a world whose dead ranks go is whole without them
            ranks = self._whole()
        if size == self.size:
            return f"The world has {size} ranks already."
        if reason := cannot_run(self._backend_name, ranks.sites(_heal.resized(ranks.hosts, size))):
            raise CannotStart(reason)
        with self._changing, undisturbed():
            try:
                return _heal.resize(ranks, size, source)
            finally:
                self._hosts = ranks.hosts

    def rewire(self, backend: str | None = None, *, connections: int | None = None) -> str:
        """The same ranks over another backend; they keep their variables. Returns what became of them.

        Raises what `heal` raises.
        """
        ranks = self._whole()
        if connections is not None and connections < 1:
            raise UsageError(f"--connections {connections}: a ring link needs at least 1.")
        name = backend or self._backend_name
        known_backend(name)
        if reason := cannot_run(name, ranks.sites(ranks.hosts)):
            raise CannotStart(reason)
        with self._changing, undisturbed():
            told = _heal.rewire(ranks, name, connections or ranks.settings.connections)
            self._backend_name = name
        return told

    def bench(
        self,
        ops: Sequence[str] = ("all_sum",),
        *,
        smallest: int = 1 << 10,
        largest: int = 64 << 20,
        seconds: float = 0.3,
        compare: Sequence[str] = (),
        connections: Sequence[int] = (),
        progress: Callable[[str], None] = lambda _text: None,
    ) -> BenchResult:
        """Measure these collectives with float32 arrays of `smallest` to `largest` bytes, in powers of two.

        Each call is evaluated by itself, and its values are checked. A size takes about `seconds`, and at least eight
        calls. ``send`` measures every link by itself. With `compare` (backends) or `connections` (of a ring link) the
        ranks are rewired to each choice, and back at the end; they keep their variables as with `rewire`. `progress` is
        called with a line of text before each step. algbw and busbw are defined as in nccl-tests: see
        `BenchResult`.

        Raises UsageError for what cannot be measured, CellFailed where a rank fails, and what `run` and `rewire` raise.
        """
        from ._bench import Bench, sweep

        sizes = sweep(smallest, largest)
        ranks = self._refuse_if_unable(range(self.size))
        result = Bench(
            self,
            ranks,
            ops=ops,
            sizes=sizes,
            seconds=seconds,
            compare=compare,
            connections=connections,
            progress=progress,
        ).run()
        self.last_bench, ranks.monitor.peak = result, result.peak
        return result

    def _whole(self) -> Ranks:
        ranks = self._up()
        with self._changing:
            if self._can_form_anew(ranks):  # the last rank was freed only after the cell's prompt was back
                with undisturbed():
                    ranks.form_anew()
        self._refuse_if_broken(ranks)
        return ranks

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
        check: str | None = None,
        ordered: bool | None = None,
        profile: bool = False,
        timeline: bool | Literal["lazy"] = False,
        breakpoints: bool = False,
    ) -> CellResult:
        """Run `code` as an IPython cell on `ranks` (all by default) and wait for its end.

        What ranks raise is in the result (`CellResult.check` raises it). Output is in the result, `max_output` bytes of
        text a rank (4 MB), and shown where a `screen` is given. `want_values` brings the last expression's value along,
        `count` is the cell's number in tracebacks, `check` and `ordered` replace the cluster's own for this cell.
        `profile` times each collective by evaluating it at once, which costs overlap (`OpView.transfer`, `wait`).
        `timeline` does the same and records when (`CellResult.timeline`); ``"lazy"`` records without evaluating.
        With `breakpoints` a rank stops at ``breakpoint()``, where `debug` goes; without, it passes over it with a line.

        Raises NoCluster, WorldBroken, WouldHang, Busy, UsageError, CellTimeout (after `timeout` seconds) and
        CellInterrupted (Ctrl-C); the ranks live on after each of them.
        """
        cell = self.begin(
            code,
            ranks=ranks,
            want_values=want_values,
            screen=screen,
            count=count,
            max_output=max_output,
            check=check,
            ordered=ordered,
            profile=profile,
            timeline=timeline,
            breakpoints=breakpoints,
        )
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
        check: str | None = None,
        ordered: bool | None = None,
        profile: bool = False,
        timeline: bool | Literal["lazy"] = False,
        breakpoints: bool = False,
        widgets: bool = False,
        read: Callable[[str], str] | None = None,
    ) -> Cell:
        """Send a cell without waiting; `Cell.finish` follows it and has the result, `Cell.interrupt` stops it.

        `widgets` says that it is shown on a page that has widgets, so that tqdm.notebook draws its own.

        `read` (``input``) asks the user for the commands of the debugger, while `Cell.finish` follows the cell.
        """
        check = known_check(check) if check else self.check
        chosen = self.choose_ranks(ranks)
        ranks_up = self._refuse_if_unable(chosen)
        if len(chosen) < self.size:
            self._refuse_pending(ranks_up, chosen, code)
        number = next(self._cells)
        tee = None
        if self._watch.watched and not isinstance(screen, Nowhere):
            tee = Tee(self._watch, screen, number, chosen, code, count or number)
        cell = Cell(
            number,
            code,
            chosen,
            ranks_up.monitor,
            ranks_up.lifeline,
            count=count or number,
            screen=tee or screen,
            want_values=want_values,
            max_output=max_output,
            check=check,
            ordered=self.ordered if ordered is None else ordered,
            profile=profile or timeline is True,
            recording=self._recording(ranks_up, chosen, code, count or number, timeline) if timeline else None,
            breakpoints=breakpoints,
            widgets=widgets,
            read=read,
            on_end=self._after_cell,
        )
        if tee is not None:
            tee.cell = cell
        cell.start()
        self._following.append(cell)
        return cell

    def _recording(self, ranks: Ranks, chosen: list[int], code: str, count: int, how: bool | str) -> Recording:
        about = {"name": self.name, "backend": self.backend, "count": count, "code": code, "size": self.size}
        recording = Recording(ranks.monitor, ranks.lifeline, chosen, {**about, "lazy": how == "lazy"})
        recording.begin()
        return recording

    def _after_cell(self, cell: Cell) -> str | None:
        """Form the world anew if the cell had to break it; returns what to tell the user."""
        ranks = self._ranks
        if cell.result is not None and cell.result.timeline is not None:
            self.last_timeline = cell.result.timeline
        if cell in self._following:
            self._following.remove(cell)
        if ranks is None or not cell.broke:
            return None
        if cell.mismatch and ranks.monitor.breakable:
            ranks.monitor.state = "broken"
        if not self._changing.acquire(blocking=False):
            return None  # somebody heals it at this moment
        started = time.monotonic()
        try:
            if not self._can_form_anew(ranks):
                return None
            ranks.form_anew()
        except CannotStart as error:
            return f"The world could not be formed anew: {error} %distributed heal tries again."
        finally:
            self._changing.release()
        return (
            f"The world was formed anew (epoch {ranks.monitor.epoch}) in {time.monotonic() - started:.2f} s; "
            "all variables are kept."
        )

    def _can_form_anew(self, ranks: Ranks) -> bool:
        """Whether the world is broken, and every rank is alive and idle."""
        if ranks.monitor.state != "broken" or any(rank.dead for rank in ranks.monitor.ranks):
            return False
        return not ranks.monitor.busy(range(self.size))

    def debug(self, rank: int) -> Debugger:
        """The debugger of one rank: at its ``breakpoint()``, or a look back at what its last cell raised.

        ``cluster.debug(2).ask("p x")``. Raises UsageError where there is nothing to look at, and Busy.
        """
        return _debug.enter(self._up(), self.choose_ranks(rank)[0])

    def console(self, rank: int) -> str:
        """Have a rank listen for a console on loopback; returns the shell command that opens one.

        The console is ipyparallel's and Jupyter's own: nothing of it passes through the notebook. Raises UsageError
        for ranks on other hosts, and what `run` raises.
        """
        number = self.choose_ranks(rank)[0]
        if self._settings.shared:
            host = self.snapshot.ranks[number].host
            raise UsageError(
                f"a console reaches ranks of clusters on one machine only. Rank {number} is on {host}: run cells "
                f"on it with %%rank {number}, or look back at an error with %distributed debug -r {number}."
            )
        header = self._told(number, self._ask_all({"do": "console"}, number)[number], "console")
        install = "" if shutil.which("jupyter-console") else "pip install jupyter-console    # it is not here yet\n"
        return f"{install}jupyter console --existing {header['file']}"

    def has_widget(self, model: str) -> bool:
        """Whether the page has this model of a widget on a rank."""
        return self._ranks is not None and self._ranks.monitor.comms.shows(model)

    def interrupt(self, *, ranks: Sequence[int] | int | None = None) -> None:
        """Stop every cell that runs: Python code raises KeyboardInterrupt, blocked collectives are freed.

        On some ``ranks`` only, the cell fails there, and then it is as if these had raised.
        """
        if self._ranks is not None:
            self._ranks.interrupt(self.choose_ranks(ranks))
        if ranks is not None:
            return
        for cell in list(self._following):
            cell.release()

    def break_collectives(self, *, ranks: Sequence[int] | int | None = None) -> None:
        """Free ranks that wait in a collective (``%distributed break``); Python code goes on.

        The cell fails on them, and the world is formed anew when it is over.
        """
        chosen = self.choose_ranks(ranks)
        for cell in list(self._following):
            cell.free(chosen)

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

    def _refuse_if_unable(self, chosen: Sequence[int]) -> Ranks:
        """The living ranks, if all of `chosen` can take a cell now. Raises NoCluster, WorldBroken or Busy."""
        ranks = self._whole()
        self._refuse_if_busy(ranks, chosen)
        return ranks

    def _refuse_if_busy(self, ranks: Ranks, chosen: Sequence[int]) -> None:
        # Ranks that enter collectives they had missed, to free others, are done with it in a moment.
        ranks.monitor.wait(lambda: not any(ranks.monitor.ranks[number].replaying for number in chosen), REPLAY_WITHIN)
        if busy := ranks.monitor.busy(chosen):
            snapshot = ranks.monitor.snapshot()
            doing = "; ".join(f"rank {rank.rank} {snapshot.ranks[rank.rank].doing}" for rank in busy[:4])
            verb = "is" if len(busy) == 1 else "are"
            raise Busy(
                f"{rank_label([rank.rank for rank in busy])} {verb} still busy with an earlier cell ({doing}). "
                "Wait for it, or stop it with %distributed interrupt."
            )

    def _refuse_pending(self, ranks: Ranks, chosen: Sequence[int], code: str) -> None:
        """A cell on some ranks must not evaluate what all ranks have to compute together."""
        for rank, answer in ranks.ask(chosen, {"do": "pending", "code": code}).items():
            try:
                names = answer.result(1.0)[0].get("names", [])
            except (TimeoutError, ConnectionError):
                continue
            if names:
                raise WouldHang(
                    f"{', '.join(names)} on rank {rank} is still to be computed by a collective, which every rank must "
                    f"enter. Run the cell on all ranks, or first mx.eval({', '.join(names)}) on all of them."
                )

    def _refuse_if_broken(self, ranks: Ranks) -> None:
        if ranks.monitor.state == "broken":
            causes: dict[str, list[int]] = {}
            for rank in ranks.monitor.ranks:
                if rank.dead:
                    causes.setdefault(rank.dead, []).append(rank.rank)
            dead = "; ".join(f"{rank_label(numbers)} {cause}" for cause, numbers in causes.items())
            raise WorldBroken(
                f"the world is broken: {dead or 'a collective was broken off'}. %distributed heal replaces dead ranks "
                "and forms it anew; the other ranks keep their variables."
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

        Raises CannotTravel for what cannot be moved, UsageError where a rank does not have it, and what `run` raises.
        """
        answers = self._ask_all({"do": "pull", "name": name}, ranks)
        return [values.unpack(self._answer(rank, answer, name)) for rank, answer in answers.items()]

    def scatter(self, values_by_name: Mapping[str, Any]) -> None:
        """Give each rank its part of these arrays or lists, cut along the first axis.

        Parts are as equal as can be: where `size` does not divide the length, the first ranks get one more (as
        ``numpy.array_split`` cuts). Raises UsageError for what has no first axis, and what `push` raises.
        """
        parts: list[dict[str, Any]] = [{} for _ in range(self.size)]
        for name, value in values_by_name.items():
            if (
                not hasattr(value, "__len__")
                or isinstance(value, (str, bytes, dict))
                or getattr(value, "shape", 1) == ()
            ):
                raise UsageError(f"{name} is a {type(value).__name__}: only arrays, lists and tuples can be scattered.")
            length, start = len(value), 0
            for rank in range(self.size):
                end = start + length // self.size + (rank < length % self.size)
                parts[rank][name] = value[start:end]
                start = end
        for rank, part in enumerate(parts):
            self.push(part, ranks=rank)

    def gather(self, name: str, *, ranks: Sequence[int] | int | None = None) -> Any:
        """The parts of `name` on all ranks, joined along the first axis in rank order: an array, or a list.

        Raises UsageError where they cannot be joined, and what `pull` raises.
        """
        parts = self.pull(name, ranks=ranks)
        try:
            return join(parts)
        except (TypeError, ValueError) as error:
            raise UsageError(
                f"{name} cannot be joined: {error}. %distributed pull brings one value per rank."
            ) from None

    def vars(self, *names: str) -> Variables:
        """What lives on the ranks: type, shape and bytes of each name, and whether ranks agree. Evaluates nothing."""
        told = self._ask_all({"do": "variables", "names": list(names)}, None)
        entries = {rank: self._told(rank, answer, "vars")["variables"] for rank, answer in told.items()}
        known = {entry["name"] for each in entries.values() for entry in each}
        if absent := [name for name in names if name not in known]:
            raise UsageError(f"no rank has a variable {', '.join(absent)}.")
        return Variables(entries)

    def diff(self, name: str) -> list[Difference]:
        """Where replicas of `name` differ: the path of each leaf in it, and how far the values are apart."""
        told = self._ask_all({"do": "leaves", "name": name}, None)
        leaves = {rank: self._told(rank, answer, name)["leaves"] for rank, answer in told.items()}
        differ, said = differing(leaves)
        for path in differ[:MOST_COMPARED]:
            answers = self._ask_all({"do": "leaf", "name": name, "path": path}, None)
            parts = {rank: values.unpack(self._answer(rank, answer, name)) for rank, answer in answers.items()}
            said[path] = largest_difference(parts)
        said |= dict.fromkeys(differ[MOST_COMPARED:], "differs (too many to compare each)")
        return [Difference(name + path, text) for path, text in said.items()]

    def _told(self, rank: int, answer: Answer, name: str) -> dict[str, Any]:
        self._answer(rank, answer, name)
        return answer.result()[0]

    def _ask_all(
        self, order: dict[str, Any], ranks: Sequence[int] | int | None, buffers: Sequence[Any] = ()
    ) -> dict[int, Answer]:
        chosen = self.choose_ranks(ranks)
        # What the living ranks of a broken world hold can still be fetched.
        living = self._up()
        if living.monitor.state != "broken":
            self._refuse_if_broken(living)
        self._refuse_if_busy(living, [rank for rank in chosen if not living.monitor.ranks[rank].dead])
        return living.ask(chosen, order, buffers)

    def _answer(self, rank: int, answer: Answer, name: str) -> list[Any]:
        try:
            header, buffers = answer.result()
        except ConnectionError:
            cause = self.snapshot.ranks[rank].cause or "its connection closed"
            raise WorldBroken(f"rank {rank} ended meanwhile: {cause}.") from None
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
        ranks = self._ranks
        rank = next((rank for rank in ranks.monitor.alive() if rank.ready), None) if ranks is not None else None
        if ranks is None or rank is None:
            return None
        try:
            return ranks.lifeline.ask(rank.uuid, order).result(within)[0]
        except (TimeoutError, ConnectionError):
            return None

    @property
    def connection_file(self) -> Path:
        """ipyparallel's client connection file: ``ipyparallel.Client(str(cluster.connection_file))``."""
        return self._up().host.connection_file

    @property
    def client(self) -> Any:
        """A plain ``ipyparallel.Client`` of the same engines; made when first asked for."""
        if self._client is None:
            import ipyparallel

            client = ipyparallel.Client(str(self.connection_file))
            # An engine counts as registered after a heartbeat; ours are up already, so this is at most a second or two.
            deadline, alive = time.monotonic() + 10, self._up().monitor.alive()
            while len(client.ids) < len(alive) and time.monotonic() < deadline:
                time.sleep(0.02)
            self._client = client
        return self._client

    def watch(self, *views: str) -> Dashboard:
        """The live dashboard, or some of its pictures: ``topology``, ``ranks``, ``throughput``, ``log``.

        It follows the cluster to its end, and keeps what it showed last; `Dashboard.close` ends it before.
        """
        from allranks_widgets.dashboard import VIEWS, Dashboard

        if unknown := [view for view in views if view not in VIEWS]:
            raise UsageError(f"there is no picture {unknown[0]!r}: there are {', '.join(VIEWS)}.")
        living = self._up()
        dashboard = Dashboard(views or VIEWS, on_action=self._act)
        dashboard.history(living.monitor.history.snapshots(living.monitor.snapshot()))
        self._watch.add(dashboard)
        return dashboard

    def record(self, path: str | Path) -> Recorder:
        """Write down what a dashboard would be shown, until the recorder is closed (it is a context manager too).

        ``allranks_widgets.replay(path, Dashboard())`` shows it again, without a cluster.
        """
        from allranks_widgets import Recorder

        self._up()
        recorder = Recorder(path)
        self._watch.add(recorder)
        return recorder

    @property
    def topology(self) -> Dashboard:
        """The picture of hosts, ranks and links."""
        return self.watch("topology")

    def _act(self, verb: str, rank: int | None) -> str | None:
        """What a click in a dashboard asks for; returns what to say."""
        chosen, where = (None, "") if rank is None else ([rank], f" on rank {rank}")
        if verb == "interrupt":
            busy = self._up().monitor.busy(self.choose_ranks(chosen))
            self.interrupt(ranks=chosen)
            return None if busy else f"No cell runs{where}."
        if verb == "break":
            waiting = [view.rank for view in self.snapshot.ranks if view.state == "waiting"]
            self.break_collectives(ranks=chosen)
            asked = [each for each in self.choose_ranks(chosen) if each in waiting]
            return None if asked else f"Nothing waits in a collective{where}."
        if not self._changing.acquire(blocking=False):
            return "The world is being changed already."
        try:
            return self.heal(kill=[each for each in chosen or () if self.snapshot.ranks[each].state != "dead"])
        finally:
            self._changing.release()

    def history(self) -> pandas.DataFrame:
        """The last ten minutes of traffic: bytes a second on each link (``wire``) and by rank (``effective``)."""
        return self._up().monitor.history.frame()

    def logged(self, *names: str) -> pandas.DataFrame:
        """What ranks told with ``log(loss=..., step=...)``, or these names of it; also after `down`.

        One row for each figure: ``rank``, ``step``, ``name``, ``value``, ``time`` (UTC) and ``cell``, the number of the
        cell that told it. Where a rank told one name more than 100,000 times, every second of the older rows is gone.
        """
        return self._logs.frame(names)

    @property
    def _logs(self) -> Logged:
        if self._monitor is None:
            raise NoCluster(f"the cluster {self.name!r} was never up. Start it with %distributed up.")
        return self._monitor.logged

    def status(self) -> str:
        """The status table as text."""
        from allranks_widgets import status_text

        return status_text(self.snapshot)

    def __repr__(self) -> str:
        if self._ranks is None:
            return f"<Cluster {self.name!r}: down>"
        return self.status()

    def _repr_html_(self) -> str | None:
        from allranks_widgets import status_html

        return status_html(self.snapshot) if self._ranks is not None else None


def _port_was_taken(error: CannotStart) -> bool:
    """A port that was free when it was chosen is another process's now: others will do."""
    return any(said in str(error) for said in ("Address already in use", "bind socket"))
