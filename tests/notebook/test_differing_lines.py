"""Lines that differ from rank to rank, on a page: by rank or by line, with what differs marked."""

from __future__ import annotations

import re
from html import unescape

import pytest

from allranks.notebook import differing_lines
from allranks.notebook.differing_lines import LINES, ROWS, marked
from allranks.notebook.fold import Block
from allranks.notebook.show_blocks import AHEAD, FEW, Show
from tests.notebook.page import ALL, Page, text


def on_a_page() -> Show:
    return Show(ALL, live=True, has_widget=lambda _: False)


def steps(first: int, count: int) -> list[Block]:
    """As ranks print them that go in step."""
    return [text(f"step {step} loss 0.{rank}\n", (rank,)) for step in range(first, first + count) for rank in ALL]


def laid_out(page: Page) -> list[dict[str, str]]:
    return [shown for _, shown in page.outputs if isinstance(shown, dict) and "text/plain" in shown]


def test_a_few_lines_that_differ_are_text_and_from_then_on_ranks_stand_apart(page: Page) -> None:
    show = on_a_page()
    for step in range(50):
        show.blocks(steps(step, 1))
    streams = "".join(shown for _, shown in page.outputs if isinstance(shown, str))
    [shown] = laid_out(page)
    lines = shown["text/plain"].splitlines()
    assert streams.count("\n") + len(lines) == 50 * len(ALL)
    assert streams.count("\n") == FEW
    assert lines[:2] == ["rank 0    │ step 2 loss 0.0", "rank 1    │ step 2 loss 0.1"]
    assert shown["text/html"].count("<b>rank 3</b>") == 1, "a head above its column"
    assert page.outputs[-2][1]["text/html"].count('type="radio"') == 2, "and a choice, before it"


def test_lines_that_come_together_stand_apart_from_the_first(page: Page) -> None:
    on_a_page().blocks(steps(0, 50))
    assert len(laid_out(page)[0]["text/plain"].splitlines()) == 200
    assert all(isinstance(shown, dict) for _, shown in page.outputs)


def test_what_all_print_alike_stands_on_one_line_of_all_columns(page: Page) -> None:
    show = on_a_page()
    show.blocks(steps(0, 9))
    show.blocks([text("epoch\n"), text("odd\n", (0, 1, 3))])
    html = laid_out(page)[0]["text/html"]
    assert '<span style="grid-column:1/span 4"><b>ranks 0-3 │ </b>epoch\n</span>' in html
    assert '<span style="grid-column:1/span 2"><b>0-1, 3    │ </b>odd\n</span>' in html
    assert (
        '<span class="by-rank" style="display:none;grid-column:4/span 1"><b>0-1, 3    │ </b>odd\n</span></pre>' in html
    )


def test_without_the_stylesheet_the_lines_stand_as_in_a_terminal(page: Page) -> None:
    on_a_page().blocks([*steps(0, 9), text("<b>odd</b>\n", (0, 1, 3))])
    [shown] = laid_out(page)
    seen = re.sub(r'<span [^>]*style="display:none[^>]*>[^\n]*\n</span>', "", shown["text/html"])
    assert unescape(re.sub(r"<[^>]*>", "", seen)) == shown["text/plain"] + "\n"


def test_one_rank_that_prints_nearly_alone_needs_no_column(page: Page) -> None:
    on_a_page().blocks([text("a line\n" * 100, (0,)), text("another\n" * 5, (2,))])
    assert not laid_out(page)


def test_without_a_page_all_is_text(page: Page) -> None:
    Show(ALL, live=True).blocks([*steps(0, 50), text("long " * 100 + "\n")])
    assert all(isinstance(shown, str) for _, shown in page.outputs)


def test_a_rank_that_clears_its_output_leaves_the_columns(page: Page) -> None:
    show = on_a_page()
    show.blocks(steps(0, 50))
    show.blocks([Block("clear", (1,), False)])
    [shown] = laid_out(page)
    assert "rank 1 " not in shown["text/plain"] and "rank 2 " in shown["text/plain"]
    show.blocks([Block("clear", ALL, False)])
    assert page.text() == ""


def numbered(rank: int, numbers: range) -> Block:
    """Several lines that a rank prints at once."""
    return text("".join(f"{rank}: {n}\n" for n in numbers), (rank,))


def printed(page: Page) -> list[list[str]]:
    """The lines of each display, without labels."""
    return [[line.partition("│ ")[2] for line in display["text/plain"].splitlines()] for display in laid_out(page)]


