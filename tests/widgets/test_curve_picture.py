"""Curves as a picture: the right figures at the right places, whatever was logged."""

from __future__ import annotations

import math
import re
import xml.etree.ElementTree as ET
from collections.abc import Callable

import numpy as np
import pytest

from allranks_widgets.axis import labels, short, ticks
from allranks_widgets.curve_picture import (
    ABOVE,
    HEIGHT,
    MARGIN,
    MOST_PANELS,
    TITLE,
    Band,
    Drawn,
    smoothed,
)
from allranks_widgets.curves import Curves
from allranks_widgets.svg_text import BAD, LINE, WIDTH


def logged(*, ranks: int = 1, steps: int = 10, **names: Callable[[int, int], float]) -> Curves:
    """Curves of these functions of rank and step."""
    curves = Curves()
    for name, function in names.items():
        curves.add([(rank, name, 1, step, function(rank, step), 0.0) for step in range(steps) for rank in range(ranks)])
    return curves


def bands(curves: Curves) -> tuple[Band, ...]:
    return Drawn.of(curves).bands


def svg(curves: Curves, *before: Curves, ended: bool = True) -> str:
    """The picture, with earlier runs that logged the same."""
    runs = [{band.name: band for band in bands(each)} for each in before]
    others = {band.name: [run[band.name] for run in runs] for band in bands(curves)}
    return str(Drawn.of(curves).picture("step 9", others, ended=ended))


def paths(curves: Curves) -> list[list[tuple[float, float]]]:
    """The points of every line, without those of the grid and the bands."""
    root = ET.fromstring(svg(curves))
    lines = [each.attrib["d"] for each in root if each.attrib.get("fill") == "none" and each.attrib["stroke"] == LINE]
    return [[(float(x), float(y)) for x, y in re.findall(r"([^ ML]+) ([^ LhM]+)", line)] for line in lines]


def texts(curves: Curves) -> list[str]:
    return [each.text or "" for each in ET.fromstring(svg(curves)) if each.tag.endswith("text")]


def test_the_line_is_the_mean_and_the_band_reaches_from_least_to_most() -> None:
    (band,) = bands(logged(ranks=3, loss=lambda rank, step: step + rank))
    assert band.ranks == (0, 1, 2) and list(band.steps) == list(range(10))
    assert list(band.least) == list(range(10)) and list(band.most) == list(range(2, 12))
    assert list(band.mean) == list(range(1, 11)) and (band.first, band.last) == (1, 10)


@pytest.mark.parametrize("steps", [10, 204, 205, 206, 400, 1999])
def test_many_steps_are_drawn_by_column_and_nothing_is_lost_at_either_end(steps: int) -> None:
    peak = steps // 3
    curves = logged(ranks=2, steps=steps, a=lambda _rank, step: 100.0 if step == peak else 1.0, b=lambda *_: 0.0)
    band = bands(curves)[0]
    assert len(band.steps) <= WIDTH // 4 and band.steps[-1] == steps - 1
    assert band.most.max() == 100 and band.least.min() == 1, "a peak of one step is within the band"
    assert (band.first, band.last) == (1, 1)


def test_a_line_rises_from_its_left_end_to_its_right_one() -> None:
    (line,) = paths(logged(loss=lambda _rank, step: float(step)))
    assert len(line) == 10 and line == sorted(line) and line[0][1] - line[-1][1] == pytest.approx(HEIGHT, abs=0.1)


def test_where_no_value_is_finite_the_line_is_broken_and_the_end_says_so() -> None:
    curves = logged(ranks=2, loss=lambda _rank, step: math.nan if step in (4, 9) else float(step))
    assert [len(line) for line in paths(curves)] == [4, 4]
    assert "nan" in texts(curves) and Drawn.of(curves).text("x") == "loss 0 → nan (x)"


