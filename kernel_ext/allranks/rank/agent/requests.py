"""What the head may ask of a rank: one method a request, called where the type of the request says.

Those that run in the main thread touch the user's variables or MLX; the others answer at once from the agent's thread,
also while the main thread is blocked.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from allranks.machine.files import make_private, write_private
from allranks.machine.shared_tree import DIGEST
from allranks.messages import requests, values
from allranks.messages.questions import Reply
from allranks.messages.requests import Answer, Nothing, Request
from allranks.messages.wire import Buffer
from allranks.rank.arrays.pending import names_in, pending_names, settle
from allranks.rank.collectives.exchanges import exchanges_of
from allranks.rank.collectives.trace import TRACE, now
from allranks.rank.debug import introspection
from allranks.rank.files import found_files, share, shared_names, synced_folder
from allranks.rank.values import checkpoint, process_state, variables
from allranks.rank.values.trial import Trial, try_to_load
from allranks.rank.world import reach

if TYPE_CHECKING:
    from .agent import Agent

Buffers: TypeAlias = Sequence[Buffer]
DONE = Reply(Nothing())
RELOADING = "a module that is reloaded cannot call collectives: call them in a cell"


class Requests:
    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        self._loaded: dict[Path, requests.Loaded] = {}
        """What was loaded from files that are loaded once."""
        self._reloading: int | None = None
        """The reload that the main thread carries out."""
        self._listening: reach.Listening | None = None
        self._shares = share.Shares()
        self._pushed: tuple[int, dict[str, Any]] | None = None
        """Variables that are bound once all ranks have loaded theirs."""

    def handle(self, request: Request, buffers: Buffers) -> Reply[Answer] | None:
        """What is answered, if anything; raises whatever went wrong."""
        method: Callable[[Request, Buffers], Reply[Answer] | None] = getattr(self, str(request.__struct_config__.tag))
        return method(request, buffers)

    # Cells.

    def run_cell(self, request: requests.RunCell, _: Buffers) -> None:
        self._agent.run_cell(request)

    def register(self, _request: requests.Register, _: Buffers) -> None:
        self._agent.register_again()

    def keep_call(self, request: requests.KeepCall, buffers: Buffers) -> Reply[Nothing]:
        self._agent.calls.keep(request.cell, buffers)
        return DONE

    def acknowledge(self, request: requests.Acknowledge, _: Buffers) -> None:
        self._agent.cell.acknowledge(request.cell)

    def decided(self, request: requests.Decided, _: Buffers) -> None:
        self._agent.unblocker.decided(request.cell)

    def interrupt(self, request: requests.Interrupt, _: Buffers) -> None:
        cell, number = self._agent.cell, request.cell
        if number is not None:
            cell.interrupt.stop(number)  # before looking whether it runs: it may begin between the two
        if number is None or (cell.running and number == cell.number):
            self._agent.unblocker.stop()
        elif number == cell.number:
            cell.drop_value()
        else:
            self._agent.unblocker.free_task(number)

    def unblock(self, request: requests.Unblock, _: Buffers) -> None:
        if request.cell == self._agent.cell.number:
            self._agent.unblocker.free()
        else:
            self._agent.unblocker.free_task(request.cell)

    # Collectives.

    def form(self, request: requests.Form, _: Buffers) -> Reply[requests.Joined]:
        return Reply(self._agent.world.form(request))

    def listen_for_hosts(self, request: requests.ListenForHosts, _: Buffers) -> Reply[requests.ListeningAt]:
        self.stop_listening(requests.StopListening(), ())
        self._listening = reach.Listening(request.addresses, request.key, request.within)
        return Reply(requests.ListeningAt(self._listening.ports))

    def stop_listening(self, _request: requests.StopListening, _: Buffers) -> None:
        if self._listening is not None:
            self._listening.stop()
            self._listening = None

    def try_hosts(self, request: requests.TryHosts, _: Buffers) -> Reply[requests.HostsTried]:
        tried = reach.try_all(request.hosts, request.key, request.within, request.measure)
        return Reply(requests.HostsTried(tried))

    def stop_forming(self, _request: requests.StopForming, _: Buffers) -> None:
        self._agent.world.stop_forming()

    def meet(self, request: requests.Meet, _: Buffers) -> None:
        self._agent.peers.meet(request.addresses)

    def ledger_since(self, request: requests.LedgerSince, _: Buffers) -> Reply[requests.Entries]:
        ledger = self._agent.ledger
        entries = [record.entry(record.line) for record in ledger.shared_since(request.after)]
        order = ledger.order
        named = ledger.records({*(number for pair in order.swapped for number in pair), *order.first.order})
        earlier = [record.entry(None) for record in named if record.entered <= request.after]
        evaluated = ledger.evaluated(request.after)
        return Reply(requests.Entries(entries, ledger.swapped(request.after), earlier, evaluated))

    def exchanges(self, request: requests.Exchanges, _: Buffers) -> Reply[requests.Entries]:
        exchanges = exchanges_of(self._agent.ledger)
        return Reply(requests.Entries([self._agent.reporter.collective(record) for record in exchanges], []))

    def abort(self, request: requests.Abort, _: Buffers) -> Reply[Nothing]:
        self._agent.unblocker.release(request.cell, request.newest)
        return DONE

    def enter_missed(self, request: requests.EnterMissed, _: Buffers) -> Reply[requests.Entered]:
        self._agent.ledger.replay(request.entries)
        return Reply(requests.Entered(self._agent.ledger.number))

    def settle(self, _request: requests.Settle, _: Buffers) -> Reply[requests.Entered]:
        invalid = self._agent.ledger.invalid.give_up(self._agent.user_variables())
        settle([*self._agent.user_ns.items(), *self._agent.debugger.held()])
        return Reply(requests.Entered(self._agent.ledger.number, invalid))

    def open_barrier(self, request: requests.OpenBarrier, _: Buffers) -> None:
        if request.cell == self._agent.cell.number:
            self._agent.barrier.open(request.refusal)

    def refuse(self, request: requests.Refuse, _: Buffers) -> None:
        self._agent.unblocker.refuse(request.because)

    def may_connect(self, request: requests.MayConnect, _: Buffers) -> None:
        self._agent.world.listener.entered(request.port)

    def give_up_aborting(self, request: requests.GiveUpAborting, _: Buffers) -> None:
        self._agent.world.give_up_aborting(request.because)

    def pending(self, request: requests.Pending, _: Buffers) -> Reply[requests.Names]:
        if self._agent.ledger.seq == 0:
            return Reply(requests.Names([]))
        return Reply(requests.Names(pending_names(self._agent.user_ns, names_in(request.code))))

    # Variables.

    def push(self, request: requests.Push, buffers: Buffers) -> Reply[requests.Names]:
        self._pushed = None  # frees what a notebook left that ended before it had decided
        pushed = values.unpack(buffers, take=True)
        self._pushed = (request.push, pushed)
        return Reply(requests.Names(list(pushed)))

    def decide_push(self, request: requests.DecidePush, _: Buffers) -> Reply[Nothing]:
        """Raises LookupError where the values to bind are not those that the rank holds."""
        number, pushed = self._pushed or (None, {})
        if number == request.push:
            if request.bind:
                self._agent.user_ns.update(pushed)
            self._pushed = None
        elif request.bind:
            raise LookupError("the rank no longer holds these values")
        return DONE

    def pull(self, request: requests.Pull, _: Buffers) -> Reply[Nothing]:
        return Reply(Nothing(), values.pack(self._named(request.name)))

    def describe(self, request: requests.Describe, _: Buffers) -> Reply[requests.Variables]:
        held = self._agent.user_variables()
        if request.names:
            held = {name: value for name, value in held.items() if name in request.names}
        arrays = self._agent.ledger.invalid
        return Reply(requests.Variables(variables.describe(held, arrays.on_its_way(), set(arrays.names(held)))))

    def describe_leaves(self, request: requests.DescribeLeaves, _: Buffers) -> Reply[requests.Leaves]:
        on_its_way = self._agent.ledger.invalid.on_its_way()
        return Reply(requests.Leaves(variables.describe_leaves(self._named(request.name), on_its_way)))

    def pull_leaf(self, request: requests.PullLeaf, _: Buffers) -> Reply[Nothing]:
        return Reply(Nothing(), values.pack(variables.leaf_at(self._named(request.name), request.path)))

    def _named(self, name: str) -> Any:
        """The value of a dotted path. Raises NameError."""
        root, *path = name.split(".")
        if root not in self._agent.user_ns:
            raise NameError(f"rank {self._agent.config.rank} has no variable {root!r} (%distributed vars lists them)")
        value = self._agent.user_ns[root]
        for part in path:
            if not hasattr(value, part):
                raise NameError(
                    f"rank {self._agent.config.rank} has no {name!r}: {type(value).__name__} has no {part!r}"
                )
            value = getattr(value, part)
        return value

    # Checkpoints.

    def save(self, request: requests.Save, _: Buffers) -> Reply[requests.Saved]:
        state = process_state.taken(self._agent.beginning.environment, self._agent.world.environment)
        variables = {**self._agent.user_variables(), process_state.NAME: state}
        path = self._file(request.path)
        saved = self._saved(checkpoint.save, variables, path, request.aside)
        if request.path is not None:
            return Reply(saved)
        # For a rank on another host: as bytes.
        try:
            return Reply(saved, [path.read_bytes()])
        finally:
            path.unlink()

    def rescue(self, request: requests.Rescue, _: Buffers) -> Reply[requests.Saved]:
        """What the blocked cell has bound may be half computed, and MLX lets other threads read that."""
        variables = self._agent.user_variables()
        old = {name: value for name, value in variables.items() if self._agent.cell.names.was_bound(name)}
        unsure = [name for name in variables if name not in old]
        return Reply(self._saved(checkpoint.rescue, old, Path(request.path), request.aside, unsure))

    def _file(self, path: str | None) -> Path:
        return Path(path or Path(self._agent.config.directory, "carried"))

    def _saved(
        self, save: Any, variables: dict[str, Any], path: Path, aside: str | None, unsure: Sequence[str] = ()
    ) -> requests.Saved:
        agent = self._agent
        if aside is not None:
            make_private(path.parent)
        size = agent.world.group.size() if agent.world.group is not None else 1

        def attempt(file: Path) -> Trial:
            return try_to_load(file, agent.beginning, agent.config.rank, size)

        saved: checkpoint.Saved = save(path, variables, attempt, Path(aside) if aside is not None else None)
        return requests.Saved(saved.left, saved.failed, list(agent.ledger.invalid.names(variables)), list(unsure))

    def load(self, request: requests.Load, buffers: Buffers) -> Reply[requests.Loaded]:
        """One file that could not be loaded wholly stays. One that was loaded is not loaded again."""
        path = self._file(request.path)
        if path in self._loaded and not buffers:  # the notebook was interrupted before it had the answer
            return Reply(self._loaded[path])
        if buffers:
            write_private(path, buffers[0])
        user_ns = self._agent.user_ns
        loaded = checkpoint.load(path, user_ns)
        for name in set(request.invalid) & set(loaded.names):
            self._agent.ledger.invalid.mark(user_ns[name])
        self._agent.world.names.hand_out()
        failed = loaded.failed | (process_state.restore(loaded.state) if loaded.state is not None else {})
        if buffers or not (failed or request.keep):
            _remove(path)
        answer = requests.Loaded(failed)
        if not buffers and not request.keep:
            self._loaded[path] = answer
        return Reply(answer)

    def drop(self, request: requests.Drop, _: Buffers) -> Reply[Nothing]:
        _remove(Path(request.path))
        return DONE

    # The working folder.

    def open_folder(self, request: requests.OpenFolder, _: Buffers) -> Reply[requests.FolderOpened]:
        return Reply(synced_folder.open_folder(request))

    def begin_files(self, request: requests.BeginFiles, _: Buffers) -> Reply[Nothing]:
        synced_folder.begin(request.folder, request.transfer)
        return DONE

    def put_pieces(self, request: requests.PutPieces, buffers: Buffers) -> Reply[Nothing]:
        synced_folder.put(request.folder, request.transfer, request.pieces, buffers)
        return DONE

    def commit_files(self, request: requests.CommitFiles, _: Buffers) -> Reply[requests.FilesCommitted]:
        return Reply(synced_folder.commit(request))

    def drop_files(self, request: requests.DropFiles, _: Buffers) -> Reply[Nothing]:
        synced_folder.drop(request.folder, request.transfer)
        return DONE

    def enter_folder(self, request: requests.EnterFolder, _: Buffers) -> Reply[Nothing]:
        self._agent.enter_folder(request.folder)
        return DONE

    def prepare_reload(self, request: requests.PrepareReload, _: Buffers) -> Reply[requests.ReloadPrepared]:
        folder, allowed = self._agent.beginning.directory, self._agent.cell.interrupt.allowed
        self._agent.ledger.refuse_in_cell(RELOADING)  # a rank whose module fails first would never enter it
        self._reloading = request.reload
        try:
            prepared = self._agent.reloader.prepare(request.reload, request.committed, folder, allowed)
        finally:
            self._reloading = None
            self._agent.ledger.refuse_in_cell(None)
        return Reply(requests.ReloadPrepared(prepared.reloaded, prepared.removed, prepared.error))

    def stop_reload(self, request: requests.StopReload, _: Buffers) -> None:
        if self._reloading == request.reload:
            self._agent.interrupt_main()

    def decide_reload(self, request: requests.DecideReload, _: Buffers) -> Reply[Nothing]:
        self._agent.reloader.decide(request.reload, request.commit)
        return DONE

    def read_printed(self, request: requests.ReadPrinted, _: Buffers) -> Reply[requests.PrintedPart]:
        with share.in_words():
            part, nbytes, incomplete = self._agent.cell.printed.read(request.cell, request.offset)
        return Reply(requests.PrintedPart(nbytes, incomplete), [part])

    def find_files(self, request: requests.FindFiles, _: Buffers) -> Reply[requests.FilesFound]:
        return Reply(found_files.find(request.pattern))

    def digest_files(self, request: requests.DigestFiles, _: Buffers) -> Reply[requests.Digests]:
        return Reply(requests.Digests([found_files.digest(path) for path in request.paths]))

    def read_parts(self, request: requests.ReadParts, _: Buffers) -> Reply[requests.PartsRead]:
        read = [found_files.read(part) for part in request.parts]
        return Reply(requests.PartsRead([state for state, _ in read]), [data for _, data in read])

    def find_share(self, request: requests.FindShare, _: Buffers) -> Reply[requests.ShareFound]:
        return Reply(self._shares.find(request))

    def offer_share(self, request: requests.OfferShare, _: Buffers) -> Reply[requests.ShareOffered]:
        with share.in_words():
            answer, manifest = self._shares.offer(request)
        return Reply(answer, [manifest])

    def accept_share(self, request: requests.AcceptShare, buffers: Buffers) -> Reply[requests.ShareAccepted]:
        with share.in_words():
            return Reply(self._shares.accept(request, bytes(buffers[0])))

    def pull_share(self, request: requests.PullShare, _: Buffers) -> Reply[Nothing]:
        with share.in_words():
            self._shares.accepted(request.transfer).pull(request.host, request.ports)
        return DONE

    def give_blocks(self, request: requests.GiveBlocks, buffers: Buffers) -> Reply[requests.BlocksWanted]:
        blocks = [(bytes(each[:DIGEST]), bytes(each[DIGEST:])) for each in buffers]
        notebook = self._shares.accepted(request.transfer).notebook
        wanted = notebook.give(dict(zip(request.given, blocks)), request.failed, again=request.again)
        return Reply(requests.BlocksWanted(wanted))

    def ask_share(self, request: requests.AskShare, _: Buffers) -> Reply[requests.ShareState]:
        return Reply(self._shares.of(request.transfer).progress())

    def digest_share(self, request: requests.DigestShare, _: Buffers) -> Reply[requests.ShareDigests]:
        with share.in_words():
            numbers, digests = self._shares.of(request.transfer).digests(request.files)
        return Reply(requests.ShareDigests(numbers), [digests])

    def place_share(self, request: requests.PlaceShare, _: Buffers) -> Reply[Nothing]:
        with share.in_words():
            self._shares.accepted(request.transfer).put_in_place()
        return DONE

    def name_share(self, request: requests.NameShare, _: Buffers) -> Reply[Nothing]:
        with share.in_words():
            shared_names.give_names(request.names, request.folder, request.repo)
        return DONE

    def end_share(self, request: requests.EndShare, _: Buffers) -> Reply[Nothing]:
        self._shares.end(request.transfer)
        return DONE

    # Looking into the rank.

    def complete(self, request: requests.Complete, _: Buffers) -> Reply[requests.Completed]:
        return Reply(introspection.complete(self._agent.shell, request.code, request.cursor))

    def inspect(self, request: requests.Inspect, _: Buffers) -> Reply[requests.Inspected]:
        return Reply(requests.Inspected(introspection.inspect(self._agent.user_ns, request.name, request.detail)))

    def console(self, _request: requests.Console, _: Buffers) -> Reply[requests.ConsoleFile]:
        return Reply(requests.ConsoleFile(self._agent.open_console()))

    def look_back(self, _request: requests.LookBack, _: Buffers) -> Reply[Nothing]:
        self._agent.debugger.look_back()
        return DONE

    def debug(self, request: requests.Debug, _: Buffers) -> None:
        self._agent.debugger.put(request.number, request.command)

    def clock(self, _request: requests.Clock, _: Buffers) -> Reply[requests.Time]:
        return Reply(requests.Time(now()))

    def trace(self, request: requests.Trace, _: Buffers) -> Reply[requests.Traced]:
        return Reply(requests.Traced(TRACE.of_cell(request.cell, self._agent.cell.file)))

    # Widgets.

    def page_comms(self, request: requests.PageComms, buffers: Buffers) -> None:
        """Handled once the main thread is idle."""
        self._agent.comms.deliver(request.number, request.messages, buffers)

    def comms_taken(self, request: requests.CommsTaken, _: Buffers) -> None:
        self._agent.comms.taken(request.number, request.every)

    # The process.

    def exit(self, _request: requests.Exit, _: Buffers) -> None:
        self._agent.end_process()


def _remove(path: Path) -> None:
    """A file of variables, and its folder with the last one."""
    path.unlink(missing_ok=True)
    with suppress(OSError):
        path.parent.rmdir()
