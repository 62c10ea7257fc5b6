"""How long each step of a cluster's start took, and on which host."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from allranks.head.world.ranks import Ranks
from allranks.hosts.host_end import HostEnd
from allranks.units import seconds_text
from allranks_widgets.table import text_table

BAR = 32
"""Length, in characters, of a bar that spans the whole start."""
REMOTE = {"log in": "Greeting", "start Python": "Heard", "look at the host": "Prepared", "import": "Started"}
LOCAL = {"start Python, import": "Started"}
"""Maps each step to the type of the host process's event that marks its end. A host takes the steps in this order."""
LAUNCHED = {"start the launcher": "Launched"}


@dataclass(frozen=True)
class Step:
    """One step; `began` and `ended` are seconds since `up` began."""

    name: str
    host: str
    """The host where the step took place; empty for steps that all ranks take together."""
    began: float
    ended: float

    @property
    def seconds(self) -> float:
        return self.ended - self.began


@dataclass(frozen=True)
class StartTimes:
    """The steps of a start, in the order in which they ended on each host. Steps of several hosts overlap.

    A step begins when the one before has ended on its host, so it includes the time that it had to wait. A start that
    was tried again counts from the first try.
    """

    seconds: float
    """Duration of the whole start."""
    steps: tuple[Step, ...]

    @classmethod
    def of(cls, began: float, ended: float, ranks: Ranks) -> StartTimes:
        """Collect the steps of a start that `began` and `ended` at these times (`time.monotonic`)."""
        members: dict[str, list[float]] = {}
        for rank in ranks.monitor.ranks:
            members.setdefault(rank.host, []).append(rank.connected_at)
        steps = list[Step]()
        if ranks.gathered_at:
            steps.append(Step("wait for the ranks", "", 0.0, ranks.gathered_at - began))
        for end in (ranks.reached.here, *ranks.reached.others.values()):
            steps += _of_host(end, members.get(end.name, ()), began)
        at = max((connected for each in members.values() for connected in each), default=began)
        for name, moment in ranks.formed_at.items():
            steps.append(Step(name, "", at - began, moment - began))
            at = moment
        return cls(ended - began, tuple(steps))

    def __str__(self) -> str:
        rows = [[each.name, each.host, seconds_text(each.seconds), self._bar(each)] for each in self.steps]
        return f"Started in {seconds_text(self.seconds)}:\n{text_table(['step', 'host', 'time', ''], rows)}"

    def _bar(self, step: Step) -> str:
        first, last = (round(BAR * each / self.seconds) for each in (step.began, step.ended))
        return " " * first + "█" * max(last - first, 1)


def _of_host(end: HostEnd, connected: Sequence[float], began: float) -> Iterator[Step]:
    """The steps of one host; `connected` has the times at which its ranks connected, 0 for ranks that did not."""
    last: float = end.first_event_at[""]
    for name, event in _steps(end.first_event_at).items():
        if event in end.first_event_at:
            yield Step(name, end.name, last - began, end.first_event_at[event] - began)
            last = end.first_event_at[event]
    if connected and all(connected):
        yield Step("connect the ranks", end.name, last - began, max(connected) - began)


def _steps(first_event_at: Mapping[str, float]) -> Mapping[str, str]:
    if "Launched" in first_event_at:
        return LAUNCHED
    return REMOTE if "Greeting" in first_event_at else LOCAL
