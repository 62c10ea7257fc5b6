"""How long a host's processes stay without a notebook."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from allranks.check_arguments import LEASE, lease_of
from allranks.errors import UsageError
from allranks.machine import lease
from allranks.machine.lease import LOOK_EVERY, seconds_left, touch_busy


@pytest.fixture
def unlimited(monkeypatch: pytest.MonkeyPatch) -> None:
    """A lease longer than any pause of this process is not cut to the next look."""
    monkeypatch.setattr(lease, "LOOK_EVERY", 1e6)


def test_a_lease_begins_when_the_head_went_away(unlimited: None, tmp_path: Path) -> None:
    now = time.time()
    assert 900 < seconds_left(now, 1000, [tmp_path]) <= 1000
    assert seconds_left(now - 1001, 1000, [tmp_path]) <= 0


def test_a_long_lease_is_looked_at_again() -> None:
    assert seconds_left(time.time(), 1e9, []) == LOOK_EVERY


def test_a_rank_that_runs_a_cell_begins_it_again(unlimited: None, tmp_path: Path) -> None:
    rank = tmp_path / "rank-3"
    rank.mkdir()
    touch_busy(rank)
    assert 900 < seconds_left(time.time() - 2000, 1000, [tmp_path]) <= 1000
    os.utime(rank / "busy", (time.time() - 1500,) * 2)
    assert seconds_left(time.time() - 2000, 1000, [tmp_path]) <= 0
    touch_busy(rank)
    assert seconds_left(time.time() - 2000, 1000, [tmp_path]) > 0
    touch_busy(tmp_path / "no such folder")


@pytest.mark.parametrize(
    ("given", "seconds"),
    [("90", 90), ("90s", 90), ("45m", 2700), ("12h", 43200), ("1.5h", 5400), ("2d", 172800), ("0", 0), (7.5, 7.5)],
)
def test_a_time_in_words(given: str | float, seconds: float) -> None:
    assert lease_of(given, lasts=True) == seconds


def test_what_is_not_said_depends_on_where_the_ranks_are() -> None:
    assert lease_of(None, lasts=True) == LEASE
    assert lease_of(None, lasts=False) == 0
    assert lease_of("none", lasts=False) is None


@pytest.mark.parametrize("given", ["soon", "-1", "1w", "", "inf", "nan", -3.0])
def test_nonsense_is_refused(given: str | float) -> None:
    with pytest.raises(UsageError, match="--lease"):
        lease_of(given, lasts=True)
