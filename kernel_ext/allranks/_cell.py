"""One cell on some ranks: send it, show what comes while it comes, and say how it ended."""

from __future__ import annotations

import queue
import re
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from allranks_backends._plan import rank_label

from ._agreement import Agreement
from ._conversation import Conversation
from ._fold import Block, Fold
from ._keyboard import Read
from ._monitor import Event, Monitor
from ._release import Release
from ._result import CellResult, RankResult
from ._stall import Ended, StallWatch
from ._stop import Stop
from ._views import collective
from .errors import CellInterrupted, CellTimeout, RemoteError

if TYPE_CHECKING:
    from ._lifeline import Lifeline
    from ._recording import Recording

INTERRUPT_WITHIN = 1.6
"""Seconds ranks get to obey an interrupt before the prompt is given back without them."""
RELEASE_WITHIN = 4.5
"""The same where blocked ranks must be released one collective after the other (see `_release`)."""
DRAW_EVERY = 0.1
"""Seconds after which what has come is drawn, and a stop noticed, though more keeps coming."""


class Screen(Protocol):
    """Where a cell is shown (`_show.Show`)."""

    def blocks(self, blocks: list[Block]) -> None: ...
    def live_lines(self, lines: dict[int, str]) -> None: ...
    def close(self) -> None: ...


