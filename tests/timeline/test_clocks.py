"""Clocks of several hosts on one axis: the bound that is stated holds, whatever the clocks do."""

from __future__ import annotations

import math
import random

import pytest

from allranks.timeline.clocks import Alignment, Meeting, Ping, align

HOSTS = ("a", "b", "c")


class Machines:
    """Hosts whose clocks are off, and may run fast; the truth is the notebook's clock."""

    def __init__(self, offsets: dict[str, float], rates: dict[str, float] | None = None, seed: int = 1) -> None:
        self.offsets, self.rates, self.random = offsets, rates or {}, random.Random(seed)

    def clock(self, host: str, moment: float) -> float:
        return moment * (1 + self.rates.get(host, 0.0)) + self.offsets[host]

    def pings(self, moment: float, count: int = 8) -> list[Ping]:
        asked = []
        for host in self.offsets:
            for _ in range(count):
                there, back = (self.random.uniform(1e-4, 2e-3) for _ in range(2))  # as lopsided as it comes
                asked.append(Ping(host, moment, self.clock(host, moment + there), moment + there + back))
                moment += there + back
        return asked

    def meeting(self, moment: float) -> Meeting:
        began = {host: moment - self.random.uniform(0, 5e-3) for host in self.offsets}
        last = max(began.values())
        return {
            host: (self.clock(host, began[host]), self.clock(host, last + self.random.uniform(2e-5, 3e-4)))
            for host in self.offsets
        }

    def off(self, found: Alignment, moment: float) -> dict[str, float]:
        """How far each host's moment lands from the first one's."""
        first = next(iter(self.offsets))
        want = found.common(first, self.clock(first, moment))
        return {host: abs(found.common(host, self.clock(host, moment)) - want) for host in self.offsets}


def test_one_host_has_one_clock() -> None:
    found = align(["a"], [], [], None)
    assert (found.common("a", 3.5), found.bound, str(found)) == (3.5, 0.0, "")


@pytest.mark.parametrize("seed", range(20))
def test_the_bound_holds_by_round_trips_alone(seed: int) -> None:
    machines = Machines({"a": 0.0, "b": 123.4, "c": -5e4}, seed=seed)
    found = align(HOSTS, machines.pings(10.0) + machines.pings(20.0), [], None)
    assert all(off <= found.error[host] + 1e-9 for host, off in machines.off(found, 15.0).items())
    assert 0 < found.bound < 2e-3 and not found.collectives


@pytest.mark.parametrize("seed", range(20))
def test_collectives_narrow_it(seed: int) -> None:
    machines = Machines({"a": 0.0, "b": 123.4, "c": -5e4}, seed=seed)
    pings = machines.pings(10.0) + machines.pings(20.0)
    found = align(HOSTS, pings, [machines.meeting(11 + n / 10) for n in range(80)], None)
    assert all(off <= found.error[host] + 1e-9 for host, off in machines.off(found, 15.0).items())
    assert found.collectives and found.bound < align(HOSTS, pings, [], None).bound
    assert "aligned to within" in str(found) and "collectives" in str(found)


def test_the_notebooks_own_host_needs_no_question() -> None:
    machines = Machines({"a": 0.0, "b": 7.0})
    pings = [ping for ping in machines.pings(1.0) if ping.host == "b"]
    found = align(["a", "b"], pings, [], "a")
    assert machines.off(found, 1.0)["b"] <= found.error["b"] < 2e-3


def test_clocks_that_run_apart_are_followed() -> None:
    machines = Machines({"a": 0.0, "b": 50.0}, {"b": 2e-4})  # 120 ms in ten minutes
    pings = machines.pings(0.0) + machines.pings(600.0)
    met = [machines.meeting(float(moment)) for moment in range(1, 600)]
    found = align(["a", "b"], pings, met, None)
    assert found.rate["b"] == pytest.approx(2e-4, rel=0.05)
    assert all(machines.off(found, moment)["b"] < 2e-3 for moment in (1.0, 300.0, 599.0))


def test_collectives_alone_do_where_nobody_answered() -> None:
    machines = Machines({"a": 0.0, "b": 7.0})
    found = align(["a", "b"], [], [machines.meeting(float(n)) for n in range(50)], "a")
    assert machines.off(found, 3.0)["b"] <= found.error["b"] < 1e-3


def test_what_is_unknown_is_said() -> None:
    found = align(["a", "b"], [], [], "a")
    assert math.isinf(found.bound) and "clock of b is unknown" in str(found)
