"""The picture of what a cell logs: where it stands, when it is drawn, and what it says."""

from __future__ import annotations

import re
from collections.abc import Sequence

import pytest
from IPython.core.interactiveshell import InteractiveShell

from allranks.head.state.cell_run import CellRun
from allranks.head.state.collective_times import CollectiveShare
from allranks.head.state.logged import Row
from allranks.notebook import cell_curves
from allranks.notebook.cell_curves import KINDS_KEPT, RUNS_DRAWN, CellCurves
from allranks.notebook.fold import Block
from allranks.notebook.show_blocks import Show
from tests.notebook.page import ALL, Page, text

LOSS = "loss 1 → 0.1 (step 9 · 2 steps a second)"


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("PERIOD", 0.0), ("SHARE", 1e18), ("CHANGES", 1e18)):
        monkeypatch.setattr(cell_curves, name, value)
    CellCurves._ended.clear()


def rows(steps: Sequence[int] = range(10), *, rank: int = 0) -> list[Row]:
    """A loss from 1 down, two steps a second."""
    return [Row(rank, "loss", 1, step, 1 - step / 10, 100 + step / 2) for step in steps]


def pictures(page: Page) -> list[str]:
    return [shown["text/plain"] for _, shown in page.outputs if isinstance(shown, dict) and "image/svg+xml" in shown]


def test_it_is_drawn_in_one_place_while_the_cell_runs_and_said_in_a_line(page: Page) -> None:
    show = Show(ALL, live=True)
    show.logged(rows(range(2)))
    assert not pictures(page), "two steps are no curve"
    show.logged(rows(range(2, 6)))
    show.blocks([text("epoch 1\n")])
    assert pictures(page) == ["loss 1 → 0.5 (step 5 · 2 steps a second)"]
    show.logged(rows(range(6, 10)))
    assert pictures(page) == [LOSS]
    show.close()
    assert [name for name, _ in page.outputs][1:] == ["stdout"] and pictures(page) == [LOSS]


def test_a_slow_page_gets_few_pictures_and_the_last_one(page: Page, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cell_curves, "PERIOD", 1e9)
    show = Show(ALL, live=True)
    show.logged(rows(range(5)))
    for step in range(5, 10):
        show.logged(rows([step]))
    assert pictures(page) == ["loss 1 → 0.6 (step 4 · 2 steps a second)"]
    show.close()
    assert pictures(page) == [LOSS]


def test_it_stays_when_ranks_clear_their_output(page: Page) -> None:
    show = Show(ALL, live=True)
    show.blocks([text("before\n")])
    show.logged(rows())
    show.blocks([Block("clear", ALL, False)])
    assert pictures(page) == [LOSS] and "before" not in page.text()
    show.blocks([text("after\n")])
    show.close()
    assert pictures(page) == [LOSS] and page.text().count("after") == 1


def test_it_has_no_label_and_takes_none_from_what_follows(page: Page) -> None:
    show = Show(ALL, live=True)
    show.blocks([text("one\n")])
    show.logged(rows())
    show.blocks([text("two\n")])
    show.close()
    lines = [line for _, shown in page.outputs if isinstance(shown, str) for line in shown.splitlines()]
    assert lines == ["ranks 0-3 │ one", "ranks 0-3 │ two"]


def test_ranks_that_log_different_values_make_a_band(page: Page) -> None:
    show = Show(ALL, live=True)
    show.logged([row._replace(value=row.value + rank) for rank in ALL for row in rows(rank=rank)])
    show.close()
    (svg,) = [shown["image/svg+xml"] for _, shown in page.outputs if isinstance(shown, dict)]
    assert "ranks 0-3: mean, and from least to most" in svg and svg.count("fill-opacity") == 1


def test_a_terminal_gets_one_line_at_the_end(shell: InteractiveShell, capsys: pytest.CaptureFixture[str]) -> None:
    show = Show(ALL, live=False)
    show.logged(rows())
    assert capsys.readouterr().out == ""
    show.close()
    assert capsys.readouterr().out == f"{LOSS}\n"


def test_nothing_logged_draws_nothing(page: Page) -> None:
    show = Show(ALL, live=True)
    show.logged([])
    show.close()
    assert page.outputs == []