@pytest.mark.parametrize(
    "values",
    [
        [1.0],
        [0.0] * 5,
        [1e300, -1e300, 5],
        [math.nan] * 4,
        [math.inf, 1, 2],
        [5e-324, 0],
        [1e15, 1e15 + 1],
        [7, math.nan],
        [5e-324] * 3,
        [2e299] * 3,
        [-1e308, 0, 1],
        [1, 1e100, 1.7e308],
    ],
    ids=str,
)
@pytest.mark.filterwarnings("error")
def test_any_values_make_a_picture(values: list[float]) -> None:
    curves = logged(ranks=2, steps=len(values), loss=lambda _rank, step: values[step])
    top, bottom = ABOVE + TITLE, ABOVE + TITLE + HEIGHT
    assert all(top <= y <= bottom for line in paths(curves) for _, y in line)
    assert "nan" not in " ".join(texts(curves)[3:]).replace("inf", "") or not math.isfinite(values[-1])


@pytest.mark.filterwarnings("error")
def test_any_steps_make_a_picture() -> None:
    curves = Curves()
    curves.add([(0, "loss", 1, step, 1.0, 0.0) for step in (-1.7e308, 0, 5e-324, 1e300, 1.7e308)])
    (line,) = paths(curves)
    assert (line[0][0], line[-1][0]) == (MARGIN, WIDTH) and line == sorted(line)


@pytest.mark.parametrize(("name", "shown"), [("a<b&'\"", "a<b&'\""), ("a\0\x1b[1m\nb", "a  [1m b"), ("\ud800", " ")])
def test_any_name_can_be_shown(name: str, shown: str) -> None:
    curves = Curves()
    curves.add([(0, name, 1, step, 1.0, 0.0) for step in range(3)])
    assert shown in texts(curves)


def test_a_long_name_is_cut() -> None:
    curves = Curves()
    curves.add([(0, "n" * 10_000, 1, step, 1.0, 0.0) for step in range(3)])
    assert any(text.startswith("nnn") and text.endswith("n…") and len(text) < 140 for text in texts(curves))
    assert len(svg(curves)) < 5000


def test_more_names_than_there_is_room_for_are_named() -> None:
    curves = Curves()
    curves.add([(0, f"n{number}", 1, step, 1.0, 0.0) for number in range(20) for step in range(3)])
    assert len(paths(curves)) == MOST_PANELS
    assert texts(curves)[-1] == "14 more: n6, n7, n8, n9, n10, n11, n12, n13 … (%distributed watch log)"
    assert Drawn.of(curves).text("step 9").endswith("14 more (step 9)")


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (0, 99, [0, 20, 40, 60, 80]),
        (0.3, 3.4, [1, 2, 3]),
        (-1, 1, [-1, -0.5, 0, 0.5, 1]),
        (0, 3e-4, [0, 1e-4, 2e-4, 3e-4]),
        (279, 1395, [500, 1000]),
    ],
)
def test_ticks_are_round(low: float, high: float, expected: list[float]) -> None:
    assert ticks(low, high, 5 if high == 99 else 4) == pytest.approx(expected)


@pytest.mark.parametrize("low", [0.1, 1.0, 1.7e18, -1e16])
@pytest.mark.parametrize("steps", [1, 2, 5, 20, 100])
def test_ticks_in_a_range_of_a_few_roundings_differ(low: float, steps: int) -> None:
    at = ticks(low, float(low + steps * np.spacing(abs(low))), 5)
    assert len(set(at)) == len(at) == len(labels(at)) and (at or steps < 50)


def test_figures_are_short() -> None:
    told = {
        0.123456: "0.1235",
        3.0: "3",
        9999.0: "9999",
        12_345.0: "12.35k",
        2.5e6: "2.5M",
        1e-7: "1e-07",
        -40e9: "-40G",
    }
    assert {value: short(value) for value in told} == told
    assert (short(4931.0, 3), short(493.1, 3), short(49_310.0, 3)) == ("4931", "493", "49.3k")


@pytest.mark.parametrize(
    ("low", "high"),
    [
        (100_000, 100_010),
        (1_234_000, 1_234_050),
        (10.001, 10.004),
        (100.01, 100.04),
        (0, 1),
        (-3e-7, 9),
        (1e15, 1e15 + 9),
    ],
)
def test_labels_tell_the_ticks_of_an_axis_apart(low: float, high: float) -> None:
    said = labels(ticks(low, high, 5))
    assert len(said) > 2 and len(set(said)) == len(said), said


