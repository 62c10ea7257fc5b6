"""Showing folded output: labels, rich output, clears, updates, unfinished lines, and nothing that steers a terminal."""

from __future__ import annotations

import re
import sys
from types import SimpleNamespace
from typing import Any

import pytest
from IPython.core.interactiveshell import InteractiveShell
from IPython.utils.capture import capture_output

from allranks.notebook import live_lines
from allranks.notebook.fold import Block
from allranks.notebook.output_writer import WIDGET_AS_TEXT
from allranks.notebook.show_blocks import Show
from tests.growth import growth
from tests.notebook.page import ALL, PNG, Page, html, rich, text

# Text


def test_every_line_stands_under_its_label(shell: InteractiveShell) -> None:
    with capture_output() as out:
        show = Show(ALL, live=False)
        show.blocks([text("a\nb\n"), text("c\n"), text("odd\n", (2,)), text("d\n", (0, 1, 3))])
        show.blocks([text("e", (0, 1, 3)), text("f\n")])
    assert out.stdout.splitlines() == [
        "ranks 0-3 │ a",
        "          │ b",
        "          │ c",
        "rank 2    │ odd",
        "0-1, 3    │ d",
        "          │ e",
        "ranks 0-3 │ f",
    ]


def test_stderr_goes_to_stderr_with_its_own_label(shell: InteractiveShell) -> None:
    with capture_output() as out:
        Show((0, 1), live=False).blocks([text("a\n", (0, 1)), text("warn\n", (0, 1), "stderr"), text("b\n", (0, 1))])
    assert out.stdout == "ranks 0-1 │ a\nranks 0-1 │ b\n"
    assert out.stderr == "ranks 0-1 │ warn\n"


def test_a_label_keeps_the_column_as_long_as_it_can(shell: InteractiveShell) -> None:
    every = tuple(range(12))
    with capture_output() as out:
        show = Show(every, live=False)
        for ranks in (every, (0, 2, 4), (0, 2, 4, 6, 8), tuple(range(0, 12, 2))):
            show.blocks([text("a\n", ranks)])
    assert out.stdout.splitlines() == [
        "ranks 0-11  │ a",
        "0, 2, 4     │ a",
        "0,2,4,6,8   │ a",
        "0,2,4,6,8,10 │ a",
    ]


def test_in_a_notebook_notes_and_progress_bars_are_not_on_red(page: Page) -> None:
    bar = " 45%|####5     | 9/20 [00:01<00:01, 8.1it/s]\n"
    for is_live, streams in ((True, ["stdout", "stdout", "stderr"]), (False, ["stderr"] * 3)):
        page.outputs.clear()
        for said, stream in (("it waits\n", "note"), (bar, "stderr"), (bar + "a warning\n", "stderr")):
            Show((0, 1), live=is_live).blocks([text(said, (0, 1), stream)])
        assert [name for name, _ in page.outputs] == streams


def test_a_cell_on_one_rank_is_narrow(shell: InteractiveShell) -> None:
    with capture_output() as out:
        Show((2,), live=False).blocks([text("a\n\nb\n", (2,))])
    assert out.stdout == "rank 2 │ a\n       │ \n       │ b\n"


def test_errors_and_cuts_are_told_in_words(shell: InteractiveShell) -> None:
    error = {"ename": "ValueError", "evalue": "no", "traceback": ["Traceback", "ValueError: no"], "line": 1}
    with capture_output() as out:
        Show(ALL, live=False).blocks(
            [
                Block("error", (0, 1), error),
                Block("error", (3,), {**error, "traceback": []}),
                Block("cut", (2,), {"lines": 1234567, "bytes": 96_300_000}),
            ]
        )
    assert out.stderr == "ranks 0-1 │ Traceback\n          │ ValueError: no\nrank 3    │ ValueError: no\n"
    assert out.stdout == "rank 2    │ … 1,234,567 lines (96.3 MB) not shown here: %distributed output has them\n"


def test_big_text_costs_no_more_than_its_length(shell: InteractiveShell) -> None:
    def show(lines: int) -> None:
        with capture_output() as out:
            Show(ALL, live=False).blocks([text("some line of text\n" * lines)])
        assert out.stdout.count("\n") == lines

    assert growth(show, 50_000) < 11