def lines_of(page: Page) -> tuple[int, int]:
    """How many curves the last picture has, and how many of them are pale."""
    svg = [shown["image/svg+xml"] for _, shown in page.outputs if isinstance(shown, dict)][-1]
    return svg.count("stroke-linejoin"), svg.count('stroke-opacity="0.7"')


def test_runs_of_the_same_cell_before_are_pale_and_of_another_are_not_there(page: Page) -> None:
    for run in range(RUNS_DRAWN + 2):
        show = Show(ALL, live=True)
        show.logged(rows(range(3)))
        show.logged(rows(range(3, 10)))
        show.close()
        assert lines_of(page) == (1 + min(run, RUNS_DRAWN), min(run, RUNS_DRAWN))
    show = Show(ALL, live=True)
    show.logged([row._replace(name=name) for row in rows() for name in ("loss", "accuracy")])
    show.close()
    assert lines_of(page) == (2, 0)


def test_runs_are_not_kept_without_end(page: Page) -> None:
    for number in range(KINDS_KEPT + 5):
        show = Show(ALL, live=True)
        show.logged([row._replace(name=f"n{number}") for row in rows()])
        show.close()
    assert len(CellCurves._ended) == KINDS_KEPT and ("n0",) not in CellCurves._ended


def test_a_run_that_has_begun_is_drawn_over_the_steps_of_the_run_before(page: Page) -> None:
    show = Show(ALL, live=True)
    show.logged(rows())
    show.close()
    show = Show(ALL, live=True)
    show.logged(rows(range(3)))
    svg = [shown["image/svg+xml"] for _, shown in page.outputs if isinstance(shown, dict)][-1]
    pale, own = re.findall(r'<path d="M([^"]*)" fill="none"', svg)
    assert pale.split("L")[:3] == own.split("L") and len(pale.split("L")) == 10


def test_a_loop_that_starts_again_starts_the_curve_and_its_heading_again(page: Page) -> None:
    show = Show(ALL, live=True)
    show.logged(rows())
    show.logged([row._replace(at=row.at + 1000) for row in rows(range(4))])
    assert pictures(page) == ["loss 1 → 0.7 (step 3 · 2 steps a second)"]
    show.close()
    assert pictures(page) == ["loss 1 → 0.7 (step 3 · 2 steps a second)"]


