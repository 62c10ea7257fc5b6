"""The ranks of a cluster while it is up: the checks before a cell or a request, and the requests."""

from __future__ import annotations

import itertools
import operator
import os
import threading
import time
import weakref
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import Future, wait
from typing import TYPE_CHECKING, Any, SupportsIndex, TypeAlias

from allranks.cluster_settings import Settings
from allranks.errors import (
    Busy,
    CannotTravel,
    CellInterrupted,
    NoAnswer,
    NoCluster,
    RankError,
    UsageError,
    WorldBroken,
    WouldHang,
)
from allranks.head.cell.outcome import invalid_text
from allranks.head.cell.still_busy import WAITED_FOR
from allranks.head.state.make_views import also_lacking, state_of, unfinished
from allranks.head.state.shared_advice import HEALS, continue_text, died_text, kill_text, typed_ranks
from allranks.head.world.change import pending_text
from allranks.head.world.ranks import A, Ranks
from allranks.lifeline.open_questions import Reply, RequestFailed
from allranks.messages.requests import Pending, Question
from allranks.messages.wire import Buffer
from allranks.notebook.stop_button import Stop, undisturbed
from allranks.notebook.transfer_progress import SHOW_EVERY, moved_text, wait_and_show
from allranks_backends.plan import Host, rank_label
from allranks_backends.views import Snapshot

if TYPE_CHECKING:
    from typing import Self

    from allranks.head.state.known_rank import Rank
    from allranks.head.state.logged import Logged
    from allranks.head.state.monitor import Monitor

    from .cell import Cell

Answered: TypeAlias = Reply[A] | RequestFailed
"""The reply of a rank, or the error that it raised instead."""
FREED_WITHIN = 5.0
"""Seconds that a cell waits for ranks that are still ending the previous cell, if that cell broke the world."""
DEATH_KNOWN_WITHIN = 0.5
"""Seconds to wait, after a connection has ended, for the report that its rank died."""
PENDING_WITHIN = 20.0
"""Seconds that an idle rank gets to name its pending variables; a stopped or dead rank is noticed sooner."""
ENDED_KNOWN_WITHIN = 10.0
"""Seconds that an attaching notebook waits for ranks to report how their cells ended."""
REPLAY_WITHIN = 3.0
"""Seconds that a cell waits for ranks that still enter collectives to unblock others."""
NOT_UP = (
    "no cluster is up ({!r} is {}). Start one with %distributed up -n 4, and use allranks.current(). In a script, "
    "call up()."
)


_live_ranks: weakref.WeakSet[LiveRanks] = weakref.WeakSet()
_of_the_parent: list[Ranks] = []
"""In a forked process: objects whose garbage collection would end the parent's ranks or close its sockets."""


def _leave_to_the_parent() -> None:
    """In a forked process, mark all clusters as down: only the process that started a cluster ends it."""
    for live in list(_live_ranks):
        if (ranks := live.ranks) is not None:
            ranks.let_go()
            _of_the_parent.append(ranks)
            live.ranks = live.client = None


os.register_at_fork(after_in_child=_leave_to_the_parent)


