"""The verbs of ``%distributed``: each calls the cluster and shows what it returns."""

from __future__ import annotations

import argparse
import contextvars
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from shlex import quote
from typing import Any

from IPython.display import display

from allranks.check_arguments import not_too_many, slow_text, writable
from allranks.cluster.cell_text import SHOWN
from allranks.cluster.cluster import Cluster
from allranks.cluster.live_ranks import no_answer
from allranks.cluster.run_history import RUNS
from allranks.discovery import discover, doctor
from allranks.environments import setup
from allranks.errors import AllranksError, CannotLoad, CannotSave, CellFailed, CellInterrupted, NoCluster, UsageError
from allranks.head.cell.unblock_ranks import RELEASE_WITHIN
from allranks.head.state.shared_advice import dead_too
from allranks.hosts_from_options import HERE
from allranks.notebook.fold import Block
from allranks.notebook.keyboard import can_ask
from allranks.notebook.notify import Notifier
from allranks.notebook.output_writer import Writer
from allranks.notebook.page_room import LINES
from allranks.notebook.show_blocks import Show
from allranks.typed_options import flag, typed
from allranks.units import count_text, ranks_text
from allranks.up_options import UpOptions
from allranks_backends.plan import alike, rank_label
from allranks_backends.views import AT_REST, NOT_RESPONDING

from . import auto
from .parsers import values_of

OF_IPYTHON = {"In", "Out", "get_ipython", "exit", "quit"}
"""Variables that a notebook needs: no verb may replace them."""