def test_names_with_steps_of_their_own_do_not_start_the_heading_again(page: Page) -> None:
    show = Show(ALL, live=True)
    for row in rows():
        show.logged([row, row._replace(name="epoch_loss", step=row.step // 5)])
    show.close()
    assert pictures(page)[0].endswith("(step 9 · 2 steps a second)")


@pytest.mark.parametrize(("name", "shown"), [("a\nb", "a b"), ("\ud800", " ")])
def test_any_name_stays_in_its_line(
    name: str, shown: str, shell: InteractiveShell, capsys: pytest.CaptureFixture[str]
) -> None:
    show = Show(ALL, live=False)
    show.logged([row._replace(name=name) for row in rows()])
    show.close()
    assert capsys.readouterr().out == f"{shown}{LOSS.removeprefix('loss')}\n"


def test_the_rate_is_by_the_clock_of_one_rank(page: Page) -> None:
    show = Show(ALL, live=True)
    for step in range(10):
        ranks = (0, 1) if step % 2 else (1, 0)
        show.logged([rows([step], rank=rank)[0]._replace(at=100 + step / 2 + 50 * rank) for rank in ranks])
    show.close()
    assert "2 steps a second" in pictures(page)[0]


@pytest.mark.parametrize("back", [-1000.0, 0.0])
def test_a_clock_that_goes_back_is_no_harm(page: Page, back: float) -> None:
    show = Show(ALL, live=True)
    show.logged([row._replace(at=row.at + (back if row.step > 4 else 0)) for row in rows()])
    show.close()
    assert pictures(page)[0].startswith("loss 1 → 0.1 (step 9")


def test_a_picture_that_cannot_be_drawn_does_not_end_the_cell(page: Page, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise ValueError("cannot be drawn")

    monkeypatch.setattr("allranks_widgets.curve_picture.Drawn.of", fail)
    show = Show(ALL, live=True)
    show.logged(rows())
    show.blocks([text("goes on\n")])
    show.close()
    assert page.text() == "ranks 0-3 │ goes on\n"


def test_a_screen_that_is_closed_has_let_go_of_the_curves(page: Page) -> None:
    show = Show(ALL, live=True)
    show.logged(rows())
    show.close()
    show.close()
    assert pictures(page) == [LOSS] and [len(runs) for runs in CellCurves._ended.values()] == [1]
    show.logged([row._replace(name="other") for row in rows()])
    assert pictures(page) == [LOSS, LOSS.replace("loss", "other")]


def test_names_that_come_later_keep_the_runs_before(page: Page) -> None:
    for _ in range(2):
        show = Show(ALL, live=True)
        show.logged(rows())
        show.logged([row._replace(name="late") for row in rows(range(5))])
        show.close()
    assert lines_of(page) == (4, 2) and list(CellCurves._ended) == [("late", "loss")]


def test_a_run_that_goes_on_where_an_earlier_one_ended_is_one_curve_with_it(page: Page) -> None:
    for number, steps in enumerate((range(10), range(10, 20), range(0, 30, 2)), 1):
        run = CellRun(number, "", ALL, "ring")
        run.name = f"run {number}"
        show = Show(ALL, live=True)
        show.logged(rows(steps), run)
        show.close()
    first, second, third = pictures(page)
    assert first == "loss 1 → 0.1 (run 1 · step 9 · 2 steps a second)"
    assert second == "loss 1 → -0.9 (run 2 (continues run 1) · step 19 · 2 steps a second)"
    assert third.startswith("loss 1 → -1.8 (run 3 · step 28")
    svg = [shown["image/svg+xml"] for _, shown in page.outputs if isinstance(shown, dict)]
    assert svg[1].count("<title>") == 0, "the first part is no run beside it"
    assert sorted(re.findall(r"<title>(run \d)", svg[2])) == ["run 1", "run 2"]


def test_a_long_run_stays_one_curve_with_the_one_before_and_a_hidden_one_is_not_drawn(page: Page) -> None:
    runs = [CellRun(number, "", ALL, "ring") for number in (1, 2, 3)]
    for run, steps in zip(runs, (range(500), range(500, 2500), range(2500, 2600))):
        run.name = f"run {run.cell}"
        show = Show(ALL, live=True)
        show.logged(rows(steps), run)
        show.close()
        runs[1].hidden = run is runs[1]
    assert "run 2 (continues run 1) · " in pictures(page)[1]
    assert "continues" not in pictures(page)[2]


def test_runs_over_other_steps_are_not_drawn(page: Page) -> None:
    for first in (0, 100):
        show = Show(ALL, live=True)
        show.logged(rows(range(first, first + 10)))
        show.close()
    assert lines_of(page) == (1, 0)


def test_runs_that_are_hidden_make_room_for_older_ones(page: Page) -> None:
    runs = [CellRun(number, f"lr = {number}", ALL, "ring") for number in range(RUNS_DRAWN + 3)]
    for run in runs:
        run.name = f"run {run.cell}"
        if run is runs[-1]:
            runs[-2].hidden = True
        show = Show(ALL, live=True)
        show.logged(rows(), run)
        show.close()
    svg = [shown["image/svg+xml"] for _, shown in page.outputs if isinstance(shown, dict)][-1]
    assert re.findall(r"<title>(.*?)</title>", svg) == [f"run {number}: lr {number}" for number in (1, 2, 3)]
    assert ">run 5 · step 9 · 2 steps a second</text>" in svg


def test_the_heading_says_how_much_time_is_left(page: Page) -> None:
    run = CellRun(1, "", ALL, "ring")
    run.name, run.total = "run 1", 1000
    show = Show(ALL, live=True)
    show.logged(rows(), run)
    assert pictures(page) == ["loss 1 → 0.1 (run 1 · step 9 of 1,000 · 2 steps a second · 8 min left)"]
    run.collectives = CollectiveShare(0.31, 0.12)
    show.close()
    assert pictures(page) == [
        "loss 1 → 0.1 (run 1 · step 9 of 1,000 · 2 steps a second · 31% in collectives (12% waiting for others))"
    ]