class Cell:
    """A cell under way. `start` sends it, `finish` follows it to its end."""

    def __init__(
        self,
        number: int,
        code: str,
        ranks: Sequence[int],
        monitor: Monitor,
        lifeline: Lifeline,
        *,
        count: int,
        screen: Screen | None = None,
        want_values: bool = False,
        max_output: int | None = None,
        check: str = "warn",
        ordered: bool = False,
        profile: bool = False,
        recording: Recording | None = None,
        breakpoints: bool = False,
        widgets: bool = False,
        read: Read | None = None,
        alone: bool = False,
        on_end: Callable[[Cell], str | None] = lambda _cell: None,
    ) -> None:
        self.number, self.code, self.ranks = number, code, tuple(ranks)
        self._monitor, self._lifeline, self._screen = monitor, lifeline, screen
        self._options: dict[str, Any] = {"cell": number, "count": count, "value": want_values, "limit": max_output}
        self._options |= {"check": check, "ordered": ordered, "profile": profile, "breakpoints": breakpoints}
        self._options |= {"timeline": recording is not None, "widgets": widgets}
        monitor.comms.wanted |= widgets
        self._recording = recording
        self._check = check
        self._agreement = Agreement(monitor, lifeline, ranks, number)
        self._pending: dict[int, list[str]] = {}
        self.mismatch: str | None = None
        """The first collective on which the ranks disagreed, so that its result is garbage."""
        self._fold = Fold(ranks)
        self._live: dict[int, str] = {}
        self._results = {rank: RankResult(rank) for rank in ranks}
        self._open = set(ranks)
        self._failed_at: float | None = None
        self._watch = StallWatch(self.ranks, alone)
        self._conversation = Conversation(monitor, lifeline, read)
        self._release = Release(monitor, lifeline)
        self._broken = False
        self._releasing = False
        self._releasing_since = float("inf")
        self._given_up = False
        self._on_end = on_end
        self._first_seq: dict[int, int] = {}
        self._started = time.monotonic()
        self._events: queue.SimpleQueue[Event | None] = queue.SimpleQueue()
        self._pressed = Stop()
        self.result: CellResult | None = None

    def __repr__(self) -> str:
        if self.result is not None:
            return f"<Cell {self.number}: {self.result!r}>"
        return f"<Cell {self.number} on {rank_label(list(self.ranks))}: running>"

    def start(self) -> None:
        self._first_seq = {rank: self._monitor.ranks[rank].seq for rank in self.ranks}
        with self._pressed.noted():  # all ranks get the cell, or none
            self._events = self._monitor.listen(self.number, self.ranks)
            for rank in self.ranks:
                uuid = self._monitor.ranks[rank].uuid
                self._lifeline.execute(uuid, self.code, {**self._options, "comms": self._monitor.comms.told(uuid)})

    def adopt(self, events: queue.SimpleQueue[Event | None]) -> None:
        """Follow a cell that another notebook sent; `events` has what is kept of it."""
        self._events = events
        self._first_seq = {}

    def finish(self, timeout: float | None = None) -> CellResult:
        """Follow the cell to its end.

        Ctrl-C interrupts the ranks and raises CellInterrupted; after `timeout` seconds the same raises CellTimeout.
        Both come back within two seconds (five where ranks must be released), also when ranks do not obey; those stay
        busy and are named.
        """
        deadline = None if timeout is None else self._started + timeout
        with self._pressed.noted(self._events):
            try:
                if not self._follow(deadline):
                    self._stop(CellTimeout, f"the cell was stopped after {timeout:g} s.")
            except KeyboardInterrupt:
                self._stop(CellInterrupted, "")
            finally:
                pressed = self._pressed.pressed  # while the last rank's end was handled
                self._pressed.put_off()
                self._close()
        if pressed or self._pressed.pressed:  # at the very end, and yet "Run All" is to stop here
            raise CellInterrupted
        assert self.result is not None
        return self.result

    def interrupt(self) -> None:
        """SIGINT to every rank that still runs the cell."""
        for rank in self._open:
            self._lifeline.tell(self._monitor.ranks[rank].uuid, {"do": "interrupt", "cell": self.number})

    def free(self, ranks: Sequence[int]) -> None:
        """Free those of `ranks` that wait in a collective; their other code goes on."""
        for rank in self._open & set(ranks):
            order = "free" if self._monitor.breakable else "interrupt"
            self._lifeline.tell(self._monitor.ranks[rank].uuid, {"do": order, "cell": self.number})
        self.release()

    def release(self) -> None:
        """Where nothing can be broken: from now on let missing ranks enter what others wait in."""
        self._releasing = not self._monitor.breakable

    def _stop(self, kind: type[BaseException], message: str) -> None:
        self._conversation.end()
        self.interrupt()
        self.release()
        try:
            self._follow(time.monotonic() + (RELEASE_WITHIN if self._releasing else INTERRUPT_WITHIN))
        except KeyboardInterrupt:
            pass
        left = sorted(self._open)
        if left:
            message += (
                f" {self._monitor.snapshot().doing(left)}: still there; neither an interrupt nor a release could end "
                "it. %distributed status shows them; %distributed heal --kill RANKS ends and replaces them."
            )
        raise kind(message.strip()) from None

    def _follow(self, deadline: float | None) -> bool:
        """Handle events until all ranks are done (True) or the deadline has passed (False)."""
        while self._open and not self._given_up:
            self._pressed.raise_if_pressed()
            now = time.monotonic()
            if deadline is not None and now >= deadline:
                return False
            moments = (deadline, self._fold.next_deadline(), self._conversation.next_look())
            until = [moment for moment in moments if moment is not None]
            try:
                event = self._events.get(timeout=max(0.0, min(until) - now) if until else 1.0)
            except queue.Empty:
                event = None
            busy_until = time.monotonic() + DRAW_EVERY
            while event is not None:
                self._handle(event)
                try:
                    event = self._events.get_nowait() if time.monotonic() < busy_until else None
                except queue.Empty:
                    event = None
            self._draw()
            self._say_who_waits()
            self._converse(deadline)
        return True

    def _converse(self, deadline: float | None) -> None:
        """Let the user talk to a rank that stands in the debugger. Raises KeyboardInterrupt for Ctrl-C."""
        conversation = self._conversation
        if blocks := conversation.said():
            self._show(blocks)
        if not conversation.open:  # as a rule; a snapshot costs more than all the rest here
            return
        snapshot = self._monitor.snapshot()
        if not conversation.due([snapshot.ranks[rank] for rank in self._open]):
            return
        self._show(conversation.meanwhile(snapshot, sorted(self._open)))
        if answer := conversation.ask(deadline):
            self._show([Block("text", self.ranks, answer + "\n", "stderr")])

    def _show(self, blocks: list[Block]) -> None:
        self._draw(flush=True)
        if self._screen is not None and blocks:
            self._screen.blocks(blocks)

    def _handle(self, event: Event) -> None:
        what, rank, header, buffers = event
        result = self._results[rank]
        if what == "output":
            self._take(rank, header["items"])
            live = header["live"]
            if live is not None:
                self._live[rank] = live.get("stderr") or live.get("stdout") or ""
        elif what == "began":
            late = self._monitor.ranks[rank].late
            if late:
                self._fold.feed(
                    rank,
                    [("text", "stderr", "printed after the previous cell:\n"), *map(tuple, late)],
                    time.monotonic(),
                )
                late.clear()
        elif what == "done":
            result.ok = header["ok"]
            result.lines, result.nbytes, result.cut = header["lines"], header["bytes"], header["cut"]
            result._packed, result._no_value = buffers, header.get("no_value")
            self._agreement.done(rank, header["shared"])
            self._pending[rank] = header["pending"]
            if header["error"]:
                result.error = _remote_error(header["error"])
                self._note_peer_loss(rank, header["error"])
            self._ended(rank)
        elif what == "debugger":
            self._conversation.heard(rank, header)
        elif what == "enter":
            self._agreement.enter(rank, header["collective"])
        elif what == "freed":
            result.freed = str(collective(header["collective"])) if header["collective"] else "a collective"
            self._broken = self._broken or header.get("broke", False)
        elif what == "dead":
            result.dead = header["cause"]
            text = f"died: {header['cause']}\n"
            self._fold.feed(rank, [("text", "stderr", text)], time.monotonic())
            self._ended(rank)

    def _take(self, rank: int, items: Sequence[Any]) -> None:
        result = self._results[rank]
        shown: list[tuple[Any, ...]] = []
        for item in items:
            if item[0] == "text":
                if RING_NOISE.fullmatch(item[2]):
                    continue
                result._text[item[1]].append(item[2])
            elif item[0] == "error":
                self._note_peer_loss(rank, item[1])
                if result.freed:
                    # MLX's "connection to a peer was lost", with a traceback, would only hide who failed.
                    item = ("text", "stderr", f"freed from {result.freed}\n")
            shown.append(tuple(item))
        self._fold.feed(rank, shown, time.monotonic())

    def _note_peer_loss(self, rank: int, error: Mapping[str, Any]) -> None:
        """A ring's break travels: the neighbours of a freed or dead rank raise too, and are no culprits either."""
        result = self._results[rank]
        lost = PEER_LOST in error["evalue"] or RANK_DEAD.match(error["evalue"])
        if lost and error["collective"] and not result.freed:
            result.freed = str(collective(error["collective"]))

    def _ended(self, rank: int) -> None:
        self._open.discard(rank)
        self._conversation.ended(rank)
        self._live.pop(rank, None)
        self._fold.finish(rank)
        if not self._results[rank].ok and self._failed_at is None:
            self._failed_at = time.monotonic()

    def _draw(self, *, flush: bool = False) -> None:
        blocks = self._fold.drain(time.monotonic(), flush)
        if self._screen is not None:
            if blocks:
                self._screen.blocks(blocks)
            self._screen.live_lines({rank: line for rank, line in self._live.items() if line})

    def _say_who_waits(self) -> None:
        """Say who waits for whom, and free those whose wait is hopeless."""
        since = None if self._failed_at is None else time.monotonic() - self._failed_at
        snapshot = self._monitor.snapshot()
        findings, free = self._watch.look(snapshot, self._ended_how(), since)
        if self._broken:  # nobody will come to what is left of this world
            free += [rank for rank in self._open if snapshot.ranks[rank].state == "waiting" and rank not in free]
        for rank in free:
            order = "free" if self._monitor.breakable else "interrupt"
            self._lifeline.tell(self._monitor.ranks[rank].uuid, {"do": order, "cell": self.number})
        self._releasing = self._releasing or bool(free and not self._monitor.breakable)
        if self._releasing:
            self._release_waiting()
        elif since is not None and since > RELEASE_WITHIN and any(result.dead for result in self._results.values()):
            # What a ring has on its way beyond the second collective never returns when a neighbour has died: the cell
            # ends, and heal carries what these ranks hold over a restart.
            self._given_up = all(snapshot.ranks[rank].state == "waiting" for rank in self._open)
        if self._screen is not None and findings:
            self._screen.blocks([Block("text", each.ranks, each.text + "\n", "stderr") for each in findings])

    def _release_waiting(self) -> None:
        """Where nothing can be broken: let the missing ranks enter, so that the waiting ones return."""
        snapshot = self._monitor.snapshot()
        waiting = [rank for rank in self._open if snapshot.ranks[rank].state == "waiting"]
        if not waiting:
            return
        for rank in waiting:
            self._results[rank].freed = str(snapshot.ranks[rank].collective)
        self._release.step(waiting)
        since = min(self._releasing_since, now := time.monotonic())
        self._releasing_since = since
        dead = any(result.dead for result in self._results.values())
        # Nobody can come in a dead rank's place: the cell ends, and the ranks stay where they are.
        self._given_up = dead and now - since > RELEASE_WITHIN

    def _ended_how(self) -> dict[int, Ended]:
        ended = {}
        for rank, result in self._results.items():
            if rank in self._open:
                continue
            if result.dead:
                ended[rank] = Ended(f"is dead: {result.dead}", True, True)
            elif result.error and not result.freed:
                ended[rank] = Ended(f"raised {result.error}", True)
            elif result.freed:
                ended[rank] = Ended("was freed", False, came=True)
            else:
                ended[rank] = Ended("finished the cell", False)
        return ended

    def _close(self) -> None:
        self._draw(flush=True)
        self._monitor.unlisten(self.number)
        for rank in self._open:  # it was to be freed, and was not
            self._results[rank].freed = None
        blocks = self._look_back()
        self.result = CellResult(self.number, self._results, time.monotonic() - self._started, self.mismatch)
        if self._recording is not None:
            self.result.timeline = self._recording.finish(self.number, stuck=bool(self._open))
        if note := self._on_end(self):
            blocks.append(Block("text", self.ranks, note + "\n", "stderr"))
        if self._screen is not None:
            self._screen.blocks(blocks)
            self._screen.close()

    def _look_back(self) -> list[Block]:
        """What must be said of the collectives of a cell that is over."""
        blocks = []
        if self._check == "warn" and not self._open and self._first_seq:
            self.mismatch = self._agreement.mismatch(self._first_seq)
            if self.mismatch:
                text = f"{self.mismatch}. What they computed there, and after it in this cell, is garbage.\n"
                blocks.append(Block("text", self.ranks, text, "stderr"))
        waiting: dict[str, list[int]] = {}
        for rank, names in self._pending.items():
            waiting.setdefault(", ".join(names), []).append(rank)
        for listing, ranks in waiting.items():
            if listing:
                text = f"pending: {listing} will enter a collective when evaluated, on all ranks together\n"
                blocks.append(Block("text", tuple(ranks), text, "stderr"))
        return blocks

    @property
    def broke(self) -> bool:
        """Whether a collective was freed, lost a neighbour, or left stray bytes: then the world must be formed anew."""
        return self.mismatch is not None or any(result.freed for result in self._results.values())


RING_NOISE = re.compile(
    r"(\[ring\] (Socket \d+ was closed by the peer|Sending to socket \d+ failed.*|Too many send/recv errors.*)\n?)+"
)
"""What MLX writes to stderr, a dozen lines a rank, when a ring breaks; we say it in one (mlx 0.32.4)."""
PEER_LOST = "connection to a peer was lost"
RANK_DEAD = re.compile(r"the world is broken: rank \d+ is dead")
"""What a rank is told that comes to its next collective when the world has just lost another."""
"""What MLX's ring says when a neighbour's socket closed (mlx 0.32.4)."""


def _remote_error(error: Mapping[str, Any]) -> RemoteError:
    return RemoteError(error["ename"], error["evalue"], "\n".join(error["traceback"]), error["line"])
