"""Small programs drawn by chance, right or with one mistake, and what each of them must give.

A right one gives the right numbers, without a word of alarm. A wrong one gives them too, or the rank and a line are
named, and no variable holds what only looks like a number, unless it is named.
"""

from __future__ import annotations

import math
import os
import random
import re
import signal
import textwrap
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np

from allranks import Cluster
from allranks.cluster.cell import Cell
from allranks.cluster.cell_result import CellResult
from allranks.errors import AllranksError
from allranks.notebook.feed_dashboards import Nowhere
from allranks.notebook.fold import Block
from allranks_backends.views import AT_REST

OPERATIONS = ("all_sum", "all_max", "all_min", "all_gather")
DTYPES = ("float32", "float16", "bfloat16", "int32", "uint8", "int64")
FLOATS = DTYPES[:3]
SHAPES: tuple[tuple[int, ...], ...] = ((3,), (2, 3), (7,), (1000,))
WAYS = (
    "at once",
    "later",
    "later",
    "read",
    "async",
    "compiled",
    "chained",
    "loop",
    "average",
    "thread",
    "stream",
    "sent",
)
MISTAKES = ("missing", "raises", "operation", "shape", "dtype", "order of calls", "order of evaluation", "stopped")
SWALLOWS = {
    "catches everything": "try:\n{code}\nexcept BaseException:\n    pass",
    "ignores the signal": "signal.signal(signal.SIGINT, signal.SIG_IGN)\n{bare}",
    "has a handler": "signal.signal(signal.SIGINT, lambda *_: None)\n{bare}",
}
MISTAKEN_WITHIN, RIGHT_WITHIN = 5.0, 60.0
"""Seconds until a cell is stopped; with a mistake, from when its ranks are blocked or done."""
SETTLED_WITHIN = 20.0
STOPPED_FOR = 6.0
"""Seconds a rank is stopped: it is noticed after 4."""
ALARM = re.compile(r"invalid|disagree|different orders|never entered|unblocked|aborted|could not")
PREPARE = """
import signal, threading, time
import mlx.nn as nn
signal.signal(signal.SIGINT, signal.default_int_handler)
D = mx.distributed
for _name in [name for name in globals() if name.startswith("made_")]:
    del globals()[_name]
def number(shape, dtype, plus):
    n = 1
    for each in shape:
        n *= each
    return (mx.arange(n) % 5 + rank + plus).reshape(shape).astype(dtype)
def in_thread(work):
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
other_stream = mx.new_stream(mx.cpu) if {streams} else None
"""
FOUND = """
from allranks.rank.arrays.pending_arrays import is_pending as _is_pending
def _numbers(array):
    return (array.astype(mx.float32) if array.dtype == mx.bfloat16 else array).reshape(-1).tolist()
signal.signal(signal.SIGINT, signal.default_int_handler)
{name: None if _is_pending(each) else _numbers(each)
 for name, each in globals().items() if name.startswith("made_") and isinstance(each, mx.array)}
"""


@dataclass(frozen=True)
class Statement:
    """One collective, and how it is evaluated."""

    number: int
    op: str
    dtype: str
    shape: tuple[int, ...]
    way: str
    plus: int
    source: int | None = None
    """The number of the statement whose result goes in, where `way` is ``chained``."""

    @property
    def name(self) -> str:
        return f"made_{self.number}"

    @property
    def evaluated_later(self) -> bool:
        return self.way in ("later", "compiled")

    def code(self) -> str:
        given = f"number({self.shape}, mx.{self.dtype}, {self.plus})"
        call, name = f"D.{self.op}({given})", self.name
        if self.source is not None:
            call = f"D.{self.op}({given} + made_{self.source})"
        match self.way:
            case "later":
                return f"{name} = {call}"
            case "read":
                return f"{name} = {call}\n{name}.tolist()"
            case "async":
                return f"{name} = {call}\nmx.async_eval({name})\n{name}.tolist()"
            case "compiled":
                return f"{name} = mx.compile(lambda x: D.{self.op}(x))({given})"
            case "loop":
                return (
                    f"{name} = {given}\nfor _ in range(3):\n    {name} = D.{self.op}({name} + 1)\n    mx.eval({name})"
                )
            case "average":
                return f"{name} = nn.average_gradients({{'w': {given}}})['w']\nmx.eval({name})"
            case "thread":
                return f"def work():\n    global {name}\n    {name} = {call}\n    mx.eval({name})\nin_thread(work)"
            case "stream":
                return f"with mx.stream(other_stream):\n    {name} = {call}\nmx.eval({name})"
            case "sent":
                return (
                    f"{name} = {given}\nif rank == 0: mx.eval(D.send({name}, 1))\n"
                    f"if rank == 1: {name} = D.recv_like({name}, 0)\nmx.eval({name})"
                )
        return f"{name} = {call}\nmx.eval({name})"

    def values(self, size: int, before: Mapping[int, Sequence[Any]]) -> list[Any]:
        """What each rank is to have."""
        n = math.prod(self.shape)
        given = [(np.arange(n) % 5 + rank + self.plus).astype(float) for rank in range(size)]
        if self.source is not None:
            given = [mine + had for mine, had in zip(given, before[self.source], strict=True)]
        if self.way == "sent":
            return [given[0], given[0], *given[2:]]
        if self.way == "average":
            return [sum(given) / size] * size
        if self.way == "loop":
            for _ in range(3):
                given = _reduced(self.op, [each + 1 for each in given])
            return given
        return _reduced(self.op, given)


