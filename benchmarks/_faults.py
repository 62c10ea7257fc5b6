"""What can go wrong in a cell, and what the ranks are doing when it does."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from unittest import mock

from allranks import Cluster
from allranks.cluster.cell import Cell
from allranks.cluster.cell_result import CellResult
from allranks.errors import AllranksError, CellInterrupted, CellTimeout
from allranks.notebook import stop_button

STATES = {
    "idle": "pass",
    "in Python": "scratch = sum(range(3000))",
    "in time.sleep": "time.sleep(0.03)",
    "in a collective": "mx.eval(mx.distributed.all_sum(mx.ones(1000)))",
    "in a compiled step": "mx.eval(soak_step(mx.ones(4)))",
    # Ten thousand lines a second, not as many as there may be: floods have a benchmark of their own.
    "mid-print": "print('soak', turn, end='' if turn % 3 else '\\n', flush=turn % 5 == 0); time.sleep(1e-4)",
}
"""One turn of each rank's loop. While idle, the fault comes before the ranks have anything to do."""

WITHIN = 30.0
"""Seconds a cell may take to end, and a death to be known: a machine that is busy with other things gets them all."""


LONGEST_FREEZE = 20.0
"""Seconds for which the notebook is stopped at most."""


class Wrong(Exception):
    """allranks did not do what it promises."""


@dataclass(frozen=True)
class Round:
    """A fault of one rank, and the state that all ranks are in when it comes."""

    fault: str
    state: str
    victim: int
    turns: int
    """Number of turns in the state before the fault."""
    delay: float
    """Seconds after the start of the cell, where the fault comes from outside."""
    again: float | None
    """Seconds until the user presses stop for the second time."""
    source: int | None
    """The rank that a new one is a copy of."""

    @classmethod
    def draw(cls, dice: random.Random, size: int) -> Round:
        """Draw a round for a world of `size` ranks."""
        fault = dice.choice([*FAULTS])
        state = dice.choice([*STATES])
        victim = dice.randrange(size)
        again = dice.uniform(0.0, 0.4) if fault == "skip" and dice.random() < 0.4 else None
        source = dice.choice([rank for rank in range(size) if rank != victim]) if dice.random() < 0.5 else None
        return cls(fault, state, victim, dice.randrange(12), dice.uniform(0.0, 0.5), again, source)

    def __str__(self) -> str:
        said = FAULTS[self.fault].words.format(victim=self.victim) + f" {self.state}"
        if self.again is not None:
            said += ", stop pressed twice"
        if self.kills:
            said += ", heal" if self.source is None else f", heal --from {self.source}"
        return said

    @property
    def kills(self) -> bool:
        """Whether the victim is dead afterwards."""
        return FAULTS[self.fault].kills

    def happen(self, cluster: Cluster) -> None:
        """Make it so; all ranks are idle afterwards, or dead. Raises Wrong."""
        FAULTS[self.fault].happen(cluster, self)

    def cell(self, at_turn: str = "pass", *, turns: str = "20", last: str = "len(total.tolist())") -> str:
        """The cell all ranks run: turns of the state, and one collective at its end."""
        return (
            f"last_turn = {turns}\n"
            "for turn in itertools.count():\n"
            f"    {STATES[self.state]}\n"
            f"    if rank == {self.victim} and turn == {self.turns}:\n"
            f"        {at_turn}\n"
            "    if turn >= last_turn:\n"
            "        break\n"
            "total = mx.distributed.all_sum(mx.full((64,), rank + 1))\n"
            f"{last}"
        )


def _raise(cluster: Cluster, round: Round) -> None:
    result = cluster.run(round.cell("raise ValueError('soak')"), timeout=WITHIN)
    if list(result.errors) != [round.victim]:
        raise Wrong(f"rank {round.victim} raised, and the cell says: {result!r}")


def _skip(cluster: Cluster, round: Round) -> None:
    turns = f"-1 if rank == {round.victim} else 20"
    code = round.cell(turns=turns).replace("total =", f"if rank != {round.victim}:\n    total =")
    code = code.rpartition("\n")[0] + f"\nif rank != {round.victim}:\n    mx.eval(total)"
    with _stop_pressed(round.delay, round.again):
        try:
            cluster.run(code)
        except CellInterrupted as error:
            return _wait_idle(cluster, error)
        raise Wrong("the cell ended by itself")


def _interrupt(cluster: Cluster, round: Round) -> None:
    """Stop pressed somewhere in a loop that does not end."""
    with _stop_pressed(round.delay, round.again):
        try:
            cluster.run(round.cell(turns="10**12"))
        except CellInterrupted as error:
            return _wait_idle(cluster, error)
        raise Wrong("the cell ended by itself")


def _time_out(cluster: Cluster, round: Round) -> None:
    try:
        cluster.run(round.cell("while True: pass", turns="10**12"), timeout=0.2 + round.delay)
    except CellTimeout as error:
        return _wait_idle(cluster, error)
    raise Wrong("the cell ended by itself")