class Verbs:
    """One method for each verb, called with the options that were typed after it."""

    shell: Any
    cluster: Cluster | None
    ended: Cluster | None
    """The cluster that `down` ended last."""
    up_with: UpOptions | None
    """The options of the `up` that started the cluster or took it over; None if `attach` took it over."""
    owes_load: bool
    """Whether the `up` that started the cluster was asked to load a saved state, and has not loaded it yet."""
    notifier: Notifier | None
    """Notifies the user of cells of this and later clusters; None for no notifications."""

    def _need(self) -> Cluster:
        if self.cluster is None or self.cluster.state == "down":
            raise NoCluster("no cluster is up. Start one with %distributed up -n 4.")
        return self.cluster

    def _up(self, options: argparse.Namespace) -> None:
        asked = UpOptions(**values_of(options, UpOptions))
        up = self.cluster if self.cluster is not None and self.cluster.state != "down" else None
        if up is not None and self._as_it_is_up(up, asked):
            print("already up:")
            display(up)  # type: ignore[no-untyped-call]
            _say_times(up, options)
            self._load_as_up_asks(options)
            return
        if up is None and asked.n is not None and not asked.joins and not options.yes:
            not_too_many(f"-n {asked.n}", asked.n)
        cluster = Cluster(**vars(asked))  # raises UsageError for an invalid argument, even if a cluster is up
        cluster.notifier = self.notifier
        if up is not None:
            raise self._already_up(up, asked)
        if cluster.was_left_behind() and self._taken_over(cluster, options):
            self.up_with = asked
            _say_not_loaded(options)
            return
        if asked.joins:
            from allranks.bench.measure import Progress

            with Progress(live=hasattr(self.shell, "kernel")) as progress:
                self.cluster = cluster.up(progress)
        else:
            self.cluster = cluster.up(print)
        self.up_with = asked
        self._go_on_watching(cluster)
        _say_started(cluster)
        _say_times(cluster, options)
        if cluster.auto_sync:
            try:
                print(cluster.sync(progress=print))
            except AllranksError as error:  # the ranks are up nevertheless, and the next cell tries again
                print(f"Not synced. {error}")
        self.owes_load = options.load is not None
        self._load_as_up_asks(options)

    def _taken_over(self, cluster: Cluster, options: argparse.Namespace) -> bool:
        """Take over the ranks of a notebook that is gone. False if they ended meanwhile, so that others can start."""
        print(f"{options.name} still runs, and its notebook is gone: taking it over, with all variables.")
        try:
            self._attach(options)
        except NoCluster as error:
            if cluster.was_left_behind():
                raise
            said = str(error)
            print(f"{said[0].upper()}{said[1:]} Starting others.")
            return False
        return True

    def _load_as_up_asks(self, options: argparse.Namespace) -> None:
        """Load the state that ``--load`` names, unless the ranks were up already.

        If the `up` that started these ranks was asked to load a state and failed to, load the state nevertheless.
        """
        if options.load is None or not self.owes_load:
            _say_not_loaded(options)
            return
        try:
            print(self._need().load(options.load))
        except CannotLoad as error:
            error.args = (f"{error} The ranks are up.",)
            raise
        self.owes_load = False

    def _setup(self, options: argparse.Namespace) -> None:
        from allranks.bench.measure import Progress

        with Progress(live=hasattr(self.shell, "kernel")) as progress:
            made = setup.asked_by(options, progress)
        display(made)  # type: ignore[no-untyped-call]

    def _as_it_is_up(self, cluster: Cluster, asked: UpOptions) -> bool:
        """Whether `up` was run again with the same options (as in "Run All"), or asks for the cluster as it is now.

        False if `attach` took the cluster over: the options of its `up` are unknown.
        """
        return self.up_with is not None and not self._other_than_up(cluster, asked)

    def _other_than_up(self, cluster: Cluster, asked: UpOptions) -> dict[str, object]:
        """The current value of each option that `asked` sets neither as the first `up` did nor to its current value."""
        now = _as_it_is_now(cluster)
        with_up = vars(asked if self.up_with is None else self.up_with)
        return {
            name: now.get(name, with_up[name])
            for name, value in vars(asked).items()
            if value not in (with_up[name], now.get(name)) and name != "timeout"  # it matters only while `up` runs
        }

    def _already_up(self, cluster: Cluster, asked: UpOptions) -> UsageError:
        """The error if `up` asks for a different cluster from the one that is up."""
        what = f"already up: {ranks_text(cluster.size, cluster.backend)}."
        differ = self._other_than_up(cluster, asked)
        if list(differ) == ["sync"]:
            switch = "--on" if asked.sync else "--off"
            return UsageError(f"{what} %distributed sync {switch} switches what --sync does.")
        running = ", ".join(_typed(name, value) for name, value in differ.items())
        how = f" (running with {running})" if differ else ""
        advice = []
        if asked.n and asked.n != cluster.size:
            advice.append(f"Resize with %distributed resize {asked.n}. ")
        if asked.backend not in ("auto", cluster.backend):
            advice.append(f"Change the backend with %distributed rewire --backend {asked.backend}. ")
        if "connections" in differ:
            advice.append(f"Change the links with %distributed rewire --connections {asked.connections}. ")
        return UsageError(f"{what} {''.join(advice)}Other options take %distributed down before up{how}.")

    def _attach(self, options: argparse.Namespace) -> None:
        if self.cluster is not None and self.cluster.state != "down":
            raise UsageError("this notebook already has a cluster. Stop it with %distributed down first.")
        self.cluster, self.up_with, self.owes_load = Cluster.attach(options.name), None, False
        cluster = self.cluster
        cluster.notifier = self.notifier
        self._go_on_watching(cluster)
        display(cluster)  # type: ignore[no-untyped-call]
        failed = dict[int, CellFailed]()
        for cell in cluster.adopted_cells(lambda ranks: Show(ranks, live=hasattr(self.shell, "kernel"))):
            print(f"cell {cell.number} of the previous notebook:")
            try:
                cell.finish().check()
            except CellFailed as error:  # the output of the other cells is shown nevertheless
                failed[cell.number] = error
        if len(failed) == 1:
            raise next(iter(failed.values()))
        if failed:
            said = "; ".join(f"cell {number}: {error}" for number, error in failed.items())
            raise CellFailed(said, {rank: each for error in failed.values() for rank, each in error.errors.items()})

    def _go_on_watching(self, cluster: Cluster) -> None:
        """Have existing dashboards show this cluster."""
        if self.ended is not None:
            cluster.take_dashboards(self.ended)

    def _status(self, _: argparse.Namespace) -> None:
        display(self._need())  # type: ignore[no-untyped-call]

    def _down(self, options: argparse.Namespace) -> None:
        cluster = self._need()
        if options.save is not None:  # if that fails, the ranks stay
            _say_what_comes_first(cluster)
            try:
                print(cluster.save(options.save, complete=True))
            except CannotSave as error:
                error.args = (f"{error} The ranks stay up.",)
                raise
        self.ended, self.cluster = cluster, None
        print(end(cluster))

    def _heal(self, options: argparse.Namespace) -> None:
        print(self._need().heal(source=options.source, kill=options.kill or (), progress=print))

    def _resize(self, options: argparse.Namespace) -> None:
        cluster = self._need()
        if options.size > cluster.size and cluster.local and not options.yes:
            not_too_many(f"resize {options.size}", options.size, cluster.size)
        here = {HERE.name: os.cpu_count() or 1}
        if options.size > cluster.size and cluster.local and (slow := slow_text({HERE.name: options.size}, here)):
            print(slow)
        print(cluster.resize(options.size, source=options.source, progress=print))

    def _rewire(self, options: argparse.Namespace) -> None:
        print(self._need().rewire(options.backend, connections=options.connections, progress=print))

    def _bench(self, options: argparse.Namespace) -> None:
        from allranks.bench.bench_result import BenchResult
        from allranks.bench.measure import Progress
        from allranks.check_arguments import parse_size

        cluster = self._need()
        smallest, largest = parse_size(options.min), parse_size(options.max)
        earlier = BenchResult.load(options.against) if options.against else None
        file = writable("--save", options.save) if options.save else None
        with Progress(live=hasattr(self.shell, "kernel")) as progress:
            result = cluster.bench(
                options.ops,
                smallest=smallest,
                largest=largest,
                seconds=options.seconds,
                compare=options.compare,
                connections=options.connections,
                progress=progress,
            )
        display(result)  # type: ignore[no-untyped-call]
        if file is not None:
            result.save(file)
        if earlier is not None:
            print("\n".join(result.against(earlier)))

    def _doctor(self, options: argparse.Namespace) -> None:
        display(doctor.asked_by(options))  # type: ignore[no-untyped-call]

    def _abort(self, options: argparse.Namespace) -> None:
        waited = self._need().abort_collectives(ranks=options.ranks)
        if waited:
            print(f"Aborted on {rank_label(waited)}.")
        else:
            print(f"Nothing is blocked in a collective.{dead_too(self._need().snapshot)}")

    def _watch(self, options: argparse.Namespace) -> None:
        display(self._need().watch(*options.views))  # type: ignore[no-untyped-call]

    def _runs(self, options: argparse.Namespace) -> None:
        renamed = _run_names([*options.rename, *options.names]) if options.rename else []
        names = _run_names(options.names) if len(renamed) != 2 else []
        if names and (options.rename or options.hide or options.show):
            raise UsageError("--rename, --hide and --show are followed by the runs that they change.")
        for flag_given, value in (("--force", options.force), ("--as", options.logger)):
            if value and options.export is None:
                raise UsageError(f"{flag_given} needs --export.")
        if options.export is not None:
            print(RUNS.export(options.export, *names, logger=options.logger, force=options.force))
        elif options.rename:
            RUNS.rename(*renamed)
        elif options.hide:
            RUNS.hide(*_run_names(options.hide))
        elif options.show:
            RUNS.show(*_run_names(options.show))
        elif len(names) > 2:
            raise UsageError("%distributed runs compares two runs.")
        elif names:
            display(RUNS.compare(*names))  # type: ignore[no-untyped-call]
        else:
            display(RUNS)  # type: ignore[no-untyped-call]

    def _notify(self, options: argparse.Namespace) -> None:
        values = {name: getattr(options, name) for name in ("bell", "browser", "command", "url", "over")}
        given = {name: value for name, value in values.items() if value is not None and value is not False}
        new = self.notifier
        if options.off and given:
            raise UsageError("--off takes no other option.")
        if options.off or given:
            new = None if options.off else replace(new or Notifier(), **given)
        has_ways = new is not None and any((new.bell, new.browser, new.command, new.url))
        if not has_ways and (given or options.test):
            raise UsageError("choose at least one of --browser, --bell, --command and --url.")
        self.notifier = new
        if self.cluster is not None:
            self.cluster.notifier = new
        if new is not None and given:
            new.ask_page()
        if new is not None and options.test:
            new.send("This is a test.")
        print(new or "No notifications: %distributed notify -h lists the ways.")

    def _queue(self, options: argparse.Namespace) -> None:
        queue = self._need().queue
        if options.drop:
            queue.drop(*options.drop)
        elif options.move:
            queue.move(*options.move)
        display(queue)  # type: ignore[no-untyped-call]

    def _interrupt(self, _: argparse.Namespace) -> None:
        cluster = self._need()
        if all(view.state in {*AT_REST, "dead"} for view in cluster.snapshot.ranks):
            print(f"No cell is running.{dead_too(cluster.snapshot)}")
        if still := cluster.interrupt(within=RELEASE_WITHIN):
            print(still)
            return
        views = cluster.snapshot.ranks
        if silent := [view.rank for view in views if view.state in NOT_RESPONDING and view.away is None]:
            text = str(no_answer(cluster.snapshot, silent))
            print(text[0].upper() + text[1:])

    def _push(self, options: argparse.Namespace) -> None:
        cluster = self._need()
        if absent := [name for name in options.names if name not in self.shell.user_ns]:
            raise UsageError(f"the notebook has no variable {', '.join(absent)}.")
        cluster.push({name: self.shell.user_ns[name] for name in options.names}, ranks=options.ranks)

    def _pull(self, options: argparse.Namespace) -> None:
        cluster = self._need()
        ranks, kept_as = cluster.choose_ranks(options.ranks), self._kept_as(options.names)
        for name in options.names:
            values = cluster.pull(name, ranks=ranks)
            self.shell.user_ns[kept_as[name]] = values[0] if len(values) == 1 else values

    def _kept_as(self, names: Sequence[str]) -> dict[str, str]:
        """Map each of these names on ranks to its last part, the name of the notebook's variable. Raises UsageError."""
        kept_as = {name: name.rpartition(".")[2] for name in names}
        for kept, several in alike(kept_as).items():
            if len(several) > 1:
                raise UsageError(f"{' and '.join(several)} would both be {kept} in the notebook: choose one.")
            if kept in OF_IPYTHON:
                raise UsageError(f"{kept} is a variable of IPython in the notebook. Give it another name on the ranks.")
        return kept_as

    def _scatter(self, options: argparse.Namespace) -> None:
        cluster = self._need()
        if absent := [name for name in options.names if name not in self.shell.user_ns]:
            raise UsageError(f"the notebook has no variable {', '.join(absent)}.")
        cluster.scatter({name: self.shell.user_ns[name] for name in options.names})

    def _gather(self, options: argparse.Namespace) -> None:
        cluster, kept_as = self._need(), self._kept_as(options.names)
        for name in options.names:
            self.shell.user_ns[kept_as[name]] = cluster.gather(name, ranks=options.ranks)

    def _vars(self, options: argparse.Namespace) -> None:
        display(self._need().vars(*options.names))  # type: ignore[no-untyped-call]

    def _diff(self, options: argparse.Namespace) -> None:
        differences = self._need().diff(options.name, ranks=options.ranks)
        for each in differences:
            print(f"{each.path}: {each.said}")
        if not differences:
            where = "all ranks" if options.ranks is None else rank_label(sorted({*options.ranks}))
            print(f"{options.name} is identical on {where} (arrays and plain values are compared).")

    def _save(self, options: argparse.Namespace) -> None:
        cluster, names = self._need(), options.names or None
        _say_what_comes_first(cluster)
        if not options.no_wait:
            print(cluster.save(options.path, names))
            return
        saved = cluster.begin_save(options.path, names)

        def report() -> None:
            try:
                print(saved.result())
            except (AllranksError, CellInterrupted) as error:
                self.shell.showtraceback((type(error), error, None))

        # In this cell's context, so that ipykernel shows the output below it and not below the next one.
        threading.Thread(target=contextvars.copy_context().run, args=(report,), daemon=True).start()

    def _load(self, options: argparse.Namespace) -> None:
        cluster = self._need()
        _say_what_comes_first(cluster)
        print(cluster.load(options.path, options.names or None))

    def _discover(self, options: argparse.Namespace) -> None:
        discover.run(options, display, "%distributed discover")

    def _sync(self, options: argparse.Namespace) -> None:
        cluster = self._need()
        if options.on is not None:
            cluster.auto_sync = options.on
        if options.on is False:
            print("Cells no longer bring the folder to the hosts. %distributed sync still does.")
            return
        result = cluster.sync(limit=options.limit, include=options.include, overwrite=options.overwrite, progress=print)
        print(result)

    def _fetch(self, options: argparse.Namespace) -> None:
        print(self._need().fetch(options.pattern, ranks=options.ranks, to=options.to, overwrite=options.overwrite))

    def _share(self, options: argparse.Namespace) -> None:
        print(self._need().share(options.path, source=options.source, to=options.to, overwrite=options.overwrite))

    def _output(self, options: argparse.Namespace) -> None:
        if sum(each is not None for each in (options.last, options.find, options.save)) > 1:
            raise UsageError("choose one of --last, --find and --save.")
        if options.find == "":
            raise UsageError("--find needs a text.")
        file = writable("--save", options.save) if options.save is not None else None
        printed = self._need().printed(ranks=options.ranks)
        most = max(LINES // len(printed.ranks), 1)
        if options.last is not None and options.last > most:
            raise UsageError(
                f"--last {options.last}: use 1 to {most:,} for {rank_label(printed.ranks)}. "
                "-r RANKS chooses fewer ranks, --save FILE writes all lines."
            )
        if not any(printed.nbytes.values()):
            print(f"The last cell printed nothing on {rank_label(printed.ranks)}.")
        elif file is not None:
            print(f"{options.save}: {count_text(printed.save(file), 'line')} of {rank_label(printed.ranks)}.")
        elif options.find is not None:
            blocks, counts = printed.find(options.find)
            Writer(printed.ranks, live=True).write(blocks)
            for count, ranks in alike(counts).items():
                each = "each of " if len(ranks) > 1 else ""
                print(f"{count_text(count, 'line')} with {options.find!r} on {each}{rank_label(ranks)}.")
        else:
            Writer(printed.ranks, live=True).write(printed.last(options.last or min(SHOWN, most)))
        for why, ranks in alike(printed.incomplete).items():
            print(f"Output of {rank_label(ranks)} is incomplete: {why}.")
        if printed.missing:
            print(printed.missing_text())

    def _timeline(self, options: argparse.Namespace) -> None:
        timeline = self._need().last_timeline
        if timeline is None:
            raise UsageError("no timeline yet: run a cell with %%distributed --timeline.")
        if options.file is None:
            display(timeline)  # type: ignore[no-untyped-call]
            return
        timeline.save(options.file)
        how = (
            "the picture" if options.file.endswith(".svg") else "open it in https://ui.perfetto.dev or chrome://tracing"
        )
        print(f"{options.file}: {how}.")

    def _debug(self, options: argparse.Namespace) -> None:
        cluster = self._need()
        rank = cluster.to_debug() if options.rank is None else cluster.choose_ranks(options.rank)[0]
        if cluster.snapshot.ranks[rank].state != "dead" and not can_ask(self.shell):
            raise UsageError(
                "no interactive input here, which %distributed debug needs. From Python: "
                f'allranks.current().debug({rank}).ask("where").'
            )
        debugger = cluster.debug(rank)
        screen = Show([rank], live=False)
        text = debugger.text
        try:
            while debugger.open:
                screen.blocks([Block("text", (rank,), text)] if text else [])
                typed = debugger.ask_user(input)
                text = debugger.ask(typed) if typed is not None else ""
        finally:
            print(debugger.leave())

    def _console(self, options: argparse.Namespace) -> None:
        print(self._need().console(options.rank))

    def _auto(self, options: argparse.Namespace) -> None:
        if options.switch == "on":
            self._need()
        auto.switch(self.shell, options.switch == "on")


VERBS: Mapping[str, Callable[[Verbs, argparse.Namespace], None]] = {
    "up": Verbs._up,
    "setup": Verbs._setup,
    "attach": Verbs._attach,
    "status": Verbs._status,
    "down": Verbs._down,
    "heal": Verbs._heal,
    "resize": Verbs._resize,
    "rewire": Verbs._rewire,
    "bench": Verbs._bench,
    "doctor": Verbs._doctor,
    "abort": Verbs._abort,
    "watch": Verbs._watch,
    "runs": Verbs._runs,
    "notify": Verbs._notify,
    "queue": Verbs._queue,
    "interrupt": Verbs._interrupt,
    "push": Verbs._push,
    "pull": Verbs._pull,
    "scatter": Verbs._scatter,
    "gather": Verbs._gather,
    "vars": Verbs._vars,
    "diff": Verbs._diff,
    "save": Verbs._save,
    "load": Verbs._load,
    "discover": Verbs._discover,
    "sync": Verbs._sync,
    "fetch": Verbs._fetch,
    "share": Verbs._share,
    "output": Verbs._output,
    "timeline": Verbs._timeline,
    "debug": Verbs._debug,
    "console": Verbs._console,
    "auto": Verbs._auto,
}
"""The method of each verb."""


def end(cluster: Cluster) -> str:
    """End the ranks; returns a text on which ranks have ended."""
    dead = [view.rank for view in cluster.snapshot.ranks if view.state == "dead"]
    cluster.down()
    if not cluster.not_ended:
        ended = [f"{ranks_text(cluster.size - len(dead))} ended."] if len(dead) < cluster.size else []
        were = [f"{rank_label(dead).capitalize()} {'was' if len(dead) == 1 else 'were'} dead already."] if dead else []
        return " ".join([*ended, *were])
    return (
        f"Ended all ranks but those on {', '.join(cluster.not_ended)}, which cannot be reached. They end when these "
        "hosts are reached again, as long as this kernel runs, or when their lease runs out."
    )


def _say_what_comes_first(cluster: Cluster) -> None:
    if (folder := cluster.saves_to) is not None:
        print(f"Waiting until {folder} is saved.")


def _say_started(cluster: Cluster) -> None:
    if cluster.chosen_because:
        print(f"backend: {cluster.chosen_because}")
    if cluster.chosen_network:
        print(f"network: {cluster.chosen_network}")
    if cluster.working_folders:
        print(f"folders: {cluster.working_folders}")
    for other in cluster.beside:
        print(other.beside)
    display(cluster)  # type: ignore[no-untyped-call]


def _say_times(cluster: Cluster, options: argparse.Namespace) -> None:
    if options.timing:
        print(cluster.start_times or "No start times: this cluster was taken over from another notebook.")


def _run_names(words: Sequence[str]) -> list[str]:
    """Group words into names of runs: ``run 3`` is one name, even without quotes."""
    names, left = list[str](), list(words)
    while left:
        name = left.pop(0)
        names.append(f"run {left.pop(0)}" if name == "run" and left and left[0].isdecimal() else name)
    return names


def _say_not_loaded(options: argparse.Namespace) -> None:
    if options.load is not None:
        print(f"Not loaded, since these ranks have variables already. To load: %distributed load {quote(options.load)}")


def _as_it_is_now(cluster: Cluster) -> dict[str, object]:
    """The current values of the options of `up` that `resize`, `rewire` and `sync` change."""
    return {
        "n": cluster.size,
        "backend": cluster.backend,
        "connections": cluster.connections,
        "sync": cluster.auto_sync,
    }


def _typed(name: str, value: object) -> str:
    """An option of `up` as it would be typed, without the values of environment variables, which may be secret."""
    option = flag(name, typed(UpOptions)[name][1])
    if value is None or isinstance(value, bool):
        return option if value else f"no {option}"
    if isinstance(value, Mapping):
        value = [f"{variable}=…" for variable in value]
    if isinstance(value, (list, tuple)):
        value = ",".join(map(str, value))
    return f"{option} {value}"