class LiveRanks:
    """The ranks of a cluster, and requests to them; all parts of a `Cluster` share one such object."""

    def __init__(self, settings: Settings, hosts: Sequence[Host], backend: str) -> None:
        self.settings, self.hosts = settings, list(hosts)
        self.backend = backend
        """The collective runtime in use; ``auto`` until `up` has chosen one."""
        self.ranks: Ranks | None = None
        """None before `up` and after `down`."""
        self.monitor: Monitor | None = None
        """What the ranks have reported; kept after `down`."""
        self.client: Any = None
        """The ``ipyparallel.Client`` of the ranks' engines; None until `Cluster.client` is first used."""
        self.cell_numbers = itertools.count(1)
        self.following: list[Cell] = []
        """The cells that have not ended."""
        self.formed_late = ""
        """A message to show before the next cell if the world was re-formed late, just before it; else empty."""
        self.changing = threading.RLock()
        """Held while the world is changed, files are copied or modules reloaded: other threads may want the same.

        For example, clicks in a dashboard are handled in another thread.
        """
        self.starting = threading.Lock()
        """Held from the first check of a cell until it is sent to every rank, and while the ranks are started.

        Also held by requests that all ranks must get between the same two cells, such as a pull or a save.
        """
        _live_ranks.add(self)

    @classmethod
    def attached(cls, ranks: Ranks) -> Self:
        """The ranks of a cluster that this notebook has taken over."""
        live = cls(ranks.settings, ranks.hosts, ranks.backend.name)
        live.take(ranks)
        live.cell_numbers = itertools.count(ranks.monitor.last_cell + 1)
        return live

    def take(self, ranks: Ranks) -> None:
        """Use these ranks from now on."""
        self.ranks, self.monitor = ranks, ranks.monitor

    @property
    def size(self) -> int:
        """Number of ranks."""
        return len(self.hosts)

    @property
    def local(self) -> bool:
        """Whether all ranks run on this machine."""
        return all(host.local for host in self.hosts)

    @property
    def state(self) -> str:
        """``down``, ``starting``, ``whole``, ``broken``, or ``incomplete`` if a change of the world did not finish."""
        return state_of(self.ranks.monitor) if self.ranks is not None else "down"

    @property
    def snapshot(self) -> Snapshot:
        """The current state of the cluster, its hosts, ranks and links."""
        ranks = self.ranks  # another thread may call `down` meanwhile
        if ranks is None:
            return Snapshot(self.settings.name, self.backend, "down", 0, ())
        return ranks.monitor.snapshot()

    def ranks_up(self) -> Ranks:
        """The ranks of a cluster that is up; some may be dead. Raises NoCluster if it is down or still starting."""
        if self.ranks is None or self.ranks.monitor.state == "starting":
            raise NoCluster(NOT_UP.format(self.settings.name, self.state))
        return self.ranks

    @property
    def logs(self) -> Logged:
        """What the ranks logged; also after `down`. Raises NoCluster if the cluster was never up."""
        if self.monitor is None:
            raise NoCluster(NOT_UP.format(self.settings.name, "down"))
        return self.monitor.logged

    def choose_ranks(self, ranks: Sequence[int] | int | None) -> list[int]:
        """Return these ranks sorted, without repetition; all ranks for None. Raises UsageError for an invalid rank."""
        if ranks is None:
            return list(range(self.size))
        given: Iterable[SupportsIndex] | SupportsIndex = ranks.tolist() if hasattr(ranks, "tolist") else ranks
        try:
            chosen = sorted({operator.index(rank) for rank in (given if isinstance(given, Iterable) else [given])})
        except TypeError:
            raise UsageError(f"invalid ranks {ranks!r}: use a number or several, such as 0 or [0, 2].") from None
        if not chosen:
            raise UsageError("no ranks given.")
        if absent := [rank for rank in chosen if not 0 <= rank < self.size]:
            there = "only rank 0" if self.size == 1 else f"ranks 0-{self.size - 1}"
            raise UsageError(f"no {rank_label(absent)}: this world has {there}")
        return chosen

    def has_widget(self, model: str) -> bool:
        """Whether this id names the model of a rank's widget, and the page has that model."""
        return self.ranks is not None and self.ranks.monitor.comms.shows(model)

    # Checks before a cell or a request.

    def whole(self) -> Ranks:
        """The ranks; re-forms a broken world first if no rank is dead.

        Raises NoCluster, WorldBroken, CellInterrupted, and CannotStart if the world cannot be re-formed.
        """
        ranks = self.ranks_up()
        if ranks.monitor.state == "broken" and not any(rank.dead for rank in ranks.monitor.ranks):
            # Ranks that a stop has just unblocked are done with their cell in a moment.
            ranks.monitor.wait(lambda: not ranks.monitor.busy(range(self.size)), FREED_WITHIN)
            self._await_stopped(ranks.monitor, range(self.size))
        with self.changing:
            if self.can_form_anew(ranks):  # the last rank was unblocked only after the prompt had returned
                with undisturbed():
                    self.formed_late = f"Before this cell: {self.form_anew(ranks)}"
        self.refuse_if_broken(ranks)
        return ranks

    def can_form_anew(self, ranks: Ranks) -> bool:
        """Whether the world is broken, and every rank is alive, idle, and has its variables."""
        if ranks.monitor.state != "broken" or ranks.owed or any(rank.dead for rank in ranks.monitor.ranks):
            return False
        return not ranks.monitor.busy(range(self.size))

    def form_anew(self, ranks: Ranks) -> str:
        """Re-form the world in place; returns a message for the user, also on the variables. Raises CannotStart."""
        started = time.monotonic()
        ranks.form_again()
        text = f"Re-formed the world in {time.monotonic() - started:.2f} s. All variables were kept."
        left = pending_text(ranks.monitor.left_pending, self.size)
        text = f"{text[:-1]}, but {left}." if left else text
        invalid = {rank.rank: rank.invalid for rank in ranks.monitor.ranks}
        for rank in ranks.monitor.ranks:
            rank.invalid = ()
        return f"{text} {invalid_text(invalid)}".strip()

    def refuse_if_unable(self, chosen: Sequence[int]) -> Ranks:
        """The ranks, if all of `chosen` can take a cell now; re-forms a broken world first if no rank is dead.

        Raises NoCluster, WorldBroken, Busy, CellInterrupted, and CannotStart if the world cannot be re-formed.
        """
        ranks = self.whole()
        self._refuse_if_busy(ranks, chosen)
        if self.ranks is ranks and state_of(ranks.monitor) == "whole":
            return ranks
        return self.whole()  # a cell that was waited for may have broken the world

    def _refuse_if_busy(self, ranks: Ranks, chosen: Sequence[int], in_steps: bool = False) -> None:
        """Raise Busy if some of the `chosen` ranks run a cell; with `in_steps`, only for cells without steps."""
        # Ranks that enter collectives they had missed, to unblock others, are done with it in a moment.
        monitor, wanted = ranks.monitor, set(chosen)
        monitor.wait(lambda: not any(rank.replaying and rank.rank in wanted for rank in monitor.ranks), REPLAY_WITHIN)
        self._await_stopped(monitor, chosen, in_steps)
        if busy := _busy(monitor, chosen, in_steps):
            snapshot = ranks.monitor.snapshot()
            doing = "; ".join(f"rank {rank.rank} {snapshot.ranks[rank.rank].doing}" for rank in busy[:4])
            numbers, verb = [rank.rank for rank in busy], "is" if len(busy) == 1 else "are"
            advice = "or stop it with %distributed interrupt."
            if ranks.monitor.interrupted.issuperset((rank.rank, rank.cell) for rank in busy):
                advice = f"since it was stopped already. To replace instead: {kill_text(numbers)}."
            steps = " A loop that calls log(...) or allranks.end_step() answers after each step."
            hint = steps if in_steps else ""
            raise Busy(
                f"{rank_label(numbers)} {verb} still busy with an earlier cell ({doing}). Wait for it, {advice}{hint}"
            )

    def _await_stopped(self, monitor: Monitor, chosen: Sequence[int], in_steps: bool = False) -> None:
        """Wait for `chosen` ranks whose cell was stopped but still runs: a call into MLX or C cannot be interrupted.

        Gives up after `WAITED_FOR` seconds. Raises CellInterrupted after Ctrl-C.
        """
        until, stop = time.monotonic() + WAITED_FOR, Stop()

        def ending() -> list[int]:
            busy = {rank.rank: rank.cell for rank in _busy(monitor, chosen, in_steps)}
            return list(busy) if monitor.interrupted.issuperset(busy.items()) else []

        if not (left := ending()):
            return

        def done() -> bool:
            return monitor.wait(lambda: not ending(), SHOW_EVERY) or time.monotonic() > until

        def line(rank: int) -> str:
            return f"{monitor.snapshot().ranks[rank].doing}, in the cell that was stopped" if rank in ending() else ""

        doing = monitor.snapshot().doing(left)
        try:
            with stop.noted():
                wait_and_show(done, left, line, stop.raise_if_pressed)
        except KeyboardInterrupt:
            raise CellInterrupted(f"stopped before these ranks had ended the previous cell: {doing}") from None

    def refuse_pending(self, ranks: Ranks, chosen: Sequence[int], code: str) -> None:
        """Raise WouldHang if `code` uses a variable that a `chosen` rank cannot evaluate without the other ranks.

        Such a variable is not evaluated yet, and needs a collective, which all ranks must enter.
        """
        for rank, answer in ranks.ask(chosen, Pending(code)).items():
            try:
                names = answer.result(PENDING_WITHIN).answer.names
            except (TimeoutError, ConnectionError, RequestFailed):
                continue
            if names:
                state = "is not evaluated yet: it needs" if len(names) == 1 else "are not evaluated yet: they need"
                raise WouldHang(
                    f"{', '.join(names)} on rank {rank} {state} a collective, which all ranks "
                    f"must enter. Run the cell on all ranks, or first run mx.eval({', '.join(names)}) on all ranks."
                )

    def refuse_if_broken(self, ranks: Ranks) -> None:
        if state_of(ranks.monitor) == "incomplete":
            raise WorldBroken(unfinished(ranks.owed))
        if ranks.monitor.state == "broken":
            heals = (
                f"{HEALS} and re-forms the world; the other ranks keep their variables.{also_lacking(ranks.monitor)}"
                if ranks.monitor.alive()
                else "%distributed heal starts them again, without variables."
            )
            dead = died_text(ranks.monitor.ranks) or "a collective was aborted"
            raise WorldBroken(f"the world is broken: {dead}. {heals}")

    def await_ended_cells(self) -> None:
        """See `Cluster.await_ended_cells`."""
        monitor = self.ranks_up().monitor
        everybody = range(len(monitor.ranks))
        monitor.wait(lambda: all(rank.report.running for rank in monitor.busy(everybody)), ENDED_KNOWN_WITHIN)

    # Requests.

    def ask_all(
        self,
        question: Question[A],
        ranks: Sequence[int] | int | None,
        buffers: Sequence[Buffer] = (),
        *,
        in_steps: bool = False,
    ) -> dict[int, Future[Reply[A]]]:
        """Send a question to all of `ranks` that are not dead; `all_replies`, which calls this, names the dead ones.

        Raises NoCluster, UsageError, Busy, CellInterrupted, and WorldBroken if all of `ranks` are dead.

        With `in_steps`, ranks whose cell has ended a step (`log`, `end_step`) do not count as busy.
        """
        chosen = self.choose_ranks(ranks)
        # In a broken world, the variables of the living ranks can still be fetched.
        living = self.ranks_up()
        alive = [rank for rank in chosen if not living.monitor.ranks[rank].dead]
        self._refuse_if_busy(living, alive, in_steps)
        asked = living.ask(chosen, question, buffers)
        if not asked:
            self.refuse_if_broken(living)
        return asked

    def dead_among(self, ranks: Sequence[int] | int | None) -> dict[int, str]:
        """Map the dead ones of `ranks` to the cause of their death."""
        known = self.ranks_up().monitor.ranks
        return {rank: cause for rank in self.choose_ranks(ranks) if (cause := known[rank].dead)}

    def refuse_dead(self, chosen: Sequence[int], others: Callable[[Collection[int]], str] = lambda _ranks: "") -> None:
        """Raise WorldBroken if all `chosen` ranks are dead, and NoAnswer if some are.

        NoAnswer includes the sentence that `others` makes on the living ranks.
        """
        dead = self.dead_among(chosen)
        if not dead:
            return
        living = [rank for rank in chosen if rank not in dead]
        if not living:
            self.refuse_if_broken(self.ranks_up())
        answered = others(living) if living else ""
        causes = died_text(self.ranks_up().monitor.ranks[rank] for rank in dead)
        raise NoAnswer(f"{causes}.{' ' if answered else ''}{answered} {HEALS}.")

    def replies(
        self, send: Callable[[], Mapping[int, Future[Reply[A]]]], doing: str = ""
    ) -> tuple[dict[int, Answered[A]], list[int]]:
        """Ask ranks by calling `send` (see `ask_all`), and wait; return the replies, and the ranks that do not answer.

        A notebook shows for each rank what it is `doing`; without that, how much of a large value has been moved.
        Ctrl-C cancels the requests, also while they are sent. Raises CellInterrupted then, WorldBroken if one of these
        ranks died or was removed meanwhile, or the cluster went down, and what `send` raises.
        """
        replies, silent, asked = dict[int, Answered[A]](), list[int](), dict[int, Future[Reply[A]]]()
        stop = Stop(around=True)

        def line(rank: int) -> str:
            return moved_text(*self._moved(rank)) if not doing else "" if asked[rank].done() else doing

        try:
            # If Ctrl-C raised in `concurrent.futures.wait`, locks could stay held and block the lifeline's thread.
            with stop.noted():
                asked.update(send())
                wait_and_show(lambda: not wait(asked.values(), SHOW_EVERY).not_done, asked, line, stop.raise_if_pressed)
        except KeyboardInterrupt:
            raise self._stopped(asked) from None
        for rank, answer in asked.items():
            try:
                replies[rank] = answer.result()
            except RequestFailed as error:
                replies[rank] = error
            except ConnectionError:
                silent.append(rank)
        if silent and self.ranks is not None:
            monitor = self.ranks.monitor
            # A connection closes with its process; the parent process reports the death a moment later.
            known = monitor.ranks
            monitor.wait(lambda: all(rank >= len(known) or known[rank].dead for rank in silent), DEATH_KNOWN_WITHIN)
        views = self.snapshot.ranks
        for rank in silent:
            if rank >= len(views) or views[rank].state == "dead":
                if rank >= len(views):
                    what = "it was removed" if views else "the cluster went down"
                    raise WorldBroken(f"rank {rank} ended in the meantime: {what}.")
                cause = views[rank].cause
                raise WorldBroken(f"rank {rank} ended in the meantime: {cause}. {HEALS}.")
        return replies, silent

    def _moved(self, rank: int) -> tuple[int, int]:
        """Return how many bytes of large values have moved from and to a rank so far, and how many will in total."""
        ranks = self.ranks
        if ranks is None or rank >= len(ranks.monitor.ranks):
            return (0, 0)
        return ranks.lifeline.moved(ranks.monitor.ranks[rank].uuid)

    def _stopped(self, asked: Mapping[int, Future[Reply[A]]]) -> CellInterrupted:
        """After Ctrl-C, cancel the requests, which ends transfers of their values; returns the error to raise."""
        left = [rank for rank, answer in asked.items() if answer.cancel()]
        done = [rank for rank in asked if rank not in left]
        others = f"; {rank_label(done)} had" if done else ""
        if left or not done:
            return CellInterrupted(f"stopped before {rank_label(left) if left else 'a rank'} had answered{others}")
        return CellInterrupted(f"stopped once {rank_label(done)} had answered")

    def all_replies(
        self,
        send: Callable[[], Mapping[int, Future[Reply[A]]]],
        ranks: Sequence[int] | int | None,
        others: Callable[[Collection[int]], str] = lambda _ranks: "",
    ) -> dict[int, Answered[A]]:
        """Ask `ranks` by calling `send`, and return all replies.

        Raises NoAnswer if some ranks are silent or dead, and what `replies` raises. NoAnswer includes the sentence that
        `others` makes on the ranks that answered.
        """
        chosen = self.choose_ranks(ranks)
        replies, silent = self.replies(send)
        if silent:
            raise no_answer(self.snapshot, silent, others(replies) if replies else "")
        if len(replies) < len(chosen):  # the dead ones were not asked
            self.refuse_dead(chosen, others)
        return replies


