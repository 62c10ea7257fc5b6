"""Every request that the head may send is handled by a rank."""

from __future__ import annotations

from allranks.cluster.cluster import Cluster

UNHANDLED = """
from allranks.messages.requests import Request
from allranks.rank.process.engine import RankEngine
def kinds(kind):
    return [each for below in kind.__subclasses__() for each in kinds(below)] or [kind]
sorted(each.__name__ for each in {*kinds(Request)} - RankEngine.instance().agent.requests.handlers.keys())
"""
OF_THE_LIFELINE = ["Announced", "Dropped", "Greet", "Part", "Refused", "Taken"]
OF_A_SCHEDULER = ["TaskOrder", "Welcome"]
"""What a process is sent that a scheduler started."""


def test_every_request_has_a_handler(ring2: Cluster) -> None:
    assert ring2.run(UNHANDLED)[0].value == sorted([*OF_THE_LIFELINE, *OF_A_SCHEDULER])
