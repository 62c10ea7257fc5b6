"""The benchmarks run, compare finite figures and leave nothing behind; how fast anything is, no test says."""

import json
import math
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from allranks.messages.events import Memory
from allranks.rank.metrics.meters import MeterReading, Meters
from benchmarks import away, hosts16, idle, overhead
from benchmarks.__main__ import BENCHMARKS
from benchmarks._figures import compared, keep
from benchmarks._processes import MARK, carrying
from benchmarks._table import Bar, Row, Table, as_text
from tests.waiting import eventually

ROOT = Path(__file__).parents[1]
PATIENCE = 120.0


@pytest.fixture
def mark() -> str:
    """What all processes of one benchmark run carry."""
    return f"test-{os.getpid()}-{time.monotonic_ns()}"


def start(mark: str, *arguments: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-m", "benchmarks", *arguments],
        cwd=ROOT,
        env={**os.environ, MARK: mark},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def quick(mark: str, name: str, file: Path) -> Mapping[str, Any]:
    """The table of a quick run, which also stands in what it printed."""
    process = start(mark, name, "--quick", "--json", str(file))
    printed, complaints = process.communicate(timeout=2 * PATIENCE)
    assert process.returncode == 0, complaints
    (table,) = json.loads(file.read_text())["tables"]
    assert table["title"] in printed
    assert all(row["what"] in printed for row in table["rows"])
    return dict(table)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["allreduce", "flood"])
def test_a_quick_run_compares_finite_figures_and_leaves_nothing(name: str, mark: str, tmp_path: Path) -> None:
    rows = quick(mark, name, tmp_path / "figures.json")["rows"]
    lost = [row["ours"] for row in rows if row["what"].endswith("lines lost")]
    ratios = [row["ratio"] for row in rows if not row["what"].endswith("lines lost")]
    assert ratios
    assert all(math.isfinite(ratio) and ratio > 0 for ratio in ratios)
    assert not any(map(sum, lost))
    assert eventually(lambda: not carrying(mark))


@pytest.mark.slow
def test_ctrl_c_ends_everything(mark: str) -> None:
    process = start(mark, "idle")
    deadline = time.monotonic() + PATIENCE
    while len(carrying(mark)) < 7:  # the benchmark itself, a host process, a controller and four ranks
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, complaints = process.communicate(timeout=PATIENCE)
    assert process.returncode == 130
    assert "everything that was started has been ended" in complaints
    assert eventually(lambda: not carrying(mark))


def test_a_notebook_that_never_began_is_not_waited_for(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(away, "BEGINS_WITHIN", 0.0)
    hosts: Any = SimpleNamespace(names=["nowhere"], path=os.environ["PATH"])
    notebook = away.Away(0, hosts, Random(1), (PATIENCE, PATIENCE))
    began = time.monotonic()
    assert notebook.play() == "the notebook did not begin: it ended with -9"
    assert time.monotonic() - began < PATIENCE


def test_an_unknown_benchmark_is_named() -> None:
    process = start("unused", "swim")
    known = ", ".join(BENCHMARKS)
    assert known.startswith("start, cell, ") and known.endswith(", odd-hosts")
    assert f"there is no benchmark 'swim' ({known})" in process.communicate()[1]
    assert process.returncode == 2


def test_ranks_without_meters_report_the_same_reading_each_time() -> None:
    meters = Meters()
    ns: dict[str, Any] = {"meters_for_benchmark": meters}
    exec(overhead.CONSTANT + overhead.OFF, ns)
    reading: Any = meters.read()
    assert isinstance(reading, MeterReading) and reading.memory == Memory()
    assert meters.read(seldom=True) is reading
    exec(overhead.ON, ns)
    assert meters.read().memory.rss


def test_stderr_of_a_rank_during_overhead_is_an_error() -> None:
    def result(stderr: str) -> Any:
        ended = {0: SimpleNamespace(stderr=""), 1: SimpleNamespace(stderr=stderr)}
        return SimpleNamespace(check=lambda: ended)

    cluster = SimpleNamespace(run=lambda _code: result(""))
    assert overhead.run(cluster, "pass")
    cluster = SimpleNamespace(run=lambda _code: result("Traceback"))
    with pytest.raises(AssertionError, match="Traceback"):
        overhead.run(cluster, "pass")


def test_processor_time_counts_threads_that_have_ended() -> None:
    def work() -> None:
        until = time.thread_time() + 0.05
        while time.thread_time() < until:
            pass

    this = psutil.Process()
    before = idle._cpu_seconds(this)
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert idle._cpu_seconds(this) - before >= (0.049 if idle.EXACT else 0.03)


@pytest.mark.skipif(not idle.EXACT, reason="processor time in ns is read on Linux")
def test_processor_time_is_that_of_the_process_that_was_asked_for() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as other:
        used = idle._cpu_seconds(psutil.Process(other.pid))
        assert used != idle._cpu_seconds(psutil.Process())
        other.communicate(b"\n")
    with pytest.raises(OSError):
        time.clock_gettime_ns(idle._cpu_clock(other.pid))


def test_what_each_further_rank_costs_is_the_slope_through_all_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hosts16, "missing", lambda: "no sshd")
    monkeypatch.setattr(hosts16, "_sample", lambda size, _cells, _names: (size / 1000, (3 + 0.2 * size) / 1000))
    table = hosts16.measure(2)
    slope, p50 = table.rows[-1], next(row for row in table.rows if row.what == "`pass` on 16 local ranks, p50")
    assert slope.ours == pytest.approx([0.2, 0.2]) and p50.ours == [0.016, 0.016]
    assert slope.met is None and p50.met is None, "the goals are those of hosts"
    assert table.notes == ["Local ranks in place of hosts: no sshd."]


