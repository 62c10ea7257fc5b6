"""On hosts that are odd in one way, `up` and the doctor say the same, and in one sentence why they refuse.

``python -m benchmarks odd-hosts`` tries all oddities; these are the ones that were once answered wrongly.
"""

from __future__ import annotations

import pytest

from tests.hosts.lab import Hosts
from tests.hosts.oddities import ODDITIES, Oddity, tried

pytestmark = [pytest.mark.hosts, pytest.mark.timeout(300)]

WITHIN = 30.0
"""Seconds on a busy machine; the benchmark measures how long a refusal takes."""


@pytest.fixture(autouse=True)
def known(hosts3: Hosts, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", hosts3.path)


@pytest.mark.parametrize("oddity", [each for each in ODDITIES if each.suite], ids=lambda oddity: oddity.name)
def test_the_doctor_and_up_agree(hosts3: Hosts, oddity: Oddity) -> None:
    outcome = tried(hosts3, oddity)
    assert not outcome.wrong, (outcome.up_said, str(outcome.diagnosis))
    assert max(outcome.up_seconds, outcome.doctor_seconds) < WITHIN