def _kill(cluster: Cluster, round: Round) -> None:
    pid = _pid(cluster, round.victim)
    if round.state == "idle":
        os.kill(pid, signal.SIGKILL)
    else:
        cell = cluster.begin(round.cell(turns="10**12"))
        time.sleep(round.delay)
        os.kill(pid, signal.SIGKILL)
        _end(cluster, cell, round)
    _wait_for_death(cluster, round, "SIGKILL")


def _exit(cluster: Cluster, round: Round) -> None:
    cell = cluster.begin(round.cell("os._exit(3)", turns="10**12"))
    _end(cluster, cell, round)
    _wait_for_death(cluster, round, "os._exit(3)")


def _stop_and_continue(cluster: Cluster, round: Round) -> None:
    pid = _pid(cluster, round.victim)
    cell = cluster.begin(round.cell())
    time.sleep(round.delay)
    os.kill(pid, signal.SIGSTOP)
    time.sleep(round.delay * round.turns)
    os.kill(pid, signal.SIGCONT)
    _check_sums(cell.finish(WITHIN), "after SIGCONT")


def _freeze_notebook(cluster: Cluster, round: Round) -> None:
    """This process is stopped for some seconds, while the ranks go on with a cell."""
    seconds = LONGEST_FREEZE * 2 * round.delay
    cell = cluster.begin(round.cell())
    me = os.getpid()
    freezer = subprocess.Popen(["sh", "-c", f"kill -STOP {me}; sleep {seconds:.2f}; kill -CONT {me}"])
    result = cell.finish(WITHIN + seconds)
    freezer.wait()
    _check_sums(result, f"after the notebook was stopped for {seconds:.0f} s")


def _check_sums(result: CellResult, when: str) -> None:
    """Raises Wrong unless the cell ended well on all ranks, with the 64 elements of its collective."""
    if not result.ok or any(each.value != 64 for each in result.values()):
        raise Wrong(f"{when} the cell ended so: {result!r}")


def _interrupt_heal(cluster: Cluster, round: Round) -> None:
    """Stop pressed in a `heal`, which another one finishes."""
    _kill(cluster, round)
    with (
        mock.patch.object(stop_button, "PATIENCE", 0.0),  # a stop is acted on in the next wait of a change
        _stop_pressed(6 * round.delay, None),
        contextlib.suppress(KeyboardInterrupt, AllranksError),
    ):
        cluster.heal(source=round.source)


def _end(cluster: Cluster, cell: Cell, round: Round) -> None:
    """Follow a cell in which the victim dies: those in a loop without end are stopped."""
    in_collective = round.state in ("in a collective", "in a compiled step")
    try:
        cell.finish(WITHIN if in_collective else 1.0)
    except CellTimeout as error:
        if in_collective:
            raise Wrong(str(error)) from None
        _wait_idle(cluster, error)


def _wait_idle(cluster: Cluster, stopped: BaseException) -> None:
    """A stopped cell may leave ranks in C code, such as MLX's compiler, for a while, and never for good."""
    ranks = cluster._live.ranks
    assert ranks is not None
    if not ranks.monitor.wait(lambda: not ranks.monitor.busy(range(cluster.size)), WITHIN):
        raise Wrong(str(stopped))


def _wait_for_death(cluster: Cluster, round: Round, cause: str) -> None:
    ranks = cluster._live.ranks
    assert ranks is not None
    if not ranks.monitor.wait(lambda: cluster.snapshot.ranks[round.victim].state == "dead", WITHIN):
        raise Wrong(f"the death of rank {round.victim} was not noticed")
    said = cluster.snapshot.ranks[round.victim].cause or ""
    if cause not in said and cluster.backend != "mpi":
        raise Wrong(f"rank {round.victim} ended by {cause}, and it is said: {said}")


def _pid(cluster: Cluster, rank: int) -> int:
    pid = cluster.snapshot.ranks[rank].pid
    assert pid is not None
    return pid


@contextlib.contextmanager
def _stop_pressed(after: float, again: float | None) -> Iterator[None]:
    """SIGINT to this process, as a terminal's Ctrl-C or a notebook's stop button; a second one may come late."""

    def press() -> None:
        for seconds in (after, again):
            if seconds is not None:
                time.sleep(seconds)
                os.kill(os.getpid(), signal.SIGINT)

    user = threading.Thread(target=press, daemon=True)
    user.start()
    try:
        yield
    finally:
        while user.is_alive():
            try:
                user.join()
            except KeyboardInterrupt:
                continue


@dataclass(frozen=True)
class Fault:
    words: str
    happen: Callable[[Cluster, Round], None]
    kills: bool = False


FAULTS = {
    "raise": Fault("rank {victim} raises", _raise),
    "skip": Fault("rank {victim} skips a collective, the others", _skip),
    "interrupt": Fault("stop pressed", _interrupt),
    "timeout": Fault("rank {victim} loops for ever, the others", _time_out),
    "kill": Fault("kill -9 of rank {victim}", _kill, kills=True),
    "exit": Fault("os._exit of rank {victim}", _exit, kills=True),
    "heal": Fault("kill -9 of rank {victim}, and stop pressed in heal", _interrupt_heal, kills=True),
    "freeze": Fault("the notebook stopped for some seconds", _freeze_notebook),
    "stop": Fault("SIGSTOP and SIGCONT of rank {victim}", _stop_and_continue),
}
