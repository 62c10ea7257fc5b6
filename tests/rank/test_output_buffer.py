"""One rank's output: in order, in bursts, bounded, and counted where it was cut. No processes, no threads of ours."""

from __future__ import annotations

import random
import threading
from typing import Any

import pytest

from allranks.rank.cell.output_buffer import LIVE_AFTER, OutputBuffer, sendable
from allranks.rank.cell.unfinished import overlaid


class Written(OutputBuffer):
    """An outlet with what it handed over so far."""

    def __init__(self, limit: int = 1000, tail: int = 100) -> None:
        self.woken = 0
        super().__init__(self.wake, limit, tail)

    def wake(self) -> None:
        self.woken += 1

    def text(self, stream: str = "stdout") -> str:
        items, _ = self.take()
        return "".join(item[2] for item in items if item[0] == "text" and item[1] == stream)

    def ended(self) -> list[tuple[Any, ...]]:
        self.end()
        return self.take()[0]


def texts(items: list[tuple[Any, ...]]) -> str:
    return "".join(item[2] for item in items if item[0] == "text")


def cuts(items: list[tuple[Any, ...]]) -> list[dict[str, int]]:
    return [item[1] for item in items if item[0] == "cut"]


def test_a_print_is_one_item_however_many_lines_it_has() -> None:
    outlet = Written()
    outlet.write("stdout", "[[1, 2],\n [3, 4]]")
    outlet.write("stdout", "\n")
    outlet.write("stderr", "careful\n")
    assert outlet.take()[0] == [("text", "stdout", "[[1, 2],\n [3, 4]]\n"), ("text", "stderr", "careful\n")]
    assert outlet.woken


def test_an_unfinished_line_waits_for_its_end() -> None:
    outlet = Written()
    outlet.write("stdout", "loading")
    assert outlet.take() == ([], None)
    outlet.write("stdout", " done\n")
    assert outlet.text() == "loading done\n"


def test_an_unfinished_line_is_shown_live_once_it_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    outlet = Written()
    outlet.write("stdout", "50%")
    clock = __import__("time").monotonic() + LIVE_AFTER
    monkeypatch.setattr("allranks.rank.cell.output_buffer.time.monotonic", lambda: clock + 0.01)
    assert outlet.take() == ([], {"stdout": "50%"})
    assert outlet.take() == ([], None)
    outlet.write("stdout", "\r100%\n")
    assert outlet.take() == ([("text", "stdout", "100%\n")], {})


def test_a_progress_bar_keeps_its_last_state_alone() -> None:
    outlet = Written(limit=200)
    for percent in range(1000):
        outlet.write("stderr", f"\r{percent / 10:5.1f}% {'#' * (percent // 20)}")
    items = outlet.ended()
    assert items == [("text", "stderr", f" 99.9% {'#' * 49}")]


def test_a_progress_bar_may_return_after_each_state() -> None:
    outlet = Written()
    for percent in (10, 20, 30):
        outlet.write("stdout", f"{percent}%")
        outlet.write("stdout", "\r")  # as print(..., end="\r") writes it
    assert outlet.ended() == [("text", "stdout", "30%")]


def test_the_agent_is_woken_once_for_all_that_it_has_not_taken() -> None:
    outlet = Written()
    for text in ("line", "\n", "line\n"):
        outlet.write("stdout", text)
    assert outlet.woken == 1
    outlet.take()
    outlet.write("stdout", "line\n")
    assert outlet.woken == 2


def test_displays_come_where_they_were_made() -> None:
    outlet = Written()
    outlet.write("stdout", "before")
    outlet.rich("display", {"data": {"text/plain": "x"}})
    outlet.write("stdout", "after\n")
    assert [item[0] for item in outlet.take()[0]] == ["text", "display", "text"]


def test_what_is_within_the_limit_is_kept_whole() -> None:
    outlet = Written(limit=1000)
    for i in range(100):
        outlet.write("stdout", f"line {i:03}\n")
    items = outlet.ended()
    assert texts(items) == "".join(f"line {i:03}\n" for i in range(100))
    assert not cuts(items)


