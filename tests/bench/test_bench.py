"""bench: figures are defined as nccl-tests define them, every wiring is left as it was found, and slips are refused."""

from __future__ import annotations

import builtins
import json
import math
import re
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import geometric_mean
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

import allranks
from allranks import BenchResult, Cluster
from allranks.bench.bus_bandwidth import BenchRow, Choice, factor, fit, moved
from allranks.bench.measure import Progress, choices, fits_in_memory, known_ops, sweep
from allranks.check_arguments import parse_size
from allranks.errors import Busy, CellFailed, CellInterrupted, NoCluster, UsageError
from allranks.units import rate_text, seconds_text, size_text
from tests.jupyter import Notebook

ROOT = Path(__file__).parents[2]
RING, RING2, MPI = Choice("ring"), Choice("ring", 2), Choice("mpi")
SMALL: dict[str, Any] = {"smallest": 1 << 12, "largest": 1 << 14, "seconds": 0.02}
SIZES = [1 << 12, 1 << 13, 1 << 14]


def row(
    nbytes: int,
    seconds: float,
    *,
    op: str = "all_sum",
    link: tuple[int, int] | None = None,
    choice: Choice = RING,
    spread: float = 0.0,
) -> BenchRow:
    """A row of two ranks, half of whose calls took within `spread` of the median."""
    quartiles = (seconds * (1 - spread), seconds * (1 + spread))
    return BenchRow(choice, op, link, nbytes, 2, 9, seconds, seconds, seconds, quartiles)


def result(*rows: BenchRow, choice: Choice = RING) -> BenchResult:
    return BenchResult("main", 2, choice, list(rows), at=1e9)


# Definitions.


@pytest.mark.parametrize(
    ("op", "size", "s", "expected"),
    [
        ("all_sum", 4, 1000, 1.5),
        ("all_max", 2, 1000, 1.0),
        ("all_min", 8, 1000, 1.75),
        ("all_gather", 4, 4000, 0.75),
        ("sum_scatter", 4, 1000, 0.75),
        ("send", 4, 1000, 1.0),
    ],
)
def test_bytes_and_factor_are_those_of_nccl_tests(op: str, size: int, s: int, expected: float) -> None:
    assert moved(op, 1000, size) == s
    assert factor(op, size) == expected


def test_the_time_of_a_call_is_the_mean_of_its_ranks() -> None:
    made = BenchRow.of(RING, "all_gather", None, 4000, 2, [np.array([1.0, 4.0, 2.0]), np.array([3.0, 1.0, 2.0])])
    assert (made.calls, made.minimum, made.median, made.p99) == (3, 2.0, 2.0, 2.5)
    assert made.quartiles == (2.0, 2.25)
    assert (made.algbw, made.busbw) == (4000, 2000)


def test_the_fit_finds_latency_and_bandwidth() -> None:
    found = fit([row(nbytes, 1e-4 + nbytes / 2e9) for nbytes in (1024, 65536, 1 << 20, 1 << 26)])
    assert found is not None
    assert [found.latency, found.bandwidth, found.off] == pytest.approx([1e-4, 2e9, 0.0])
    assert str(found) == "t = 100 µs + S / (2.00 GB/s), off by up to 0%"


def test_a_line_that_fits_badly_gives_no_figures() -> None:
    found = fit([row(1024, 1e-4), row(65536, 1e-2), row(1 << 20, 2e-4)])
    assert found is not None and found.off > 0.5
    assert str(found) == "no line t = latency + S / bandwidth fits these times", "no figure that means nothing"


def test_the_fit_counts_errors_as_shares() -> None:
    """Ten percent at the largest size must not tear the latency off, as it would if seconds were compared."""
    rows = [row(nbytes, 1e-4 + nbytes / 1e9) for nbytes in (1024, 4096, 65536)] + [row(1 << 26, 1.1 * (1 << 26) / 1e9)]
    found = fit(rows)
    assert found is not None and found.latency == pytest.approx(1e-4, rel=0.05)


def test_no_fit_is_made_up() -> None:
    assert fit([row(1024, 1.0)]) is None
    alike = fit([row(1024, 2.0), row(2048, 1.0)])
    assert alike is not None and math.isinf(alike.bandwidth) and alike.latency > 0
    steep = fit([row(1000, 1e-6), row(10_000, 2e-5)])
    assert steep is not None and steep.latency == 0 and steep.bandwidth > 0