def test_a_colour_over_several_lines_stays_out_of_the_labels(shell: InteractiveShell) -> None:
    with capture_output() as out:
        Show((0,), live=False).blocks([text("\x1b[1mopen", (0,)), text("next\n", (0,))])
    assert out.stdout == "rank 0 │ \x1b[1mopen\x1b[0m\n       │ next\n"


def test_in_a_terminal_a_line_is_wrapped_to_the_right_of_its_label(
    shell: InteractiveShell, monkeypatch: pytest.MonkeyPatch
) -> None:
    with capture_output() as out:
        monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
        monkeypatch.setenv("COLUMNS", "40")
        Show((0, 1), live=False).blocks([text("0123456789" * 4 + "\nshort\n", (0, 1)), text("é" * 50 + "\n", (1,))])
    assert out.stdout.splitlines() == [
        "ranks 0-1 │ 0123456789012345678901234567",
        "          │ 890123456789",
        "          │ short",
        "rank 1    │ " + "é" * 50,
    ], "the terminal wraps what may be wider than it is long"


# Rich output


def test_a_plain_result_looks_like_printed_text(page: Page) -> None:
    Show(ALL, live=True).blocks([rich("result", "array(4)"), rich("result", "a\nb", (1,))])
    assert page.text() == "ranks 0-3 │ array(4)\nrank 1    │ a\n          │ b\n"


def test_rich_output_has_its_label_above(page: Page) -> None:
    show = Show(ALL, live=True)
    show.blocks([text("a\n"), rich("display", PNG), text("b\n"), rich("result", html("<b>x</b>"), (3,))])
    assert page.outputs == [
        ["stdout", "ranks 0-3 │ a\nranks 0-3 │\n"],
        [None, PNG],
        ["stdout", "ranks 0-3 │ b\nrank 3    │\n"],
        [None, html("<b>x</b>")],
    ]


def grid(page: Page) -> list[tuple[str, str]]:
    """Title and image of each figure in the one grid on the page."""
    [grid] = [shown["text/html"] for _, shown in page.outputs if isinstance(shown, dict)]
    return re.findall(r"<figcaption[^>]*>([^<]*)</figcaption><img src=\"data:image/png;base64,([^\"]*)", grid)


def png(name: str) -> dict[str, str]:
    return {"image/png": name, "text/plain": "<Figure>"}


def test_figures_of_several_ranks_stand_in_a_grid_with_titles(page: Page) -> None:
    show = Show(ALL, live=True)
    show.blocks([text("a\n"), rich("display", png("zero"), (0,))])
    assert page.outputs[-1][1] == png("zero"), "one alone is as it was"
    show.blocks([rich("display", png("some"), (1, 3))])  # it came later
    assert grid(page) == [("rank 0", "zero"), ("ranks 1, 3", "some")]
    show.blocks([rich("display", png("two"), (2,)), text("b\n")])
    assert grid(page) == [("rank 0", "zero"), ("ranks 1, 3", "some"), ("rank 2", "two")]
    assert page.text().startswith("ranks 0-3 │ a\n<"), "no empty label above"
    assert page.text().endswith("ranks 0-3 │ b\n")


def test_another_figure_of_the_same_rank_begins_another_grid(page: Page) -> None:
    show = Show(ALL, live=True)
    show.blocks([rich("display", png(f"{each}{rank}"), (rank,)) for each in "ab" for rank in (0, 1)])
    first, second = [shown["text/html"] for _, shown in page.outputs if isinstance(shown, dict)]
    assert "a0" in first and "a1" in first and "b0" in second and "b1" in second


@pytest.mark.parametrize(
    ("given", "kept"),
    [({"width": 300, "height": "50%"}, ' width="300" height="50%"'), ({"width": "300px"}, ""), (True, "")],
)
def test_a_figure_may_name_any_size(given: Any, kept: str, page: Page) -> None:
    show = Show(ALL, live=True)
    for rank in (0, 1):
        content = {"data": png(str(rank)), "metadata": {"image/png": given}}
        show.blocks([Block("display", (rank,), content)])
    [shown] = [shown["text/html"] for _, shown in page.outputs if isinstance(shown, dict)]
    assert shown.count(f'alt="&lt;Figure&gt;"{kept} style=') == 2


def test_a_rank_that_clears_its_output_leaves_the_grid(page: Page) -> None:
    show = Show(ALL, live=True)
    show.blocks([rich("display", png(str(rank)), (rank,)) for rank in ALL])
    show.blocks([Block("clear", (1,), False)])
    assert grid(page) == [("rank 0", "0"), ("rank 2", "2"), ("rank 3", "3")]