def test_a_flood_keeps_its_start_and_its_end_and_counts_the_rest() -> None:
    outlet = Written(limit=1000, tail=100)
    for i in range(1000):
        outlet.write("stdout", f"line {i:04}\n")  # 10 bytes
    items = outlet.ended()
    kept = texts(items)
    assert kept.startswith("line 0000\n") and kept.endswith("line 0999\n")
    assert [item[0] for item in items].index("cut") == 100, "the count stands where the gap is"
    [cut] = cuts(items)
    assert cut["lines"] + kept.count("\n") == 1000 == outlet.lines
    assert cut["bytes"] + len(kept) == 10_000 == outlet.nbytes
    assert len(kept) <= 1100


@pytest.mark.parametrize("seed", range(20))
def test_whatever_is_written_is_kept_or_counted(seed: int) -> None:
    chance = random.Random(seed)
    outlet = Written(limit=chance.choice([0, 10, 500, 5000]), tail=chance.choice([1, 50, 300]))
    written = 0
    items: list[tuple[Any, ...]] = []
    for i in range(chance.randrange(1, 80)):
        text = chance.choice(["x" * chance.randrange(400), f"line {i}\n", "a\nb\n", "\n", "no end", "é" * 30 + "\n"])
        written += len(text)
        outlet.write(chance.choice(["stdout", "stderr"]), text)
        if chance.random() < 0.3:
            items += outlet.take()[0]
    items += outlet.ended()
    assert len(texts(items)) + sum(cut["bytes"] for cut in cuts(items)) == written == outlet.nbytes
    assert outlet.cut.nbytes == sum(cut["bytes"] for cut in cuts(items))


def test_a_line_longer_than_everything_is_cut_and_counted() -> None:
    outlet = Written(limit=1000, tail=100)
    outlet.write("stdout", "y" * 1_000_000)
    outlet.write("stdout", "\n")
    items = outlet.ended()
    kept = texts(items)
    assert len(kept) <= 1101
    assert cuts(items) == [{"lines": 0, "bytes": 1_000_001 - len(kept)}]


def test_what_was_cut_is_told_once() -> None:
    outlet = Written(limit=100, tail=10)
    for _ in range(100):
        outlet.write("stdout", "0123456789\n")
    assert len(cuts(outlet.ended())) == 1
    assert outlet.ended() == []
    outlet.reset(100)
    outlet.write("stdout", "fine\n")
    assert outlet.ended() == [("text", "stdout", "fine\n")]


def test_a_line_printed_after_a_flood_has_ended_is_not_lost() -> None:
    outlet = Written(limit=100, tail=20)
    for _ in range(100):
        outlet.write("stdout", "0123456789\n")
    outlet.ended()
    outlet.write("stdout", "late\n")
    assert texts(outlet.ended()) == "late\n"


def test_figures_are_bounded_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("allranks.rank.cell.output_buffer.RICH_LIMIT", 1000)
    outlet = Written()
    for _ in range(10):
        outlet.rich("display", {"data": {"text/html": "x" * 300}})
    items = outlet.ended()
    assert [item[0] for item in items].count("display") == 3
    assert cuts(items)[0]["bytes"] > 7 * 300


def test_clear_output_keeps_its_place() -> None:
    outlet = Written()
    outlet.write("stdout", "old")
    outlet.clear(True)
    outlet.write("stdout", "new\n")
    assert outlet.take()[0] == [("text", "stdout", "old"), ("clear", True), ("text", "stdout", "new\n")]


def test_many_threads_lose_nothing() -> None:
    outlet = Written(limit=10_000_000)
    start = threading.Barrier(8)

    def work(name: int) -> None:
        start.wait()
        for i in range(500):
            outlet.write("stdout", f"{name}:{i}\n")

    threads = [threading.Thread(target=work, args=(name,)) for name in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    lines = texts(outlet.ended()).split()
    assert len(lines) == 4000
    for name in range(8):
        assert [line for line in lines if line.startswith(f"{name}:")] == [f"{name}:{i}" for i in range(500)]


def test_text_that_cannot_be_encoded_is_written_as_escapes() -> None:
    assert sendable("plain") == "plain"
    assert sendable("täxt \U0001f600") == "täxt \U0001f600"
    assert sendable("bad \udcff") == "bad \\udcff"


def test_carriage_returns_are_carried_out_line_by_line() -> None:
    assert overlaid("a\r\nb") == "a\nb"
    assert overlaid("1%\r2%\r3%\nnext") == "3%\nnext"
    assert overlaid("done\r") == "done"
