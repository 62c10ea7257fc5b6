"""The agent: the small thread inside each rank that owns the ledger, the meters and the lifeline.

It goes on while the main thread is blocked in a collective (MLX releases the GIL there), so it can always say where the
rank is, hand over what was printed, and interrupt Python code. It never evaluates an array.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

from . import carry, look, pending, values
from .cell import CellRecorder
from .config import RankConfig
from .gate import Gate
from .ledger import Ledger, Record
from .lifeline import Header, Lifeline
from .meters import Meters
from .world import World

EXIT = os._exit  # the engine wraps os._exit for the user's calls; this one is ours
TICK_RUNNING = 0.2
"""Seconds between reports while a cell runs."""
TICK_IDLE = 1.0
SEND_EVERY = 0.03
"""Seconds between two batches of output: enough for an eye, and few enough messages for Jupyter."""
SIGNAL_AFTER = 0.4
"""Seconds a freed collective gets to raise before the main thread is sent SIGINT as well."""
ORPHAN_AFTER = 8.0
"""Seconds without a notebook after which a rank that may not outlive it ends itself."""


class Agent:
    """One per rank process. `call_main` runs a function in the main thread once that is idle."""

    def __init__(self, config: RankConfig, call_main: Callable[[Callable[[], None]], None]) -> None:
        self.config = config
        self.user_ns: dict[str, Any] = {}
        self.ledger = Ledger()
        self.meters = Meters()
        self.world = World(self)
        self._call_main = call_main
        self._main = threading.main_thread()
        self._ready = False
        self._reported: Header = {}
        self._reported_at = 0.0
        self._sent_output_at = 0.0
        self._disconnected_at: float | None = time.monotonic()
        self._memory: dict[str, int | None] = {}
        self._memory_at = 0.0
        self.lifeline = Lifeline(
            config.lifeline_url,
            config.lifeline_key.encode(),
            config.uuid.encode(),
            on_connect=self._greet,
            on_message=self._obey,
            on_tick=self._tick,
            on_disconnect=self._lost_notebook,
        )
        self.gate = Gate(self)
        self.cell = CellRecorder(self)

    def start(self) -> None:
        self.lifeline.start()

    def engine_ready(self, shell: Any) -> None:
        """The ipyparallel engine can take cells: called by the engine when it has registered."""
        shell.user_ns.update(self.user_ns)
        self.user_ns = shell.user_ns
        self.shell = shell
        self.world.set_names()
        self.cell.forget_output()
        self._ready = True
        self.lifeline.send({"say": "ready", **self.meters.memory()})

    shell: Any = None

    def _greet(self) -> None:
        """Tell a notebook that has just connected who this is and what it missed."""
        self._disconnected_at = None
        self._reported = {}
        self.lifeline.send(
            {
                "say": "hello",
                "token": self.config.token,
                "rank": self.config.rank,
                "pid": os.getpid(),
                "host": self.config.host,
                "ready": self._ready,
                "epoch": self.world.epoch,
                "cell": self.cell.number,
                "open": self.cell.open,
            }
        )
        self.cell.resend()

    def _lost_notebook(self) -> None:
        self._disconnected_at = time.monotonic()

    # What the notebook may ask for. Each answer carries the number of the question.

    def _obey(self, header: Header, buffers: Sequence[Any]) -> None:
        order = getattr(self, f"_do_{header['do']}")
        in_main = header["do"] in ("form", "push", "pull", "save", "load", "replay")
        question = header.get("ask")

        def carry_out() -> None:
            try:
                answer, out = order(header, buffers)
            except BaseException as error:
                answer = {"error": str(error) or type(error).__name__, "kind": type(error).__name__}
                if not isinstance(
                    error, (values.CannotTravel, KeyboardInterrupt, TimeoutError, RuntimeError, NameError)
                ):
                    answer["traceback"] = traceback.format_exc()
                out = []
            if question is not None:
                self.lifeline.send({"say": "answer", "ask": question, **answer}, out)

        if in_main:
            # The message's memory belongs to ZeroMQ's frame, which the closure keeps alive.
            self._call_main(carry_out)
        else:
            carry_out()

    def _do_form(self, header: Header, _: Sequence[Any]) -> tuple[Header, list[Any]]:
        return self.world.form(header), []

    def _do_push(self, header: Header, buffers: Sequence[Any]) -> tuple[Header, list[Any]]:
        pushed = values.unpack(buffers)
        self.user_ns.update(pushed)
        return {"names": list(pushed)}, []

    def _do_pull(self, header: Header, _: Sequence[Any]) -> tuple[Header, list[Any]]:
        name = header["name"]
        root, _, path = name.partition(".")
        if root not in self.user_ns:
            raise NameError(f"no variable {root!r} on rank {self.config.rank}")
        value = self.user_ns[root]
        for part in path.split(".") if path else ():
            value = getattr(value, part)
        return {}, values.pack(value)

    def _do_save(self, header: Header, _: Sequence[Any]) -> tuple[Header, list[Any]]:
        """Write the user's variables to a file of the cluster's, for a process that takes over."""
        variables = carry.user_variables(self.user_ns, self.shell.user_ns_hidden)
        return {"left": carry.save(Path(header["path"]), variables)}, []

    def _do_load(self, header: Header, _: Sequence[Any]) -> tuple[Header, list[Any]]:
        """Take over the variables in a file that `save` wrote."""
        path = Path(header["path"])
        self.user_ns.update(carry.load(path))
        if not header.get("keep"):
            path.unlink()
        return {}, []

    def _do_interrupt(self, header: Header, _: Sequence[Any]) -> tuple[Header, list[Any]]:
        """Stop a cell: a blocked collective is broken where that is possible, Python code gets a SIGINT.

        An idle rank has nothing to stop.
        """
        if self.cell.running and (header.get("cell") in (None, self.cell.number)):
            if self._free():
                # A thread of the user's own may be what the main thread waits for: then it needs the signal too.
                self._signal_at = (time.monotonic() + SIGNAL_AFTER, self.cell.number)
            else:
                signal.pthread_kill(self._main.ident or 0, signal.SIGINT)
        return {}, []

    def _do_free(self, header: Header, _: Sequence[Any]) -> tuple[Header, list[Any]]:
        """Make the collective this rank waits in raise; nothing happens if it waits in none."""
        if self.cell.running and header["cell"] == self.cell.number:
            self._free()
        return {}, []

    def _do_records(self, header: Header, _: Sequence[Any]) -> tuple[Header, list[Any]]:
        """The collectives this rank asked for after number `after`."""
        after = header["after"]
        records = [list(record) for record in self.ledger.since(after)]
        return {"records": records, "swapped": self.ledger.swapped(after)}, []

    def _do_replay(self, header: Header, _: Sequence[Any]) -> tuple[Header, list[Any]]:
        """Enter collectives this rank missed, with zeros, so that those blocked in them return."""
        self.ledger.replay(header["records"])
        return {"seq": self.ledger.seq}, []

    def _do_open(self, header: Header, _: Sequence[Any]) -> tuple[Header, list[Any]]:
        """The ranks agree on the next collective, or they do not (`refusal` says how)."""
        if header["cell"] == self.cell.number:
            self.gate.open(header.get("refusal"))
        return {}, []

    def _do_pending(self, header: Header, _: Sequence[Any]) -> tuple[Header, list[Any]]:
        """Which variables that `code` mentions wait for a collective."""
        if self.ledger.seq == 0:
            return {"names": []}, []
        return {"names": pending.pending_names(self.user_ns, pending.names_in(header["code"]))}, []

    def ask_to_enter(self, record: Record) -> None:
        """Tell the notebook what this rank is about to enter."""
        self.lifeline.send({"say": "enter", "cell": self.cell.number, "collective": self._collective(record)})

    def _do_refuse(self, header: Header, _: Sequence[Any]) -> tuple[Header, list[Any]]:
        """The world is broken elsewhere: enter no more collectives in it."""
        self.ledger.refuse = header["because"]
        return {}, []

    def _free(self) -> bool:
        record = self.ledger.last()
        if record is None or record.seq <= self.cell.first_seq:
            return False
        if self.gate.closed:
            self.lifeline.send({"say": "freed", "cell": self.cell.number, "collective": self._collective(record)})
            self.gate.open("freed, since not every rank came")
            return True
        if not self.world.breakable:
            return False
        if not self.meters.main_thread_asleep():
            return False
        self.ledger.refuse = (
            "the world is broken, since a blocked collective was freed; it is formed anew after the cell"
        )
        freed = {"say": "freed", "cell": self.cell.number, "collective": self._collective(record)}
        self.lifeline.send({**freed, "broke": True})
        self.world.break_up()
        return True

    def current_collective(self) -> list[Any] | None:
        """The newest collective of the running cell."""
        record = self.ledger.last()
        return self._collective(record) if record is not None and record.seq > self.cell.first_seq else None

    def _collective(self, record: Record) -> list[Any]:
        line = record.line if record.file == self.cell.file else None
        return [record.seq, record.op, list(record.shape), record.dtype, record.nbytes, line, record.shared]

    _signal_at: tuple[float, int] | None = None
    """When to send SIGINT, and for which cell."""

    def _do_complete(self, header: Header, _: Sequence[Any]) -> tuple[Header, list[Any]]:
        return {"matches": look.complete(self.shell, header["code"], header["cursor"])}, []

    def _do_inspect(self, header: Header, _: Sequence[Any]) -> tuple[Header, list[Any]]:
        return {"found": look.inspect(self.user_ns, header["name"], header.get("detail", 0))}, []

    def _do_acknowledge(self, header: Header, _: Sequence[Any]) -> tuple[Header, list[Any]]:
        self.cell.acknowledge(header["cell"])
        return {}, []

    def _do_exit(self, header: Header, _: Sequence[Any]) -> tuple[Header, list[Any]]:
        """End cleanly if the main thread is free; the host process ends the rank otherwise."""
        self._call_main(self.config.stop)
        return {}, []

    # Reports.

    def _tick(self) -> float:
        now = time.monotonic()
        self._end_if_orphaned(now)
        if self._signal_at is not None and now >= self._signal_at[0]:
            number, self._signal_at = self._signal_at[1], None
            if self.cell.running and self.cell.number == number:
                signal.pthread_kill(self._main.ident or 0, signal.SIGINT)
        wait = self._send_output(now)
        every = TICK_RUNNING if self.cell.running else TICK_IDLE
        if now - self._reported_at >= every:
            self._report(now)
        return min(wait, max(0.0, self._reported_at + every - now) if self.lifeline.connected else TICK_IDLE)

    def _send_output(self, now: float) -> float:
        """Send what was printed, at most every SEND_EVERY seconds; return when to look again."""
        due = self._sent_output_at + SEND_EVERY
        if self.cell.ended or now >= due:
            if self.cell.send_output():
                self._sent_output_at = now
            return TICK_RUNNING if self.cell.running else TICK_IDLE
        return max(0.001, due - now)

    def _report(self, now: float) -> None:
        state = self._state()
        if now - self._memory_at >= TICK_IDLE:
            self._memory, self._memory_at = {**self.meters.memory(), "cpu": round(self.meters.cpu(), 2)}, now  # type: ignore[dict-item]
        self._reported_at = now
        report = {**state, **self._memory}
        # A changed report is news; an unchanged one still says "alive" so that a stopped process is noticed.
        if report != self._reported or self.cell.running or now - self._alive_at >= 2 * TICK_IDLE:
            self._reported, self._alive_at = report, now
            self.lifeline.send({"say": "state", **report})

    _alive_at = 0.0

    def _state(self) -> Header:
        state: Header = {"running": self.cell.running, "cell": self.cell.number, "seq": self.ledger.seq}
        if self.cell.running:
            frame = self.user_frame()
            if frame is not None:
                state["line"], state["source"] = self.cell.line_of(frame)
        record = self.ledger.last()
        if record is not None:
            in_cell = self.cell.running and record.seq > self.cell.first_seq
            state["collective"] = self._collective(record)
            state["waiting"] = bool(in_cell and self._blocked(state.get("line")))
        return state

    _blocked_at: tuple[Any, float] = (None, 0.0)

    def _blocked(self, line: int | None) -> bool:
        """Whether the main thread has stood in one place, asleep on a lock, for two reports or more."""
        if not self.meters.main_thread_asleep():
            self._blocked_at = (None, 0.0)
            return False
        place = (line, self.ledger.seq)
        if self._blocked_at[0] != place:
            self._blocked_at = (place, time.monotonic())
        return time.monotonic() - self._blocked_at[1] >= TICK_RUNNING * 0.9

    def user_frame(self) -> FrameType | None:
        """The main thread's innermost frame that runs the user's code."""
        frame = sys._current_frames().get(self._main.ident or 0)
        while frame is not None and frame.f_globals is not self.user_ns:
            frame = frame.f_back
        return frame

    def _end_if_orphaned(self, now: float) -> None:
        if self.config.keep or self._disconnected_at is None:
            return
        if now - self._disconnected_at > ORPHAN_AFTER + self.config.patience:
            EXIT(0)

    def last_words(self, call: str) -> None:
        """Before the process ends itself: send the output so far and where it stands."""
        frame = self.user_frame()
        line = self.cell.line_of(frame)[0] if frame is not None and self.cell.running else None
        self.cell.outlet.end()
        self.cell.send_output()
        self.lifeline.send({"say": "leaving", "call": call, "line": line})
        self.lifeline.flushed(0.5)