def _reduced(op: str, given: Sequence[Any]) -> list[Any]:
    reduce = {"all_sum": sum, "all_max": np.maximum.reduce, "all_min": np.minimum.reduce, "all_gather": np.concatenate}
    return [reduce[op](given)] * len(given)  # type: ignore[operator]


@dataclass(frozen=True)
class Program:
    """Cells, and the values that they must set."""

    cells: tuple[str, ...]
    mistake: str | None
    victim: int
    swallows: str | None
    check: Literal["warn", "strict"]
    ordered: bool
    expected: Mapping[str, Sequence[Any]]
    dtypes: Mapping[str, str]
    streams: bool

    def __str__(self) -> str:
        how = self.mistake or "right"
        if self.mistake:
            how += f" on rank {self.victim}" + (f", which others cannot hear: {self.swallows}" if self.swallows else "")
        return f"{how}, --check {self.check}{' --ordered' if self.ordered else ''}"

    @classmethod
    def draw(cls, dice: random.Random, size: int, mistakes: Sequence[str] = MISTAKES) -> Program:
        """Draw a program for a world of `size` ranks."""
        statements = _statements(dice, dice.randrange(2, 6))
        mistake = dice.choice(mistakes) if dice.random() < 0.6 else None
        victim, at = dice.randrange(size), dice.randrange(len(statements))
        if mistake is not None and statements[at].way == "sent":  # ranks differ there by nature
            statements[at] = replace(statements[at], way="at once")
        if mistake is not None and mistake.startswith("order"):
            at = _room_for_two(statements, at, mistake)
        swallows = dice.choice([*SWALLOWS]) if mistake in ("missing", "raises") and dice.random() < 0.5 else None
        blocks = []
        for number, each in enumerate(statements):
            code = each.code()
            if number == at and mistake is not None:
                follows = statements[at + 1] if mistake.startswith("order") else None
                code = _mistaken(mistake, each, follows, victim)
            elif number == at + 1 and mistake is not None and mistake.startswith("order"):
                continue
            if swallows is not None and number == at:
                inside = textwrap.indent(
                    SWALLOWS[swallows].format(code=textwrap.indent(code, "    "), bare=code), "    "
                )
                code = f"if rank != {victim}:\n{inside}\nelse:\n{textwrap.indent(code, '    ')}"
            blocks.append((number, code))
        cells = _cells(blocks, statements, [dice.random() < 0.3 for _ in statements])
        values: dict[int, list[Any]] = {}
        for each in statements:
            values[each.number] = each.values(size, values)
        check: Literal["warn", "strict"] = "strict" if dice.random() < 0.2 else "warn"
        return cls(
            tuple(cells),
            mistake,
            victim,
            swallows,
            check,
            dice.random() < 0.2,
            {each.name: values[each.number] for each in statements},
            {each.name: each.dtype for each in statements},
            any(each.way == "stream" for each in statements),
        )


def _statements(dice: random.Random, count: int) -> list[Statement]:
    statements: list[Statement] = []
    for number in range(count):
        way, op, dtype, shape = dice.choice(WAYS), dice.choice(OPERATIONS), dice.choice(DTYPES), dice.choice(SHAPES)
        if way == "average":
            dtype, op = dice.choice(FLOATS), "all_sum"
        if way == "loop" and op == "all_gather":
            op = "all_max"
        source = None
        if way == "chained":
            for before in statements:
                if before.op != "all_gather" and before.way not in ("average", "sent"):
                    source, shape, dtype = before.number, before.shape, before.dtype
            way = "at once"
        statements.append(Statement(number, op, dtype, shape, way, dice.randrange(3), source))
    return statements


