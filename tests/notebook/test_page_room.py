"""What goes on a page of a cell that prints more than a page bears, and what is said of the rest."""

from __future__ import annotations

from typing import Any

import pytest
from IPython.core.interactiveshell import InteractiveShell

from allranks import Cluster
from allranks.cluster.debugger_prompt import Conversation
from allranks.head.state.monitor import Monitor
from allranks.messages.events import AtDebugger
from allranks.notebook import page_room
from allranks.notebook.fold import Block
from allranks.notebook.live_lines import LiveArea
from allranks.notebook.show_blocks import Show
from tests.notebook.page import ALL, PNG, Page, rich, text

LINES = 20


@pytest.fixture(autouse=True)
def little_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page_room, "LINES", LINES)
    monkeypatch.setattr(page_room, "NBYTES", 2000)


def numbered(first: int, count: int) -> str:
    return "".join(f"line {number}\n" for number in range(first, first + count))


def lines_of(page: Page) -> list[str]:
    return "".join(shown for _, shown in page.outputs if isinstance(shown, str)).splitlines()


def live_of(page: Page) -> list[str]:
    shown = [data for _, data in page.outputs if isinstance(data, dict)]
    return str(shown[-1].get("text/plain", "")).splitlines() if shown else []


@pytest.mark.parametrize("at_once", [1, 3, 100])
def test_the_rest_is_counted_and_its_last_lines_are_seen(page: Page, at_once: int) -> None:
    show = Show(ALL, live=True)
    for first in range(0, 100, at_once):
        show.blocks([text(numbered(first, min(at_once, 100 - first)))])
    show.live_lines({})
    assert lines_of(page) == [f"{'ranks 0-3' if not n else ' ' * 9} │ line {n}" for n in range(LINES)]
    said = live_of(page)
    assert said[0] == "ranks 0-3 │ … 80 lines of each rank (640 B) are not shown so far. The last:"
    assert said[1:] == [f"ranks 0-3 │ line {number}" for number in range(90, 100)]
    show.close()
    assert live_of(page) == []
    after = lines_of(page)[LINES:]
    assert after[0].startswith(
        "          │ … 80 lines of each rank (640 B) are not shown: %distributed output shows them"
    )
    assert [line.split("│ ")[1] for line in after[1:]] == [f"line {number}" for number in range(90, 100)]


def test_nothing_is_said_where_there_is_room(page: Page) -> None:
    show = Show(ALL, live=True)
    show.blocks([text(numbered(0, LINES))])
    show.close()
    assert len(lines_of(page)) == LINES


def test_an_error_stays_the_last_that_is_seen(page: Page) -> None:
    show = Show(ALL, live=True)
    error: dict[str, Any] = {"traceback": ["ValueError: bad batch"], "ename": "ValueError", "evalue": "bad batch"}
    show.blocks([text(numbered(0, 100)), Block("error", (1,), error)])
    show.close()
    lines = lines_of(page)
    assert lines[-1] == "rank 1    │ ValueError: bad batch"
    assert sum("are not shown" in line for line in lines) == 1


def test_a_line_without_end_is_left_out(page: Page) -> None:
    show = Show(ALL, live=True)
    show.blocks([text("short\n"), text("x" * 100_000 + "\n", (2,))])
    show.close()
    lines = lines_of(page)
    assert lines[0] == "ranks 0-3 │ short" and max(map(len, lines)) < 600
    assert lines[1].startswith("rank 2    │ … 1 line (100.0 kB) is not shown")


def test_a_long_text_without_end_counts_as_a_line_of_each_rank(page: Page) -> None:
    show = Show(ALL, live=True)
    show.blocks([text("short\n"), text("x" * 100_000)])
    show.close()
    assert "… 1 line of each rank (100.0 kB) is not shown" in lines_of(page)[1]


def test_what_was_cut_on_the_rank_is_counted_too(page: Page) -> None:
    show = Show(ALL, live=True)
    show.blocks([text(numbered(0, LINES + 1)), Block("cut", (0,), {"lines": 1000, "bytes": 50_000})])
    show.close()
    assert "… 1 to 1,001 lines of each rank (up to 50.0 kB)" in lines_of(page)[LINES]


def test_no_last_lines_are_announced_where_all_was_cut_on_the_rank(page: Page) -> None:
    error: dict[str, Any] = {"traceback": ["ValueError: bad batch"], "ename": "ValueError", "evalue": "bad batch"}
    show = Show(ALL, live=True)
    show.blocks([text(numbered(0, 100)), Block("error", (1,), error), Block("cut", (0,), {"lines": 9, "bytes": 90})])
    show.close()
    assert lines_of(page)[-1].endswith("--save FILE writes them to a file.")


def test_what_ranks_cut_alike_counts_for_each(page: Page) -> None:
    show = Show(ALL, live=True)
    for rank in ALL:
        show.blocks([text(numbered(0, LINES), (rank,))])
    show.blocks([Block("cut", ALL, {"lines": 1000, "bytes": 50_000})])
    show.close()
    assert "1,020 lines of each rank" in "".join(lines_of(page))