def test_a_cluster_that_cannot_be_measured_does_not_end_the_other_benchmarks(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> Any:
        raise RuntimeError("CannotStart: host-3 does not answer")

    monkeypatch.setattr(hosts16, "missing", lambda: "no sshd")
    monkeypatch.setattr(hosts16, "_sample", fails)
    table = hosts16.measure(2)
    assert not table.rows
    assert table.notes[-1] == "Not measured: a cluster of 2 local ranks failed: CannotStart: host-3 does not answer."


def test_a_ratio_is_of_medians_and_a_missed_bar_is_called_so() -> None:
    row = Row("round trip", "s", [1.0, 2.0, 9.0], [4.0, 4.0, 4.0], "the other", Bar("at most", 0.4))
    assert row.ratio == 0.5
    assert row.spread == (0.25, 2.25)
    assert row.met is False
    assert "MISSED" in as_text(Table("name", "title", [row]))


def test_a_bar_can_be_for_our_own_figure() -> None:
    row = Row("processes", "", [6], [17], "the other", Bar("at most", 6, "ours"))
    assert row.met is True


def test_what_is_unknown_is_no_zero() -> None:
    row = Row("memory", "bytes", [math.nan], [math.nan], "the other")
    assert "unknown" in as_text(Table("name", "title", [row]))
    assert row.as_json()["ratio"] is None


MACHINE = {"cores": "2", "system": "Linux 6.1 x86_64"}


def table(*samples: float, unit: str = "s") -> Table:
    return Table("cell", "title", [Row("`pass`", unit, samples, [10.0] * len(samples), "%%px")])


def test_a_ratio_that_is_worse_than_every_round_of_the_one_kept_is_named(tmp_path: Path) -> None:
    file = tmp_path / "figures.json"
    assert keep([table(5, 6, 6, 6, 7)], MACHINE, file) == ["cell"]
    assert compared([table(7, 7, 7, 7, 7)], MACHINE, file) == [
        "compared with figures.json: none of 1 ratios is worse, by more than its rounds differed"
    ]
    worse, total = compared([table(5, 8, 8, 8, 9)], MACHINE | {"cores": "8"}, file)
    assert worse.startswith("worse: cell, `pass` against %%px: 0.80 (0.60 on ")
    assert worse.endswith(", rounds 0.50 to 0.70)")
    assert "1 of 1 ratios are worse" in total and total.endswith("it is of another machine: 2 cores, Linux")


def test_a_rate_is_worse_when_it_is_lower(tmp_path: Path) -> None:
    file = tmp_path / "figures.json"
    keep([table(5, 6, 6, 6, 7, unit="calls/s")], MACHINE, file)
    assert len(compared([table(8, 8, 8, 8, 8, unit="calls/s")], MACHINE, file)) == 1
    assert len(compared([table(4, 4, 4, 4, 4, unit="calls/s")], MACHINE, file)) == 2


def test_figures_of_too_few_rounds_are_not_kept_and_do_not_replace_others(tmp_path: Path) -> None:
    file = tmp_path / "figures.json"
    keep([table(5, 6, 6, 6, 7)], MACHINE, file)
    kept = file.read_text()
    assert keep([table(9, 9)], MACHINE, file) == []
    assert file.read_text() == kept
    assert "it has none of these ratios" in compared([Table("flood", "title", [])], MACHINE, file)[0]