def _room_for_two(statements: list[Statement], at: int, mistake: str) -> int:
    """Two in a row that are evaluated where they stand. Calls in another order are known by the operation alone."""
    at = min(at, len(statements) - 2)
    first = replace(statements[at], way="later", source=None, plus=0)
    statements[at] = first
    op = _other(first.op) if mistake == "order of calls" else first.op
    statements[at + 1] = replace(first, number=at + 1, plus=2, op=op)
    for later in range(at + 2, len(statements)):  # their shapes may differ now
        statements[later] = replace(statements[later], source=None)
    return at


def _mistaken(mistake: str, each: Statement, follows: Statement | None, victim: int) -> str:
    def either(wrong: str, right: str) -> str:
        return f"if rank == {victim}:\n{textwrap.indent(wrong, '    ')}\nelse:\n{textwrap.indent(right, '    ')}"

    code = each.code()
    match mistake:
        case "missing":
            return f"if rank != {victim}:\n{textwrap.indent(code, '    ')}"
        case "raises":
            return f"if rank == {victim}: raise ValueError('drawn')\n{code}"
        case "operation":
            return either(replace(each, op=_other(each.op)).code() if each.way != "average" else "pass", code)
        case "shape":
            return either(replace(each, shape=(5,), source=None).code(), code)
        case "dtype":
            other = "float32" if each.dtype != "float32" else "int32"
            return either(replace(each, dtype=other, source=None).code(), code)
        case "order of calls":
            assert follows is not None
            both = [f"{one.code()}\nmx.eval({one.name})" for one in (each, follows)]
            return either("\n".join(reversed(both)), "\n".join(both))
        case "order of evaluation":
            assert follows is not None
            names = each.name, follows.name
            evaluated = ["\n".join(f"mx.eval({name})" for name in order) for order in (reversed(names), names)]
            return "\n".join([each.code(), follows.code(), either(*evaluated)])
    return f"{code}\nif rank == {victim}: time.sleep(1)"


def _cells(blocks: Sequence[tuple[int, str]], statements: Sequence[Statement], ends: Sequence[bool]) -> list[str]:
    """The blocks as one cell or several: a cell ends after each block whose entry in `ends` is true.

    Results that are still to be evaluated are evaluated at the end, in call order.
    """
    cells, lines, left = list[str](), list[str](), list[str]()
    for number, code in blocks:
        lines.append(code)
        left += [each.name for each in statements if each.number == number and each.evaluated_later]
        if ends[number]:
            cells.append("\n".join(lines))
            lines = []
    names = [name for name in left if name in "\n".join([*cells, *lines])]
    if names:
        lines.append(f"mx.eval({', '.join(names)})")
    return [cell for cell in [*cells, "\n".join(lines)] if cell]


def _other(op: str) -> str:
    return OPERATIONS[(OPERATIONS.index(op) + 1) % 3]


class Screen(Nowhere):
    """Keeps the text below a cell, with the ranks of each block."""

    def __init__(self) -> None:
        self.text = ""

    def blocks(self, blocks: list[Block]) -> None:
        self.text += "".join(f"{block.ranks}: {block.content}\n" for block in blocks)


@dataclass
class Run:
    """The outcome of a program."""

    said: str = ""
    raised: str = ""
    ok: bool = True
    mismatch: bool = False
    named: dict[int, set[str]] = field(default_factory=dict)
    """Variables reported as invalid, by rank."""
    unmarked: set[int] = field(default_factory=set)
    """Ranks reported to have aborted collectives that could not be set to NaN."""


def play(cluster: Cluster, program: Program) -> list[str]:
    """Run the program; returns each mistake of allranks, in words."""
    cluster.run(PREPARE.format(streams=program.streams), timeout=RIGHT_WITHIN).check()
    run = Run()
    for cell in program.cells:
        if not _play_cell(cluster, program, cell, run):
            break
    try:
        found = cluster.run(FOUND, check="off", timeout=RIGHT_WITHIN).check()
    except AllranksError as error:
        said = run.said + run.raised
        # MPI ends a job whose ranks differ in size; where they wait in different collectives, nothing can be aborted.
        if cluster.backend == "mpi" and program.mistake and (_names(program.victim, said) or " died: " in said):
            return []
        return [f"afterwards {type(error).__name__}: {error}", f"said: {said}", _listing(program)]
    wrong = _right(program, run) if program.mistake is None else []
    return wrong + _judged(program, run, {rank: each.value for rank, each in found.items()}, cluster.size)