def test_steps_are_whole_where_those_logged_are() -> None:
    assert texts(logged(steps=3, loss=lambda _rank, step: step))[-3:] == ["0", "1", "2"]


def test_a_run_before_that_went_wrong_does_not_flatten_this_one() -> None:
    now = logged(loss=lambda _rank, step: float(step))
    wrong = logged(loss=lambda _rank, step: 10.0**step)
    root = ET.fromstring(svg(now, wrong))
    own, pale = ([each.attrib["d"] for each in root if each.attrib.get("stroke-width") == w] for w in ("1.6", "1.2"))
    ends = [float(y) for _, y in re.findall(r"([\d.]+) ([\d.]+)", own[0])]
    assert len(own) == len(pale) == 1 and max(ends) - min(ends) > HEIGHT / 3


@pytest.mark.parametrize("ended", [True, False])
def test_a_constant_whose_mean_is_rounded_is_drawn_over_the_run_before(ended: bool) -> None:
    rate = logged(ranks=3, rate=lambda *_: 0.1)
    assert bands(rate)[0].mean[0] != 0.1
    root = ET.fromstring(svg(rate, rate, ended=ended))
    own, pale = ([each.attrib["d"] for each in root if each.attrib.get("stroke-width") == w] for w in ("1.6", "1.2"))
    assert own == pale and len(own) == 1


def test_a_run_that_has_ended_is_drawn_over_its_own_steps() -> None:
    short_one, long_one = (logged(steps=steps, loss=lambda _rank, step: float(step)) for steps in (10, 100))
    for ended, last in ((False, "80"), (True, "8")):
        assert last in re.findall(r">(\d+)</text>", svg(short_one, long_one, ended=ended))


def test_a_single_step_far_from_many_has_no_effect_on_the_band_of_the_others() -> None:
    curves = logged(steps=1990, loss=lambda _rank, step: 50.0 if step == 700 else 1.0)
    curves.add([(0, "loss", 1, 1_000_000, 1.0, 0.0)])
    (band,) = bands(curves)
    assert band.most.max() == 50 and "fill-opacity" in svg(curves)


def test_where_one_rank_diverges_the_line_ends_and_the_band_goes_on() -> None:
    curves = logged(ranks=2, loss=lambda rank, step: math.nan if rank and step > 5 else 1.0 + 5 * rank)
    (band,) = bands(curves)
    assert list(np.isfinite(band.mean)) == [step <= 5 for step in range(10)] and np.isfinite(band.most).all()
    assert len(paths(curves)[0]) == 6 and svg(curves).count(f'stroke="{BAD}"') == 1


def test_the_value_at_the_right_is_where_the_line_ends() -> None:
    curves = logged(ranks=2, steps=5, loss=lambda rank, step: 1.0 + rank)
    curves.add([(0, "loss", 1, step, 1.0, 0.0) for step in range(5, 10)])
    (band,) = bands(curves)
    assert (band.last, band.mean[-1], band.steps[-1]) == (1.0, 1.0, 9)


def test_curves_that_are_too_many_are_counted() -> None:
    curves = Curves()
    curves.add([(rank, f"n{name}", 1, step, 1.0, 0.0) for step in range(3) for rank in range(64) for name in range(5)])
    assert "64 curves not drawn" in " ".join(texts(curves))


def test_a_cell_that_starts_again_drops_the_curves_of_an_earlier_cell_on_all_ranks() -> None:
    curves = Curves()
    curves.add([(rank, "loss", 1, step, 1.0, 0.0) for step in range(3) for rank in range(2)])
    curves.add([(0, "loss", 2, 3, 2.0, 0.0)])
    assert {rank: len(points) for rank, points in curves.by_name()["loss"].items()} == {0: 4, 1: 3}
    curves.add([(0, "loss", 3, 0, 5.0, 0.0), (2, "loss", 3, 0, 7.0, 0.0)])
    assert curves.by_name() == {"loss": {0: [(0.0, 5.0)], 2: [(0.0, 7.0)]}}