def unsaid(_line: str) -> None:
    """Ignore a line of progress."""


def reply_or_error(rank: int, reply: Answered[A], name: str) -> Reply[A]:
    """Return the reply, or raise the rank's error: CannotTravel, UsageError for an unknown name, RankError."""
    if isinstance(reply, RequestFailed):
        if reply.kind == "NotPicklable":
            raise CannotTravel(f"rank {rank}: {name}: {reply}")
        if reply.kind == "NameError":
            raise UsageError(str(reply))
        raise RankError(f"rank {rank}: {name}: {reply.kind}: {reply}", reply.traceback)
    return reply


def no_answer(snapshot: Snapshot, silent: Sequence[int], others: str = "") -> NoAnswer:
    """The error that names the `silent` ranks; `others` is a sentence on the other ranks."""
    suspended = [view for view in snapshot.ranks if view.rank in silent and view.suspended]
    who = rank_label([view.rank for view in suspended])
    sentences = (
        f"{rank_label(silent)} {'is' if len(silent) == 1 else 'are'} not responding "
        "(suspended, holding the GIL, or unreachable).",
        others,
        f"To continue {who}: {continue_text(suspended)}." if suspended else "",
        "Try again when %distributed status no longer shows 'suspended' or 'silent'.",
        f"To replace instead: {kill_text(silent)}.",
    )
    return NoAnswer(" ".join(filter(None, sentences)))


def for_others(verb: str, what: str, *, least: int = 1) -> Callable[[Collection[int]], str]:
    """Return a function that makes the sentence on the other ranks: ``For the others: %distributed pull x -r 0.``

    The function returns an empty text for fewer than `least` ranks.
    """
    text = f"For the others: %distributed {verb} {what} -r "
    return lambda ranks: f"{text}{typed_ranks(ranks)}." if len(ranks) >= least else ""


def _busy(monitor: Monitor, chosen: Sequence[int], in_steps: bool) -> list[Rank]:
    """The `chosen` ranks that run a cell; with `in_steps`, only those that would not answer after a step."""
    return [rank for rank in monitor.busy(chosen) if not (in_steps and rank.ends_steps)]