def test_a_cell_that_clears_its_output_again_and_again_always_has_room(page: Page) -> None:
    show = Show(ALL, live=True)
    for step in range(30):
        show.blocks([Block("clear", ALL, True), text(numbered(step, 5))])
    show.close()
    assert [line.split("│ ")[1] for line in lines_of(page)] == [f"line {number}" for number in range(29, 34)]


def test_notes_and_figures_are_shown_all_the_same(page: Page) -> None:
    show = Show(ALL, live=True)
    show.blocks([text(numbered(0, 100)), text("ranks 0-3 wait.\n", stream="note"), rich("display", PNG)])
    show.close()
    assert any("wait" in line for line in lines_of(page)) and any(data == PNG for _, data in page.outputs)


def test_a_terminal_gets_all_of_it(shell: InteractiveShell, capsys: pytest.CaptureFixture[str]) -> None:
    show = Show(ALL, live=False)
    show.blocks([text(numbered(0, 100))])
    show.close()
    assert len(capsys.readouterr().out.splitlines()) == 100


def test_the_last_lines_of_every_rank_are_seen(page: Page) -> None:
    show = Show(ALL, live=True)
    show.blocks([text(numbered(0, LINES + 50)), text(numbered(500, 30), (0, 1)), text(numbered(900, 30), (2,))])
    show.close()
    after = [tuple(map(str.strip, line.split("│"))) for line in lines_of(page)[LINES + 1 :]]
    assert after == [
        *(("", f"line {n}") for n in (68, 69)),
        *(("ranks 0-1" if n == 528 else "", f"line {n}") for n in (528, 529)),
        *(("rank 2" if n == 928 else "", f"line {n}") for n in (928, 929)),
    ]


def test_a_rank_that_clears_gives_back_the_room_that_it_took_and_no_more(page: Page) -> None:
    show = Show(ALL, live=True)
    show.blocks([text("stays\n", (0,))])
    for _ in range(4):
        show.blocks([Block("clear", (1,), True), text(numbered(0, 10 * LINES), (1,))])
    assert len(lines_of(page)) == LINES
    show.close()
    assert lines_of(page)[LINES].startswith(f"          │ … {9 * LINES + 1} lines")


def test_lines_left_out_stay_counted_only_for_those_that_do_not_clear(page: Page) -> None:
    show = Show(ALL, live=True)
    show.blocks([text(numbered(0, LINES), (0,)), text(numbered(100, 50), (1, 2)), text(numbered(500, 50), (0,))])
    show.blocks([Block("clear", (0, 2), False)])
    show.live_lines({})
    assert live_of(page)[1:] == [f"rank 1    │ line {number}" for number in range(140, 150)]
    show.close()
    head, *last = lines_of(page)
    assert head.startswith("rank 1    │ … 50 lines (450 B) are not shown: ")
    assert [line.split("│ ")[1] for line in last] == [f"line {number}" for number in range(140, 150)]


def test_the_rest_of_the_last_rank_is_counted_when_all_that_is_on_the_page_is_cleared(page: Page) -> None:
    show = Show(ALL, live=True)
    show.blocks([text(numbered(0, LINES), (0,)), text(numbered(100, 50), (1,)), Block("clear", (0,), False)])
    show.close()
    assert lines_of(page)[0].startswith("rank 1    │ … 50 lines")


def test_there_is_room_again_once_a_line_without_end_is_cleared(page: Page) -> None:
    show = Show(ALL, live=True)
    show.blocks([text("x" * 100_000 + "\n", (1,)), Block("clear", (1,), False), text("short\n", (1,))])
    show.close()
    assert lines_of(page) == ["rank 1    │ short"]


def test_what_allranks_says_is_shown_whole_on_a_full_page(page: Page) -> None:
    debugger = Conversation(Monitor("test"), None, None)  # type: ignore[arg-type]
    debugger.receive(1, AtDebugger(None, open=False, stepping=False, text=numbered(5000, 2 * LINES)))
    show = Show(ALL, live=True)
    show.blocks([text(numbered(0, 100)), *debugger.said()])
    show.close()
    assert sum("line 50" in line for line in lines_of(page)) == 2 * LINES


def test_a_warning_after_a_flood_stays_a_warning(page: Page, ring2: Cluster) -> None:
    code = "for i in range(100): print('line', i)\nmx.eval(mx.distributed.all_sum(mx.ones(10 if rank else 12)))"
    ring2.run(code, screen=Show([0, 1], live=True))
    assert [stream for stream, shown in page.outputs if "in this cell, is invalid." in shown] == ["stderr"]


def test_the_summary_is_made_as_often_as_it_is_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("allranks.notebook.live_lines.display", lambda *_args, **_options: None)
    monkeypatch.setattr("allranks.notebook.live_lines.PERIOD", 60.0)
    made, area = list[int](), LiveArea(lambda _ranks: ("", ""))

    def summary() -> list[Block]:
        made.append(1)
        return [Block("text", (0,), "left out\n")]

    for _ in range(100):
        area.want({}, summary)
    assert made == [1]