def test_a_rank_that_went_on_in_the_running_cell_keeps_its_curve_when_another_starts_again() -> None:
    curves = Curves()
    rows = [(0, 1, 5), (1, 1, 6), (0, 2, 6), (1, 2, 5)]
    curves.add([(rank, "loss", cell, step, 1.0, 0.0) for rank, cell, step in rows])
    assert curves.by_name() == {"loss": {0: [(5.0, 1.0), (6.0, 1.0)], 1: [(5.0, 1.0)]}}


def test_a_rank_that_logs_few_steps_keeps_them_when_another_logs_many() -> None:
    curves = Curves()
    curves.add([(1, "loss", 1, step, 1.0, 0.0) for step in range(9, 2000, 10)])
    curves.add([(0, "loss", 1, step, 1.0, 0.0) for step in range(2001)])
    assert {len(points) for points in curves.by_name()["loss"].values()} == {200, 1001} and curves.table()


@pytest.mark.parametrize("times", [1, 2])
def test_a_rank_that_logs_every_second_step_keeps_them_when_another_logs_all(times: int) -> None:
    curves = Curves()
    curves.add([(1, "loss", 1, step, 1.0, 0.0) for step in range(1, 2002, 2) for _ in range(times)][-2000:])
    before = len(curves.by_name()["loss"][1])
    curves.add([(0, "loss", 1, step, 1.0, 0.0) for step in range(2001)])
    assert [len(points) for points in curves.by_name()["loss"].values()] == [before, 1001] and curves.table()


def test_earlier_runs_are_named_and_drawn_each_in_its_way() -> None:
    curves = logged(loss=lambda _rank, step: step, accuracy=lambda _rank, step: -step)
    names = ["oldest: lr 0.3", "older: <lr> 0.2", "old: " + "x" * 80]
    before = {band.name: [band] * 3 for band in bands(curves)}
    drawn = Drawn.of(curves)
    root = ET.fromstring(str(drawn.picture("step 9", before, names, ended=True)))
    pale = [each for each in root if each.attrib.get("stroke-opacity") == "0.7"]
    dashes = {each[0].text: each.attrib.get("stroke-dasharray") for each in pale if len(each)}
    assert dashes == {names[0]: "1.5 4", names[1]: "6 4", names[2]: None}
    assert [each.attrib.get("stroke-dasharray") for each in pale if not len(each)] == [None, "6 4", "1.5 4"]
    legend = [each for each in root if each.tag.endswith("text")][-3:]
    assert [each.text for each in legend][1:] == [names[1], names[0]] and (legend[0].text or "").endswith("x…")
    assert len({each.attrib["y"] for each in legend}) == 1 and "pale: runs before" not in "".join(root.itertext())
    assert root.attrib["aria-label"] == drawn.alternative("step 9", names)
    assert drawn.alternative("step 9", names).endswith(f"; pale: {names[2]}; {names[1]}; {names[0]}")


def test_without_names_earlier_runs_are_pale_lines() -> None:
    curves = logged(loss=lambda _rank, step: step)
    picture = svg(curves, curves)
    assert "pale: runs before" in picture and "<title>" not in picture and "dasharray" not in picture


def test_a_noisy_curve_is_smoothed_and_a_smooth_one_is_not() -> None:
    noise = np.random.default_rng(0).normal(0, 0.2, 200)
    noisy = logged(steps=200, loss=lambda _rank, step: 2 - step / 100 + noise[step])
    assert "thick: smoothed" in svg(noisy) and svg(noisy).count(f'stroke="{LINE}"') == 2
    for smooth in (lambda _rank, step: 2 - step / 100, lambda _rank, step: math.exp(-step / 9), lambda *_: 1.0):
        drawn = svg(logged(steps=200, loss=smooth))
        assert "smoothed" not in drawn and drawn.count(f'stroke="{LINE}"') == 1


def test_smoothing_keeps_constants_and_follows_the_mean() -> None:
    assert smoothed(np.full(100, 3.0)) == pytest.approx(np.full(100, 3.0))
    noise = np.random.default_rng(0).normal(0, 1.0, 1000)
    assert np.abs(smoothed(noise)[100:]).mean() < 0.25 * np.abs(noise).mean()
    broken = smoothed(np.array([5.0] * 50 + [np.nan] + [1.0] * 50))
    assert np.isnan(broken[50]) and broken[51] == 1.0 and broken[49] == pytest.approx(5.0)