def test_widgets_of_ranks_are_shown_as_their_text(page: Page) -> None:
    view = {"application/vnd.jupyter.widget-view+json": {"model_id": "1"}}
    Show(ALL, live=True).blocks([rich("display", {**view, "text/plain": "Box()"}), rich("display", view)])
    lines = ["ranks 0-3 │ Box()", WIDGET_AS_TEXT, "(output that cannot be shown from a rank)"]
    assert page.text() == "\n          │ ".join(lines) + "\n"


def test_a_whole_block_is_updated_in_place(page: Page) -> None:
    show = Show(ALL, live=True)
    show.blocks([rich("display", html("0 %"), name="bar"), text("a\n")])
    show.blocks([rich("update", html("50 %"), name="bar")])
    assert page.text() == "ranks 0-3 │\n<50 %>\nranks 0-3 │ a\n"
    assert page.clears == 0


def test_displays_of_the_same_id_on_differing_ranks_are_updated_together(page: Page) -> None:
    show = Show(ALL, live=True)
    show.blocks([rich("display", "0", (0, 1), name="bar"), rich("display", "1", (2, 3), name="bar")])
    show.blocks([rich("update", "2", name="bar")])
    assert page.text() == "<ranks 0-1 │ 2>\n<ranks 2-3 │ 2>\n"
    assert page.clears == 0


def test_an_update_by_some_ranks_splits_the_block(page: Page) -> None:
    show = Show(ALL, live=True)
    show.blocks([text("a\n"), rich("display", html("0 %"), name="bar"), text("b\n")])
    show.blocks([rich("update", html("50 %"), (0,), name="bar"), rich("update", html("9 %"), (3,), name="bar")])
    assert page.text() == (
        "ranks 0-3 │ a\nrank 0    │\n<50 %>\nranks 1-2 │\n<0 %>\nrank 3    │\n<9 %>\nranks 0-3 │ b\n"
    )
    assert page.clears == 1
    show.blocks([rich("update", html("60 %"), (0,), name="bar"), rich("update", html("1 %"), (1, 2), name="bar")])
    assert page.clears == 1
    assert [data for _, data in page.outputs if isinstance(data, dict)] == [html("60 %"), html("1 %"), html("9 %")]


def test_an_update_that_turns_text_into_more_gets_a_label(page: Page) -> None:
    show = Show(ALL, live=True)
    show.blocks([rich("display", "wait", name="bar")])
    assert page.text() == "<ranks 0-3 │ wait>\n"
    show.blocks([rich("update", html("ready"), name="bar")])
    assert page.text() == "ranks 0-3 │\n<ready>\n"


def test_a_display_of_an_earlier_cell_is_updated_there(page: Page) -> None:
    earlier, later = Show(ALL, live=True), Show(ALL, live=True)
    earlier.blocks([rich("display", html("0 %"), name="bar")])
    earlier.close()
    later.blocks([rich("update", html("50 %"), name="bar")])
    assert page.text() == "ranks 0-3 │\n<50 %>\n"
    later.blocks([rich("update", html("60 %"), (1,), name="bar")])
    assert page.text() == "ranks 0-3 │\n<50 %>\nrank 1    │\n<60 %>\n"
    later.blocks([rich("update", html("70 %"), (1,), name="bar"), rich("update", html("80 %"), (0, 2, 3), name="bar")])
    assert page.text() == "ranks 0-3 │\n<80 %>\nrank 1    │\n<70 %>\n"


def test_an_update_of_nothing_known_is_shown_as_new(page: Page) -> None:
    show = Show(ALL, live=True)
    show.blocks([rich("update", html("50 %"), name="bar")])
    show.blocks([rich("update", html("60 %"), name="bar")])
    assert page.text() == "ranks 0-3 │\n<60 %>\n"