@pytest.mark.parametrize("at_once", [5, 3 * ROWS])
def test_no_display_grows_without_end(page: Page, at_once: int) -> None:
    show = on_a_page()
    for step in range(0, 3 * ROWS, at_once):
        show.blocks(numbered(rank, range(step, step + at_once)) for rank in ALL)
    displays = printed(page)
    assert [len(lines) for lines in displays] == [ROWS * len(ALL)] * 3
    expected = [f"{rank}: {n}" for n in range(3 * ROWS) for rank in ALL]
    assert [line for lines in displays for line in lines] == expected, "those of one row stand beside each other"


def test_where_many_ranks_print_a_display_has_fewer_rows(page: Page) -> None:
    many = tuple(range(50))
    show = Show(many, live=True, has_widget=lambda _: False)
    for step in range(0, LINES // 50 + 2, 2):
        show.blocks(numbered(rank, range(step, step + 2)) for rank in many)
    assert [len(lines) for lines in printed(page)] == [LINES, 2 * len(many)]


def test_where_few_of_many_ranks_print_a_display_has_as_many_rows(page: Page) -> None:
    show = Show(range(256), live=True, has_widget=lambda _: False)
    show.blocks(numbered(rank, range(ROWS + 20)) for rank in (3, 200))
    assert [len(lines) for lines in printed(page)] == [2 * ROWS, 40]


def test_a_rank_that_runs_away_leaves_the_columns(page: Page) -> None:
    show = on_a_page()
    show.blocks(numbered(rank, range(3)) for rank in ALL)
    for step in range(3, 1500, 10):
        show.blocks([numbered(0, range(step, min(step + 10, 1500)))])
    of_0 = [line for lines in printed(page) for line in lines if line.startswith("0: ")]
    assert [len(lines) for lines in printed(page)] == [ROWS + 9, *[ROWS] * (AHEAD - 1)]
    after = "".join(shown for _, shown in page.outputs if isinstance(shown, str))
    assert [*of_0, *(line.partition("│ ")[2] for line in after.splitlines())] == [f"0: {n}" for n in range(1500)]


def test_what_follows_lines_that_did_not_fit_comes_after_them(page: Page, monkeypatch: pytest.MonkeyPatch) -> None:
    show = on_a_page()
    show.blocks(numbered(rank, range(3)) for rank in (0, 1, 2))
    monkeypatch.setattr(differing_lines, "LINES", 9)
    show.blocks([text("shared\n", (0, 3)), text("later\n", (3,))])
    assert [lines[-2:] for lines in printed(page)] == [["1: 2", "2: 2"], ["shared", "later"]]


def test_ranks_that_are_behind_fill_the_rows_that_others_have_left(page: Page) -> None:
    show = on_a_page()
    show.blocks(numbered(rank, range(ROWS + 2)) for rank in (0, 1))
    show.blocks(numbered(rank, range(ROWS + 1)) for rank in (2, 3))
    first, second = printed(page)
    assert first[:4] == ["0: 0", "1: 0", "2: 0", "3: 0"]
    assert second == [*(f"{rank}: {ROWS}" for rank in ALL), f"0: {ROWS + 1}", f"1: {ROWS + 1}"]


def test_lines_stay_in_order_where_a_display_ends(page: Page) -> None:
    show = on_a_page()
    show.blocks([numbered(0, range(ROWS - 2)), numbered(1, range(ROWS))])
    show.blocks([text("shared\n", (0, 1)), text("later\n", (0,))])
    show.blocks([text("last\n", (0,))])
    first, second = printed(page)
    assert first[-1] == f"1: {ROWS - 1}"
    assert second == ["shared", "later", "last"]


def test_only_the_words_that_differ_are_marked() -> None:
    assert marked(["step 3 loss 0.44", "step 3 loss 0.51"]) == ["step 3 loss <u>0.44</u>", "step 3 loss <u>0.51</u>"]
    assert marked(["at 0: id 0", "at 1: id 82"]) == ["at <u>0</u>: id <u>0</u>", "at <u>1</u>: id <u>82</u>"]
    assert marked(["read 3 files in 2 s", "read all <i> again in 2 s"]) == [
        "read <u>3</u> <u>files</u> in 2 s",
        "read <u>all</u> <u>&lt;</u><u>i</u><u>&gt;</u> <u>again</u> in 2 s",
    ]
    assert marked(["Traceback", "step 3"]) == ["Traceback", "step 3"], "all of it differs"


def test_a_line_that_may_wrap_has_the_page_keep_its_gutter(page: Page) -> None:
    show = on_a_page()
    show.blocks([text("short\n")])
    assert len(page.outputs) == 1
    show.blocks([text("long " * 50 + "\n"), text("long " * 60 + "\n")])
    [style] = [shown["text/html"] for _, shown in page.outputs if isinstance(shown, dict)]
    assert re.search(r"text-indent: -12ch each-line", style), "as wide as a label and its bar"