def _play_cell(cluster: Cluster, program: Program, cell: str, run: Run) -> bool:
    """Whether the next cell is to follow."""
    screen = Screen()
    stops = program.mistake == "stopped"
    within, began = RIGHT_WITHIN, time.monotonic()
    going: Cell | None = None
    result: CellResult | None
    try:
        going = cluster.begin(cell, check=program.check, ordered=program.ordered, screen=screen)
        if stops:
            pid = cluster.snapshot.ranks[program.victim].pid
            assert pid is not None
            os.kill(pid, signal.SIGSTOP)
            try:
                time.sleep(STOPPED_FOR if len(cell) % 3 == 0 else 0.5)
            finally:
                os.kill(pid, signal.SIGCONT)
        elif program.mistake:
            _wait_until_settled(cluster, program)
            within = time.monotonic() - began + MISTAKEN_WITHIN
        result = going.finish(within)
    except AllranksError as error:
        run.raised += f"{type(error).__name__}: {error}\n"
        result = going.result if going is not None else None
    run.said += screen.text
    if result is None or not result.ok:
        run.ok = False
    if result is not None:
        run.mismatch |= result.mismatch is not None
        run.said += f"{result.mismatch or ''}\n{'' if result.ok else result.failure()}\n"
        for names in re.findall(r"but ([^()]*?) (?:was|were) left pending", screen.text):
            for rank in result:
                run.named.setdefault(rank, set()).update(names.split(", "))
        for rank, each in result.items():
            run.named.setdefault(rank, set()).update(each.invalid)
            if each.unmarked:
                run.unmarked.add(rank)
    return result is not None and (result.ok or program.swallows is not None)


def _wait_until_settled(cluster: Cluster, program: Program) -> None:
    """Until each rank is blocked or done, also on a busy machine: from then on the time is counted."""
    assert cluster._live.ranks is not None
    settled = {*AT_REST, "waiting", "dead"}
    if program.check == "strict":  # at its barrier ranks wait for who follows the cell
        settled.add("running")
    monitor = cluster._live.ranks.monitor
    monitor.wait(lambda: all(rank.state in settled and rank.report.cell for rank in monitor.ranks), SETTLED_WITHIN)


def _right(program: Program, run: Run) -> list[str]:
    """What must not be, where nothing is wrong."""
    alarms = [line for line in run.said.splitlines() if ALARM.search(line)]
    return [f"false alarm: {line}" for line in [*alarms, *run.raised.splitlines()]] or (
        [] if run.ok else ["not ok, and nothing is wrong with it"]
    )


def _judged(program: Program, run: Run, found: Mapping[int, Mapping[str, Any]], size: int) -> list[str]:
    lacking, looks_right = list[str](), list[str]()
    for name, expected in program.expected.items():
        for rank in range(size):
            numbers = found[rank].get(name)
            if numbers is None:
                lacking.append(f"{name} on rank {rank} is not there")
                continue
            want = expected[rank]
            kind = program.dtypes[name]
            rough = 0.05 if kind in FLOATS[1:] else 1e-4
            if len(numbers) == len(want) and np.allclose(numbers, want, rough, rough):
                continue
            lacking.append(f"{name} on rank {rank} is other")
            padded = [*want, *[math.nan] * (len(numbers) - len(want))][: len(numbers)]
            odd = [
                (number, meant)
                for number, meant in zip(numbers, padded, strict=True)
                if math.isfinite(number) and not abs(number - meant) <= rough * max(1, abs(meant))
            ]
            if odd and not (run.mismatch or name in run.named.get(rank, ()) or rank in run.unmarked):
                looks_right.append(f"{name} on rank {rank} is {odd[0][0]}, not {odd[0][1]}, and is not named")
    wrong = list(looks_right)
    said = run.said + run.raised
    if lacking and program.mistake is not None and not _names(program.victim, said):
        wrong.append(f"rank {program.victim} and a line are not named ({lacking[0]})")
    if lacking and program.mistake is None:
        wrong += lacking[:2]
    if lacking and run.ok and not _names(program.victim, said) and program.mistake is not None:
        wrong.append(f"the cells are ok, and {lacking[0]}")
    return wrong and [*wrong, f"said: {said.strip()}", _listing(program)]


def _listing(program: Program) -> str:
    return "cells:\n" + "\n# %%\n".join(program.cells)


def _names(victim: int, said: str) -> bool:
    """Whether the text names the rank and a line."""
    ranks = set[int]()
    for text in re.findall(r"ranks? ([\d, -]*\d)", said):
        for part in text.split(","):
            first, _, last = part.strip().partition("-")
            if first.isdigit():
                ranks |= set(range(int(first), int(last or first) + 1))
    return victim in ranks and re.search(r"line \d", said) is not None
