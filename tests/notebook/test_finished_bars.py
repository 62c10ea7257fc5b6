"""Progress bars that ranks finished: one line for all ranks, which names the slowest, and is never on error red."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from allranks.messages.events import Item
from allranks.notebook import page_room
from allranks.notebook.feed_dashboards import Tee, Watch
from allranks.notebook.finished_bars import PRECISION, RankBar, bar_line, progress_of
from allranks.notebook.fold import Block, Fold
from allranks.notebook.show_blocks import Show
from tests.notebook.page import ALL, Page, text

TQDM = "steps: 100%|██████████| 30/30 [00:{:02}<00:00, {}it/s, loss=0.{}]\n"
RICH = "Working... \x1b[38;2;114;156;31m━━━━━━━━\x1b[0m \x1b[35m100%\x1b[0m \x1b[33m0:00:{:02}\x1b[0m\n"


def bar(text: str, seconds: float) -> list[Item]:
    return [("bar", "stderr", text, seconds)]


def folded(*of_ranks: Iterable[Item]) -> list[Block]:
    fold = Fold(range(len(of_ranks)))
    for rank, items in enumerate(of_ranks):
        fold.feed(rank, items, 0.0)
        fold.finish(rank)
    return fold.drain(0.0)


def shown(page: Page) -> list[str]:
    return ["".join(data.values()) if isinstance(data, dict) else data for _, data in page.outputs]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (TQDM.format(1, "29.7", 1), TQDM.format(12, "2", 35)),
        ("100%|#####| 1.05M/1.05M [00:01<00:00, 1.2MB/s]", "100%|#####| 1.05M/1.05M [00:03<00:00, 400kB/s]"),
        (RICH.format(1), RICH.format(31)),
        ("step 3/3 loss 0.31", "step 3/3 loss 1.2e-5"),
        ("[####] done in 0.31 s", "[####] done in 12.1 s"),
    ],
)
def test_bars_of_one_progress_are_equal_whatever_their_format_and_speed(one: str, other: str) -> None:
    assert progress_of(one) == progress_of(other)
    assert len(folded(bar(one, 1.0), bar(other, 2.0))) == 1


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("steps: 100%|██████████| 30/30 [00:01<00:00]", "steps:  43%|████      | 13/30 [00:01<00:02]"),
        ("train: 100%|##| 30/30", "test: 100%|##| 30/30"),
        ("read 30/30", "read 40/40"),
        ("epoch 1 is done", "epoch 2 is done"),
        ("rank 0: 100%|##| 3/3", "rank 1: 100%|##| 3/3"),
        ("loss 0.31", "loss 0.30"),
    ],
)
def test_bars_that_differ_in_more_than_speed_are_not_folded(one: str, other: str) -> None:
    assert [block.ranks for block in folded(bar(one, 1.0), bar(other, 1.0))] == [(0,), (1,)]


def test_the_line_is_the_slowest_rank_s_and_names_it() -> None:
    bars = {rank: RankBar(TQDM.format(rank, "9.1", rank), 1.0 + rank % 3, "stderr") for rank in range(4)}
    assert bar_line(bars) == TQDM.format(2, "9.1", 2).rstrip("\n") + " (slowest: rank 2)\n"
    alike = {rank: RankBar(f"3/3 in 1.{rank} s\n", 1.0 + rank * PRECISION / 4, "stderr") for rank in range(4)}
    assert bar_line(alike) == "3/3 in 1.3 s\n", "no rank is slow"


def test_ranks_in_step_whose_lines_differ_do_not_look_equal() -> None:
    bars = {rank: RankBar(f"3/3 [00:01, 9.{rank}it/s, loss=0.{rank}]\n", 1.0, "stderr") for rank in range(4)}
    assert bar_line(bars) == "3/3 [00:01, 9.0it/s, loss=0.0] (of rank 0)\n"


def test_on_a_page_the_finished_bars_of_all_ranks_are_one_line_and_not_red(page: Page) -> None:
    Show(ALL, live=True).blocks(folded(*[bar(f"read {rank}.0 MB/s 7/7\n", 1.0 + rank) for rank in ALL]))
    assert shown(page) == ["ranks 0-3 │ read 3.0 MB/s 7/7 (slowest: rank 3)"]
    assert "stderr" not in [name for name, _ in page.outputs]


def test_in_a_terminal_it_is_one_line_where_the_bar_was_written(page: Page) -> None:
    Show(ALL, live=False).blocks(folded(*[bar(f"7/7 in {rank}.0 s\n", 1.0 + rank) for rank in ALL]))
    assert page.outputs == [["stderr", "ranks 0-3 │ 7/7 in 3.0 s (slowest: rank 3)\n"]]


def test_a_rank_that_finishes_later_joins_the_line(page: Page) -> None:
    show, fold = Show(ALL, live=True), Fold(ALL)
    for rank in (0, 1, 3):
        for epoch in (1, 2):
            fold.feed(rank, [*bar("30/30 [00:01]\n", 1.0), ("text", "stdout", [f"epoch {epoch}\n"])], 0.0)
    show.blocks(fold.drain(0.0, flush=True))
    assert shown(page)[0] == "ranks 0-1, 3 │ 30/30 [00:01]".replace("ranks 0-1, 3", "0-1, 3   ")
    for epoch, seconds in ((1, 5.0), (2, 1.0)):
        fold.feed(2, [*bar(f"30/30 [00:0{seconds:.0f}]\n", seconds), ("text", "stdout", [f"epoch {epoch}\n"])], 9.0)
        show.blocks(fold.drain(9.0, flush=True))
    lines = "\n".join(shown(page)).split("\n")
    assert [line for line in lines if "30/30" in line] == [
        "ranks 0-3 │ 30/30 [00:05] (slowest: rank 2)",
        "ranks 0-3 │ 30/30 [00:01]",
    ]


def test_a_rank_that_clears_its_output_leaves_the_line(page: Page) -> None:
    show = Show((0, 1), live=True)
    show.blocks(folded(bar("3/3\n", 1.0), bar("3/3\n", 1.0)))
    show.blocks([Block("clear", (1,), False)])
    assert shown(page) == ["rank 0    │ 3/3"]
    show.blocks([Block("clear", (0,), False), *folded(bar("3/3\n", 1.0), bar("3/3\n", 1.0))])
    assert shown(page) == ["ranks 0-1 │ 3/3"]


def test_bars_take_no_more_room_than_other_lines(page: Page, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page_room, "LINES", 3)
    show = Show((0, 1), live=True)
    bars = [item for epoch in range(9) for item in bar(f"epoch {epoch} 3/3\n", 1.0)]
    show.blocks(folded(bars, bars))
    show.close()
    assert len([line for line in shown(page) if line.startswith("ranks 0-1 │ epoch")]) == 3
    assert any("6 lines of each rank" in line for line in shown(page)), shown(page)


def test_bars_that_are_cleared_give_their_room_back(page: Page, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page_room, "LINES", 3)
    show = Show((0, 1), live=True)
    for epoch in range(5):
        show.blocks([Block("clear", (0, 1), False), *folded(*[bar(f"epoch {epoch} 3/3\n", 1.0)] * 2)])
    assert shown(page) == ["ranks 0-1 │ epoch 4 3/3"]


def test_a_rank_that_clears_and_draws_its_bar_again_joins_the_line(page: Page) -> None:
    """As rich does, also once a bar is finished."""
    show = Show((0, 1), live=True)
    show.blocks(folded(bar("3/3\n", 1.0), bar("3/3\n", 1.0)))
    show.blocks([Block("clear", (0,), True), *folded(bar("3/3\n", 1.0))])
    assert shown(page) == ["ranks 0-1 │ 3/3"]


def test_a_dashboard_gets_one_line_that_is_no_error(page: Page) -> None:
    watch = Watch(lambda: None)  # type: ignore[arg-type, return-value]
    items: list[dict[str, object]] = []
    watch.put = items.append  # type: ignore[assignment, method-assign]
    tee = Tee(watch, None, 1, (0, 1), "", 1)
    tee.blocks([*folded(bar("3/3\n", 1.0), bar("3/3\n", 9.0)), text("on\n", (0, 1))])
    assert items[1] == {
        "cell": 1, "kind": "text", "ranks": [0, 1], "stream": "stdout", "text": "3/3 (slowest: rank 1)\n",
    }  # fmt: skip