# What a user asks for.


@pytest.mark.parametrize(
    ("text", "nbytes"),
    [("1K", 1024), ("4MiB", 4 << 20), ("64M", 64 << 20), ("512", 512), ("8b", 8), ("4KB", 4096), ("2 GiB", 2 << 30)],
)
def test_sizes(text: str, nbytes: int) -> None:
    assert parse_size(text) == nbytes


@pytest.mark.parametrize("text", ["", "K", "4KBB", "1.5M", "-4K", "4 Mega", "0x10", "1e6", "²"])
def test_what_is_no_size(text: str) -> None:
    with pytest.raises(UsageError, match=r"invalid size .*: use 64K, 4MiB or a number of bytes"):
        parse_size(text)


def test_a_sweep_doubles() -> None:
    assert sweep(1024, 8192) == [1024, 2048, 4096, 8192]
    assert sweep(4, 4) == [4]
    assert len(sweep(1 << 10, 64 << 20)) == 17


@pytest.mark.parametrize(
    ("smallest", "largest", "said"),
    [
        (1000, 4096, "--min 1000: sizes must be powers of two, 4 bytes or more, such as 512."),
        (1024, 5000, "--max 5000: .* such as 4K"),
        (0, 4096, "--min 0: .* such as 4."),
        (-1, 4096, "--min -1"),
        (2, 4096, "--min 2"),
        (8192, 4096, "--min 8K is more than --max 4K: swap them"),
    ],
)
def test_sizes_that_cannot_be(smallest: int, largest: int, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        sweep(smallest, largest)


@pytest.mark.parametrize(
    ("ops", "backends", "said"),
    [
        (["sum_scatter"], ["ring"], "ring cannot do it; ring can do all_sum, all_max, all_min, all_gather, send"),
        (["all_sun"], ["ring"], "unknown operation. Did you mean all_sum"),
        (["recv"], ["ring"], "--ops send measures both ends"),
        (["send"], ["nccl"], "nccl cannot do it"),
        ([], ["ring"], "choose one or more of"),
        ("all_sum", ["ring"], "use a list"),
    ],
)
def test_operations_that_cannot_be_measured(ops: Sequence[str], backends: list[str], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        known_ops(ops, backends)


def test_what_is_compared() -> None:
    assert choices(RING, (), ()) == [RING]
    assert choices(RING, ("mpi", "ring"), ()) == [RING, MPI]
    assert choices(RING, (), (1, 2, 2)) == [RING, RING2]
    assert choices(MPI, ("ring",), (2,)) == [MPI, RING2]
    assert choices(RING, ("ring", "mpi"), (2,)) == [RING, RING2, MPI]
    for compare, connections, said in (
        (("gloo",), (), "unknown backend 'gloo'"),
        ((), (0,), "--connections 0: a ring link needs at least 1"),
        ((), (2,), "--connections is for a ring, but this is mpi: add --compare ring"),
    ):
        with pytest.raises(UsageError, match=said):
            choices(MPI, compare, connections)


def test_a_sweep_beyond_the_memory_is_refused() -> None:
    with pytest.raises(
        UsageError, match=r"--max 1024G: the ranks here would need about 8192 GiB .* Try --max \d+[MG]\."
    ):
        fits_in_memory(["all_sum"], 1 << 40, 4, 2)
    fits_in_memory(["all_gather"], 1 << 10, 2, 2)
    fits_in_memory(["all_sum"], 1 << 40, 4, 0)


# Results.


def test_figures_are_read_by_people() -> None:
    assert [size_text(n) for n in (512, 1024, 4 << 20, 1 << 30)] == ["512 B", "1 KiB", "4 MiB", "1 GiB"]
    assert [seconds_text(s) for s in (7.12e-5, 0.0035, 1.234)] == ["71.2 µs", "3.50 ms", "1.23 s"]
    assert [rate_text(r) for r in (9.31e8, 1.23e10, 4.1e6, 0)] == ["0.931", "12.3", "0.00410", "0"]


def test_a_saved_result_is_the_same_when_it_is_loaded(tmp_path: Path) -> None:
    saved = result(row(1024, 1e-4), row(1024, 1e-5, op="send", link=(0, 1)))
    saved.notes.append("Skipped mpi: there is none.")
    saved.save(tmp_path / "bench.json")
    assert BenchResult.load(tmp_path / "bench.json") == saved


def test_the_chart_is_saved_as_a_picture(tmp_path: Path) -> None:
    result(row(1024, 1e-4), row(4096, 2e-4)).save(tmp_path / "bench.svg")
    root = ElementTree.parse(tmp_path / "bench.svg").getroot()
    assert (root.findtext("{*}title") or "").startswith("busbw of ")
    assert root.findall(".//{*}polyline")
    with pytest.raises(UsageError, match="at least two sizes"):
        result(row(1024, 1e-4)).save(tmp_path / "bench.svg")


@pytest.mark.parametrize("content", ["", "[]", "{}", "3", '{"allranks bench": 1}', '{"allranks bench": 1, "rows": 3}'])
def test_a_file_that_is_no_bench_is_refused(content: str, tmp_path: Path) -> None:
    (tmp_path / "file.json").write_text(content)
    with pytest.raises(UsageError, match=r"file\.json is not a saved bench"):
        BenchResult.load(tmp_path / "file.json")


def test_files_that_cannot_be(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="No such file"):
        BenchResult.load(tmp_path / "absent.json")
    with pytest.raises(UsageError, match=r"--save .*No such file"):
        result(row(1024, 1.0)).save(tmp_path / "absent" / "bench.json")
    (tmp_path / "new.json").write_text(json.dumps({"allranks bench": 99}))
    with pytest.raises(UsageError, match="another version of allranks: measure again"):
        BenchResult.load(tmp_path / "new.json")


def test_a_link_that_fell_is_told_in_bits() -> None:
    before = result(row(1 << 20, (1 << 20) * 8 / 0.93e9, op="send", link=(1, 2)))
    now = result(row(1 << 20, (1 << 20) * 8 / 0.41e9, op="send", link=(1, 2)))
    assert now.against(before) == ["link 1-2 fell from 0.930 to 0.410 Gbit/s at 1 MiB."]
    assert before.against(now) == ["link 1-2 rose from 0.410 to 0.930 Gbit/s at 1 MiB."]


def test_neighbouring_sizes_that_changed_alike_share_a_sentence() -> None:
    sizes = [1 << power for power in range(10, 16)]
    before = result(*[row(nbytes, 1e-3) for nbytes in sizes])
    ratios = [0.5, 0.8, 1.0, 1.0, 1.25, 1.05]
    now = result(*[row(nbytes, 1e-3 / ratio) for nbytes, ratio in zip(sizes, ratios)])
    assert now.against(before) == [
        "all_sum from 1 KiB to 2 KiB: busbw 0.50 to 0.80 of before.",
        "all_sum at 16 KiB: busbw 1.25 of before.",
    ]


def test_noise_is_no_change() -> None:
    quiet = ["No change beyond noise (10 %, with the middle halves of the times apart)."]
    before = result(row(1024, 1.00e-3, spread=0.3))
    assert result(row(1024, 1.09e-3)).against(before) == quiet
    assert result(row(1024, 1.50e-3, spread=0.3)).against(before) == quiet  # the middle halves touch
    assert result(row(1024, 2.00e-3, spread=0.3)).against(before) == ["all_sum at 1 KiB: busbw 0.50 of before."]


def test_different_worlds_are_named() -> None:
    before, now = result(row(1024, 1e-3, choice=MPI), choice=MPI), result(row(1024, 1e-3))
    assert now.against(before) == ["The worlds differ: 2 ranks on mpi then, 2 ranks on ring now."]
    assert result(row(2048, 1.0)).against(now) == ["Nothing was measured in both: use the same operations and sizes."]


def test_the_best_wiring_is_recommended_with_its_command() -> None:
    rows = [row(1024, 4e-4), row(2048, 4e-4), row(1024, 2e-4, choice=RING2), row(2048, 1e-4, choice=RING2)]
    found = result(*rows, row(1024, 3e-4, choice=MPI), row(2048, 3e-4, choice=MPI))
    assert found.recommended == RING2
    assert found.recommendation == (
        "Use ring, 2 connections: its busbw is 2.83 (geometric mean of 2 figures, 2.00 to 4.00) of that of ring. "
        "To switch: %distributed rewire --connections 2"
    )
    assert MPI.command(RING2) == "%distributed rewire --backend mpi"
    assert RING2.command(MPI) == "%distributed rewire --backend ring --connections 2"
    assert RING.command(RING2) == "%distributed rewire --connections 1"


def test_what_is_hardly_better_is_not_recommended() -> None:
    found = result(row(1024, 1.0e-4), row(1024, 0.95e-4, choice=MPI))
    assert found.recommended == RING
    assert found.recommendation == "Stay with ring. Of its busbw, mpi reaches 1.05."
    assert result(row(1024, 1.0)).recommendation is None


def test_the_result_as_text_html_and_frame() -> None:
    pytest.importorskip("pandas")
    found = result(row(1024, 1e-4), row(2048, 1.5e-4), row(1024, 1e-5, op="send", link=(0, 1)))
    text = str(found)
    assert repr(found) == text
    assert re.search(r"^ring +all_sum +1 KiB +9 +100 µs +100 µs +100 µs +0\.0102 +0\.0102$", text, re.M), text
    assert "\nall_sum: t = 50.0 µs + S / (0.0205 GB/s), off by up to 0%" in text
    html = found._repr_html_()
    assert "<table" in html and "<svg" in html and "<script" not in html and "link 0-1" in html
    assert "<svg" not in result(row(1024, 1.0))._repr_html_()
    frame = found.frame()
    assert list(frame["op"]) == ["all_sum", "all_sum", "send"]
    assert list(frame["link"])[2] == "0-1"
    assert frame["busbw"][0] == pytest.approx(0.01024)


def test_without_pandas_the_frame_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    plain_import = builtins.__import__

    def without_pandas(name: str, *args: Any) -> Any:
        if name == "pandas":
            raise ImportError(name)
        return plain_import(name, *args)

    monkeypatch.setattr(builtins, "__import__", without_pandas)
    with pytest.raises(UsageError, match="needs pandas, which is not installed: pip install pandas"):
        result(row(1024, 1.0)).frame()


def test_progress_without_a_front_end_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    with Progress(live=False) as progress:
        progress("all_sum at 4 MiB")
        progress("done")
    assert capsys.readouterr().err == "\rall_sum at 4 MiB\rdone            \r    \r"


# Real worlds.


@pytest.fixture(params=["ring2", pytest.param("mpi2", marks=pytest.mark.mpi)])
def world(request: pytest.FixtureRequest) -> Cluster:
    """Two ranks, on ring and on MPI."""
    cluster: Cluster = request.getfixturevalue(request.param)
    return cluster


@pytest.mark.slow
def test_every_operation_is_measured_at_every_size(world: Cluster) -> None:
    ops = ("all_sum", "all_max", "all_min", "all_gather", "send")
    steps: list[str] = []
    found = world.bench(ops, **SMALL, progress=steps.append)
    assert [(each.op, each.nbytes) for each in found.rows] == [(op, size) for op in ops for size in SIZES]
    assert all(each.calls >= 8 and 0 < each.minimum <= each.median <= each.p99 for each in found.rows)
    assert {each.what for each in found.rows if each.op == "send"} == {"link 0-1"}
    assert all(each.choice == Choice(world.backend) for each in found.rows)
    assert len(steps) == 2 * len(found.rows) and "all_sum" in steps[0]
    assert world.last_bench is found
    assert world.snapshot.peak == found.peak == max(each.busbw for each in found.rows)
    assert set(found.fits) == {"all_sum", "all_max", "all_min", "all_gather", "link 0-1"}


@pytest.mark.slow
def test_nothing_of_bench_is_left_in_the_namespace(world: Cluster) -> None:
    names = "sorted(name for name in globals() if not name.startswith('_i'))"
    # A cell before that wrote `for _ in range(5)` has made these its own, and IPython leaves them alone.
    world.run("for name in ('_', '__', '___', 'name'):\n    globals().pop(name, None)")
    world.run("'mine'")
    before = world.run(f"names = {names}\n_, names")[0].value
    world.run("'mine'")
    world.bench(("all_sum", "send"), **SMALL)
    last, after = world.run(f"names, kept = {names}, _\nkept, names")[0].value
    assert last == "mine"
    assert [name for name in after if name not in before[1] and not re.fullmatch(r"_\d+|names|kept", name)] == []


@pytest.mark.slow
def test_each_link_has_its_own_figures(ring4: Cluster) -> None:
    found = ring4.bench(("send",), smallest=4096, largest=4096, seconds=0.02)
    assert [each.what for each in found.rows] == ["link 0-1", "link 0-3", "link 1-2", "link 2-3"]
    assert ring4.run("mx.distributed.all_sum(mx.array(rank)).item()")[0].value == 6


@pytest.mark.slow
def test_a_wrong_result_is_no_figure(ring2: Cluster) -> None:
    """One rank's library adds one; every rank must say so, and none may wait for another."""
    ring2.run(
        "right = mx.distributed.all_max\n"
        "def wrong(x, **kwargs):\n    return right(x, **kwargs) + rank\n"
        "mx.distributed.all_max = wrong"
    ).check()
    try:
        with pytest.raises(CellFailed, match="ranks 0-1 raised RuntimeError: all_max of 4096 bytes gave wrong values"):
            ring2.bench(("all_max",), **SMALL)
    finally:
        ring2.run("mx.distributed.all_max = right").check()
    assert ring2.state == "whole"
    ring2.bench(("all_max",), **SMALL)


@pytest.mark.slow
def test_bench_is_refused_where_it_cannot_be(ring2: Cluster) -> None:
    for arguments, said in (
        ({"ops": ("sum_scatter",)}, "ring cannot do it; ring can do all_sum"),
        ({"smallest": 1000}, "--min 1000"),
        ({"compare": ("gloo",)}, "unknown backend 'gloo'"),
        ({"connections": (0,)}, "--connections 0"),
        ({"seconds": 0}, "--seconds 0"),
        ({"seconds": math.nan}, "--seconds nan"),
    ):
        with pytest.raises(UsageError, match=said):
            ring2.bench(**arguments)
    with pytest.raises(NoCluster):
        Cluster(2).bench()
    with Cluster(1) as alone, pytest.raises(UsageError, match="resize 2"):
        alone.bench()


@pytest.mark.slow
def test_bench_does_not_begin_while_ranks_are_busy(ring2: Cluster) -> None:
    cell = ring2.begin("import time\ntime.sleep(600)")
    try:
        with pytest.raises(Busy):
            ring2.bench(compare=("mpi",))
    finally:
        cell.interrupt()
        cell.finish()


@pytest.mark.slow
def test_connections_are_compared_and_the_wiring_is_as_before() -> None:
    with Cluster(2, backend="ring", name="connections") as cluster:
        cluster.run("kept = rank + 100")
        found = cluster.bench(**SMALL, connections=(1, 2))
        assert list(dict.fromkeys(each.choice for each in found.rows)) == [RING, RING2]
        assert list(found.series) == ["all_sum (ring)", "all_sum (ring, 2 connections)"]
        assert str(found.recommendation) in str(found)
        busbw = {
            choice: geometric_mean(each.busbw for each in found.rows if each.choice == choice)
            for choice in (RING, RING2)
        }
        assert found.recommended == RING or (found.recommended == RING2 and busbw[RING2] > busbw[RING])
        assert cluster._live.ranks is not None and cluster._live.ranks.settings.options.connections == 1
        assert cluster.pull("kept") == [100, 101]


@pytest.mark.mpi
@pytest.mark.slow
def test_backends_are_compared_and_variables_survive(need_mpi: None) -> None:
    with Cluster(2, backend="ring", name="compared") as cluster:
        cluster.run("kept = mx.arange(3) + rank\nlazy = (i for i in range(3))").check()
        found = cluster.bench(("all_sum", "send"), **SMALL, compare=("ring", "mpi", "jaccl"))
        assert {each.choice.backend for each in found.rows} == {"ring", "mpi"}
        assert any(note.startswith("Skipped jaccl: ") for note in found.notes)
        assert any("except lazy" in note for note in found.notes)
        assert (cluster.backend, cluster.state) == ("ring", "whole")
        assert [each.tolist() for each in cluster.pull("kept")] == [[0, 1, 2], [1, 2, 3]]
        assert found.peak == max(each.busbw for each in found.rows if each.choice == RING)


STOPPED = """
import os, signal, threading
from allranks import Cluster
from allranks.errors import CellInterrupted
from tests.faults.stop import running
from tests.waiting import comes_true

with Cluster(2, backend="ring", name="stopped") as cluster:
    cluster.run("kept = rank + 100").check()
    presses, pressed = [], []

    def press():
        assert comes_true(cluster, running(0, 1), 60)
        pressed.append(cluster.backend)
        os.kill(os.getpid(), signal.SIGINT)

    def press_on_mpi(text):
        if "mpi ·" in text and not presses:
            presses.append(threading.Thread(target=press))
            presses[0].start()

    try:
        cluster.bench(smallest=1 << 12, largest=1 << 16, seconds=2.0, compare=("mpi",), progress=press_on_mpi)
    except CellInterrupted:
        print("interrupted on", *pressed)
    print(cluster.backend, cluster.state, cluster.pull("kept"))
"""
"""In a process of its own: the signal would stop the tests if it came a moment too late."""


@pytest.mark.mpi
@pytest.mark.slow
def test_ctrl_c_in_another_wiring_comes_home(need_mpi: None) -> None:
    done = subprocess.run([sys.executable, "-c", STOPPED], cwd=ROOT, capture_output=True, text=True, timeout=250)
    assert done.stdout.splitlines() == ["interrupted on mpi", "ring whole [100, 101]"], done.stderr


class StopsWhenFreed:
    """Ctrl-C at a moment from which Python lets no exception out; pyzmq's frames are such a moment."""

    def __del__(self) -> None:
        signal.raise_signal(signal.SIGINT)


def test_ctrl_c_between_two_cells_is_not_lost(ring2: Cluster) -> None:
    texts = []

    def press_once(text: str) -> None:
        texts.append(text)
        if len(texts) == 2:
            StopsWhenFreed()

    with pytest.raises(CellInterrupted):
        ring2.bench(smallest=1 << 12, largest=1 << 16, seconds=0.02, progress=press_once)
    assert len(texts) == 2 and ring2.state == "whole"


# The magic.


@pytest.mark.slow
def test_the_magic_shows_saves_and_compares(notebook: Notebook, tmp_path: Path) -> None:
    notebook.with_ranks("ring", 2)
    file = tmp_path / "bench.json"
    line = f"%distributed bench --ops all_sum,send --min 4K --max 16KiB --seconds 0.02 --save {file}"
    cell = notebook.ok(line)
    text = next(each for each in cell.mime("text/plain") if "busbw" in each)
    assert 'bench · world "main" · 2 ranks' in text and "link 0-1" in text
    assert any("<table" in each for each in cell.mime("text/html"))
    assert BenchResult.load(file).ranks == 2
    assert notebook.ok("len(allranks.current().last_bench.rows)").mime("text/plain") == ["6"]
    measured = BenchResult.load(file)
    measured.rows[:] = [_slower(each) for each in measured.rows]
    measured.save(file)
    again = notebook.ok(f"%distributed bench --min 4K --max 4K --seconds 0.02 --against {file}")
    assert "all_sum at 4 KiB: busbw" in again.stdout and "of before" in again.stdout


def _slower(row: BenchRow) -> BenchRow:
    """A thousand times: no noise is that large."""
    low, high = row.quartiles
    return replace(row, median=row.median * 1000, quartiles=(low * 1000, high * 1000))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("--min 4Q", "invalid size '4Q': use 64K, 4MiB"),
        ("--max 3M", "--max 3145728: sizes must be powers of two, 4 bytes or more, such as 2M"),
        ("--ops allsum", "Did you mean all_sum?"),
        ("--ops ,", "choose one or more of"),
        ("--compare gloo", "unknown backend 'gloo'"),
        ("--connections two", "use 1,2,4"),
        ("--against /nowhere/file", "/nowhere/file: No such file"),
        ("--save /nowhere/file", "--save /nowhere/file: No such file"),
    ],
)
def test_slips_are_refused_before_anything_is_measured(options: str, said: str, notebook: Notebook) -> None:
    notebook.with_ranks("ring", 2)
    error = notebook.run(f"%distributed bench {options}").error
    assert error.startswith("UsageError") and said in error


@pytest.mark.slow
def test_ctrl_c_stops_the_magic_as_it_does_a_cell(notebook: Notebook) -> None:
    notebook.with_ranks("ring", 2)
    notebook.ok("%%distributed\nkept = rank + 100")
    running = notebook.begin("%distributed bench --min 4K --max 64K --seconds 20")
    notebook.until(lambda: "all_sum" in running.all, 60)
    notebook.interrupt()
    cell = notebook.finish(running)
    assert cell.error.startswith(("KeyboardInterrupt", "CellInterrupted")), cell.all
    assert notebook.ok("%%distributed\nkept - rank").by_rank == {0: "100\n", 1: "100\n"}


def test_bench_result_is_public() -> None:
    assert allranks.BenchResult is BenchResult