def test_the_registry_of_displays_is_bounded(page: Page, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("allranks.notebook.show_blocks.DISPLAYS_KEPT", 10)
    Show(ALL, live=True).blocks([rich("display", "x", name=str(i)) for i in range(20)])
    assert len(Show._displays) == 10
    assert (3, "19") in Show._displays


# Clearing


def test_clear_takes_only_the_ranks_own_output(page: Page) -> None:
    show = Show(ALL, live=True)
    show.blocks([text("a\n"), text("b\n", (2,)), rich("display", html("x"), (2, 3))])
    show.blocks([Block("clear", (2,), False)])
    assert page.text() == "0-1, 3    │ a\nrank 3    │\n<x>\n"
    show.blocks([Block("clear", (0, 1, 3), False)])
    assert page.text() == ""
    show.blocks([text("c\n")])
    assert page.text() == "ranks 0-3 │ c\n"


def test_a_waiting_clear_takes_effect_with_the_next_output(page: Page) -> None:
    show = Show(ALL, live=True)
    show.blocks([text("1\n")])
    show.blocks([Block("clear", ALL, True)])
    assert page.text() == "ranks 0-3 │ 1\n"
    show.blocks([text("2\n", (0,))])
    assert page.text() == "ranks 1-3 │ 1\nrank 0    │ 2\n"
    show.blocks([text("3\n", (1, 2, 3))])
    assert page.text() == "rank 0    │ 2\nranks 1-3 │ 3\n"


def test_many_clears_at_once_paint_once(page: Page) -> None:
    show = Show(ALL, live=True)
    show.blocks([text("0\n")])
    show.blocks([block for i in range(50) for block in (Block("clear", ALL, True), text(f"{i}\n"))])
    assert page.text() == "ranks 0-3 │ 49\n"
    assert page.clears == 1


def test_a_terminal_keeps_what_it_shows(shell: InteractiveShell) -> None:
    with capture_output() as out:
        show = Show(ALL, live=False)
        show.blocks([text("a\n"), Block("clear", ALL, False), rich("display", "0 %", name="bar"), text("b\n")])
        show.blocks([rich("update", "9 %", (1,), name="bar")])
        show.live_lines({0: "50%"})
        show.close()
    assert out.stdout == "ranks 0-3 │ a\nranks 0-3 │ b\n"
    assert [output.data for output in out.outputs] == [
        {"text/plain": "ranks 0-3 │ 0 %"},
        {"text/plain": "rank 1    │ 9 %"},
    ]


# Unfinished lines


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [100.0]
    monkeypatch.setattr(live_lines, "time", SimpleNamespace(monotonic=lambda: now[0]))
    return now


def test_unfinished_lines_are_folded_in_one_area_and_escaped(page: Page, clock: list[float]) -> None:
    show = Show(ALL, live=True)
    show.live_lines({0: "10%", 1: "10%", 2: "\r 9%\r <b>8%", 3: ""})
    ((_, data),) = page.outputs
    assert data["text/plain"] == "ranks 0-1 │ 10%\nrank 2    │  <b>8%"
    assert "ranks 0-1 │ 10%\nrank 2    │  &lt;b&gt;8%</pre>" in data["text/html"]


def test_unfinished_lines_are_redrawn_at_most_ten_times_a_second(page: Page, clock: list[float]) -> None:
    show = Show(ALL, live=True)
    drawn = []
    for step in range(100):
        clock[0] += 0.01
        show.live_lines({0: f"{step}%"})
        drawn.append(page.outputs[0][1]["text/plain"])
    assert 9 <= len(set(drawn)) <= 11
    clock[0] += 0.1
    show.blocks([])
    assert page.outputs[0][1]["text/plain"] == "rank 0    │ 99%"
    show.live_lines({})
    assert [data for _, data in page.outputs] == [{}]


def test_a_new_bar_starts_below_what_was_written_since(page: Page, clock: list[float]) -> None:
    show = Show(ALL, live=True)
    show.live_lines({0: "10%"})
    show.live_lines({})
    clock[0] += 1
    show.live_lines({0: "20%"})
    assert len(page.outputs) == 1
    show.live_lines({})
    show.blocks([text("epoch 1\n")])
    clock[0] += 1
    show.live_lines({0: "30%"})
    assert [data if isinstance(data, str) else data.get("text/plain") for _, data in page.outputs] == [
        None,
        "ranks 0-3 │ epoch 1\n",
        "rank 0    │ 30%",
    ]
    show.close()
    assert page.outputs[-1][1] == {}


def test_the_area_comes_back_after_a_clear(page: Page, clock: list[float]) -> None:
    show = Show(ALL, live=True)
    show.blocks([text("a\n")])
    show.live_lines({0: "10%"})
    clock[0] += 1
    show.blocks([Block("clear", (1,), False)])
    assert page.text().startswith("0, 2-3    │ a\n<<pre")
    show.close()
    assert page.outputs[1:] == [[page.outputs[1][0], {}]]
