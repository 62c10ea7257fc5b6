"""Asks all questions: about RDMA and worlds in one child process after the other, about the machine in this process.

A probe that is stopped keeps the answers so far.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Literal

import msgspec
from msgspec.structs import replace

from allranks.machine.jaccl_systems import PROVEN, SWITCH, macos_version
from allranks.messages.events.probe_answers import ProbeAnswer, ProbeCheck

from . import gpu_worlds, machine
from .child import Child
from .probe_questions import ENDINGS, IN_PLACE, QUESTIONS, RDMA, Group
from .probe_verdict import JACCL, Report, Verdict, verdict
from .world import ProbedWorld

Section = Literal["rdma", "endings", "worlds"]
SECTIONS: tuple[Section, ...] = ("rdma", "endings", "worlds")
LIBRARY = "librdma.dylib" if sys.platform == "darwin" else "libibverbs.so.1"
BACKENDS = ("ring", "jaccl", "jaccl-ring", "mpi")
WORLD_WITHIN = 120.0
"""Timeout, in seconds, for a world and all its checks."""
CLEAR_UP_WITHIN = 15.0
"""Seconds that a world gets to end its ranks after a timeout or Ctrl-C."""
QUESTIONS_MODULE, CONFORMANCE_MODULE = "allranks.rank.probe", "allranks.probe.conformance"


@dataclass(frozen=True)
class Wanted:
    """The questions and checks that the user wants."""

    skip: Sequence[Section] = ()
    backends: Sequence[str] = (*BACKENDS, "nccl")
    hosts: Sequence[str] = ()
    hostfile: str | None = None
    names: Sequence[str] = ()
    """Names of the hosts, from `hosts` or the hostfile."""
    library: str = LIBRARY
    patience: float = 1.0
    """Factor for all time limits."""


@dataclass
class Probe:
    wanted: Wanted
    progress: Callable[[str], None] = lambda _text: None
    report: Report = field(init=False)

    def __post_init__(self) -> None:
        macos = macos_version()
        unknown = Verdict("not asked", "Nothing was asked.", macos, macos in PROVEN)
        date = time.strftime("%Y-%m-%d", time.gmtime())
        self.report = Report(machine=machine.described(), date=date, verdict=unknown)

    def run(self) -> Report:
        """Ask all questions and return the report. On Ctrl-C, the report has the answers so far."""
        began, asleep = time.monotonic(), machine.asleep()
        try:
            self._ask_all()
        except KeyboardInterrupt:
            self.report.complete = False
        self._answer(machine.ask_awake(asleep))
        self.report.seconds = round(time.monotonic() - began, 1)
        macos = self.report.verdict.macos
        self.report.verdict = verdict(self.report.answers, self.report.checks, macos, macos in PROVEN)
        return self.report

    def _ask_all(self) -> None:
        self.progress("this machine")
        self._answer(machine.ask_local_network(self.wanted.names))
        self._answer(machine.ask_rdma())
        cards, nccl = gpu_worlds.found(), gpu_worlds.nccl_version()
        for answer in gpu_worlds.ask(cards, nccl):
            self._answer(answer)
        if "rdma" not in self.wanted.skip:
            self._ask_groups(RDMA)
            if "endings" not in self.wanted.skip:
                self._ask_groups(ENDINGS)
        if "worlds" not in self.wanted.skip:
            for world in self._worlds(len(cards), nccl):
                self._form(world)

    def _ask_groups(self, groups: Iterable[Group]) -> None:
        """Ask the groups' questions; without a verbs library or an RDMA device, the rest count as not asked."""
        for group in groups:
            if not self._nothing_there():
                self.progress(f"RDMA: {group.asks}")
                self._ask(group)
            if why := self._nothing_there():
                self._without_answer(group, ProbeAnswer("", "not asked", why))

    def _ask(self, group: Group) -> None:
        within = group.within * self.wanted.patience
        child = Child(ProbeAnswer, [QUESTIONS_MODULE, group.asks, self.wanted.library], within)
        names = {question.name for question in group.questions}
        with closing(child.lines()) as lines:
            for answer in lines:
                if answer.question in names and self._given(answer.question) is None:
                    self._answer(answer)
        if child.trouble:
            self._without_answer(group, ProbeAnswer("", "not asked", child.trouble, failed=True))
        elif not self._nothing_there():
            why = next((each.detail for each in self._of(group) if each.given != "yes"), "nothing was said of it")
            self._without_answer(group, ProbeAnswer("", "not asked", why))

    def _nothing_there(self) -> str:
        """Why questions about RDMA cannot be asked; empty if they can."""
        if self._given("library") == "no":
            return "the verbs library does not load"
        return "there are no RDMA devices" if self._given("devices") == "no" else ""

    def _without_answer(self, group: Group, answer: ProbeAnswer) -> None:
        """Record `answer` for each question of the group that has no answer yet."""
        for question in group.questions:
            if self._given(question.name) is None:
                self._answer(replace(answer, question=question.name))

    def _form(self, world: ProbedWorld) -> None:
        self.progress(f"world: {world.name}")
        text = msgspec.json.encode(world).decode()
        within = WORLD_WITHIN * self.wanted.patience
        grace = CLEAR_UP_WITHIN * self.wanted.patience
        child = Child(ProbeCheck, [CONFORMANCE_MODULE, text], within, grace=grace)
        with closing(child.lines()) as lines:
            for check in lines:
                self.report.checks.append(check)
        if child.trouble:
            self.report.checks.append(ProbeCheck(world.name, "the whole list", "failed", child.trouble))

    def _worlds(self, cards: int, nccl: str) -> list[ProbedWorld]:
        """The worlds to form on this machine, or on the given hosts."""
        wanted = self.wanted
        on = {"hosts": [*wanted.hosts], "hostfile": wanted.hostfile, "patience": wanted.patience}
        proven = all(self._given(name) == "yes" for name in IN_PLACE)
        env = {SWITCH: "1"} if proven and sys.platform == "darwin" else {}
        found = [ProbedWorld(name, name) for name in BACKENDS]
        no_kills = self._no_kills()
        found = [replace(each, env=env, no_kills=no_kills) if each.name in JACCL else each for each in found]
        if wanted.hosts or wanted.hostfile:
            found.append(ProbedWorld("nccl", "nccl"))
        else:
            found += gpu_worlds.worlds(cards, nccl)
        return [replace(each, **on) for each in found if each.backend in wanted.backends]

    def _no_kills(self) -> str:
        """Why no rank of JACCL may be killed; empty if one may be.

        A rank holds most of a device's resources, and the driver may keep the resources of a killed process.
        """
        if "endings" in self.wanted.skip:
            return "left out with --skip endings"
        kept = self._given("freed by sigkill") == "no"
        return "the driver keeps what a killed process held, so the next world could not be formed" if kept else ""

    def _answer(self, answer: ProbeAnswer) -> None:
        assert answer.question in QUESTIONS
        self.report.answers.append(answer)

    def _of(self, group: Group) -> list[ProbeAnswer]:
        names = {question.name for question in group.questions}
        return [answer for answer in self.report.answers if answer.question in names]

    def _given(self, name: str) -> str | None:
        return next((each.given for each in self.report.answers if each.question == name), None)
