"""One rank's output: in order, in bursts, bounded, and counted where it was cut. No processes, no threads of ours."""

from __future__ import annotations

import random
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from allranks.messages.events import Bundle, CellError, FinishedBar, OutputItem, OverwrittenLine, Raised, Text, packed
from allranks.rank.cell import output_buffer
from allranks.rank.cell.output_buffer import LIVE_AFTER, OutputBuffer, sendable
from allranks.rank.cell.unfinished_line import overlaid


class Written(OutputBuffer):
    """An output with what it handed over so far."""

    def __init__(self, limit: int = 1000, tail: int = 100) -> None:
        self.woken = 0
        super().__init__(self.wake, limit, tail)

    def wake(self) -> None:
        self.woken += 1

    def text(self, stream: str = "stdout") -> str:
        items, _ = self.take()
        return "".join(text for item in items if item[0] == "text" and item[1] == stream for text in item[2])

    def ended(self) -> list[tuple[Any, ...]]:
        self.end()
        return self.take()[0]


def texts(items: list[tuple[Any, ...]]) -> str:
    return "".join(text for item in items if item[0] == "text" for text in item[2])


def cuts(items: list[tuple[Any, ...]]) -> list[dict[str, int]]:
    return [item[1] for item in items if item[0] == "cut"]


def test_a_print_is_one_item_however_many_lines_it_has() -> None:
    output = Written()
    output.write("stdout", "[[1, 2],\n [3, 4]]")
    output.write("stdout", "\n")
    output.write("stderr", "careful\n")
    assert output.take()[0] == [("text", "stdout", ["[[1, 2],\n [3, 4]]\n"]), ("text", "stderr", ["careful\n"])]
    assert output.woken


def test_an_unfinished_line_waits_for_its_end() -> None:
    output = Written()
    output.write("stdout", "loading")
    assert output.take() == ([], None)
    output.write("stdout", " done\n")
    assert output.text() == "loading done\n"


def test_an_unfinished_line_is_shown_live_once_it_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    output = Written()
    output.write("stdout", "50%")
    clock = __import__("time").monotonic() + LIVE_AFTER
    monkeypatch.setattr("allranks.rank.cell.output_buffer.time.monotonic", lambda: clock + 0.01)
    assert output.take() == ([], {"stdout": "50%"})
    assert output.take() == ([], None)
    output.write("stdout", "\r100%\n")
    assert output.take() == ([("text", "stdout", ["100%\n"])], {})


BAR = [FinishedBar("stderr", "100%\n", 2.5)]


@pytest.mark.parametrize(
    ("writes", "sent"),
    [
        (["\r  0%", "\r 50%", "\r100%", "\n"], BAR),
        (["0%\r50%\r", "100%\r\n"], BAR),
        (["\r0%\r50%\r100%\n"], BAR),
        (["\r\x1b[2K50%", "\r100%\n\x1b[?25h"], BAR),
        (["0%", "\r100%\n"], BAR),
        (["\r100%\n"], [Text("stderr", ["100%\n"])]),
        (["100%\r\n"], [Text("stderr", ["100%\n"])]),
        (["50%", "\r   ", "\r", "a message\n"], [Text("stderr", ["a message\n"])]),
        (["before\n", "0%", "\r100%\n", "after\n"], [Text("stderr", ["before\n"]), *BAR, Text("stderr", ["after\n"])]),
        (["0%\r100%\nand more\n"], [Text("stderr", ["100%\nand more\n"])]),
    ],
)
def test_a_line_that_was_written_over_itself_is_a_bar(
    writes: list[str], sent: list[OutputItem], monkeypatch: pytest.MonkeyPatch
) -> None:
    output, now = Written(), [100.0]
    monkeypatch.setattr("allranks.rank.cell.output_buffer.time.monotonic", lambda: now[0])
    for text in writes[:-1]:
        output.write("stderr", text)
    now[0] += 2.5
    output.write("stderr", writes[-1])
    found = packed(output.ended())
    assert [each for each in found if not isinstance(each, FinishedBar)] == [
        each for each in sent if not isinstance(each, FinishedBar)
    ]
    bars = [each for each in found if isinstance(each, FinishedBar)]
    assert [each.text.removeprefix("\x1b[2K") for each in bars] == ["100%\n"] * (len(BAR) if BAR[0] in sent else 0)
    assert {each.seconds for each in bars} <= ({2.5} if len(writes) > 1 else {0.0})


def test_a_bar_goes_on_below_a_display_and_other_text_comes_before_it() -> None:
    output = Written()
    output.write("stdout", "1/3")
    output.write("stdout", "\r2/3")
    output.rich("display", {"data": {}})
    output.write("stdout", "\r3/3\n")
    output.write("stdout", "loading ")
    output.rich("display", {"data": {}})
    display, bar, text, _ = packed(output.ended())
    assert isinstance(display, Bundle)
    assert isinstance(bar, FinishedBar) and bar.text == "3/3\n"
    assert text == Text("stdout", ["loading "])


def test_text_before_a_bar_that_is_drawn_as_a_display_comes_before_it() -> None:
    output, line = Written(), OverwrittenLine("100%\n")
    line.seconds = 1.0
    output.write("stdout", "loading ")
    output.bar(line)
    output.write("stdout", "done")
    text, bar, rest = packed(output.ended())
    assert text == Text("stdout", ["loading "]) and isinstance(bar, FinishedBar) and rest == Text("stdout", ["done"])


def test_the_error_of_a_cell_comes_after_a_bar_that_is_not_finished() -> None:
    output = Written()
    output.write("stdout", "1/3")
    output.write("stdout", "\r2/3")
    output.error(CellError("ValueError", "no", []))
    bar, error = packed(output.ended())
    assert isinstance(bar, FinishedBar) and bar.text == "2/3"
    assert isinstance(error, Raised)


def test_a_progress_bar_keeps_its_last_state_alone() -> None:
    output = Written(limit=200)
    for percent in range(1000):
        output.write("stderr", f"\r{percent / 10:5.1f}% {'#' * (percent // 20)}")
    items = output.ended()
    assert items == [("text", "stderr", [f" 99.9% {'#' * 49}"])]


def test_a_progress_bar_may_return_after_each_state() -> None:
    output = Written()
    for percent in (10, 20, 30):
        output.write("stdout", f"{percent}%")
        output.write("stdout", "\r")  # as print(..., end="\r") writes it
    assert output.ended() == [("text", "stdout", ["30%"])]


def test_the_agent_is_woken_once_for_all_that_it_has_not_taken() -> None:
    output = Written()
    for text in ("line", "\n", "line\n"):
        output.write("stdout", text)
    assert output.woken == 1
    output.take()
    output.write("stdout", "line\n")
    assert output.woken == 2


def test_displays_come_where_they_were_made() -> None:
    output = Written()
    output.write("stdout", "before")
    output.rich("display", {"data": {"text/plain": "x"}})
    output.write("stdout", "after\n")
    assert [item[0] for item in output.take()[0]] == ["text", "display", "text"]


def test_what_is_within_the_limit_is_kept_whole() -> None:
    output = Written(limit=1000)
    for i in range(100):
        output.write("stdout", f"line {i:03}\n")
    items = output.ended()
    assert texts(items) == "".join(f"line {i:03}\n" for i in range(100))
    assert not cuts(items)


def test_a_flood_keeps_its_start_and_its_end_and_counts_the_rest() -> None:
    output = Written(limit=1000, tail=100)
    for i in range(1000):
        output.write("stdout", f"line {i:04}\n")  # 10 bytes
    items = output.ended()
    kept = texts(items)
    assert kept.startswith("line 0000\n") and kept.endswith("line 0999\n")
    assert [item[0] for item in items] == ["text", "cut", "text"]
    assert len(items[0][2]) == 100, "the count stands where the gap is"
    [cut] = cuts(items)
    assert cut["lines"] + kept.count("\n") == 1000 == output.lines
    assert cut["bytes"] + len(kept) == 10_000 == output.nbytes
    assert len(kept) <= 1100


def test_bytes_are_counted_and_no_character_is_cut_in_two() -> None:
    output = Written(limit=100, tail=100)
    for _ in range(100):
        output.write("stdout", "grüße 世界\n")  # 9 characters, 15 bytes
    output.write("stdout", "世" * 100 + "\n")
    items = output.ended()
    kept = texts(items)
    [cut] = cuts(items)
    assert output.nbytes == 100 * 15 + 301
    assert cut["bytes"] + len(kept.encode()) == output.nbytes and len(kept.encode()) <= 200
    assert set(kept) == set("grüße 世界\n")


@pytest.mark.parametrize("seed", range(20))
def test_whatever_is_written_is_kept_or_counted(seed: int) -> None:
    chance = random.Random(seed)
    output = Written(limit=chance.choice([0, 10, 500, 5000]), tail=chance.choice([1, 50, 300]))
    written = 0
    items: list[tuple[Any, ...]] = []
    for i in range(chance.randrange(1, 80)):
        text = chance.choice(["x" * chance.randrange(400), f"line {i}\n", "a\nb\n", "\n", "no end", "é" * 30 + "\n"])
        written += len(text.encode())
        output.write(chance.choice(["stdout", "stderr"]), text)
        if chance.random() < 0.3:
            items += output.take()[0]
    items += output.ended()
    assert len(texts(items).encode()) + sum(cut["bytes"] for cut in cuts(items)) == written == output.nbytes
    assert output.cut.nbytes == sum(cut["bytes"] for cut in cuts(items))


@pytest.mark.parametrize("waiting", [0, 3, 10_000])
@given(
    st.lists(
        st.tuples(st.sampled_from(["stdout", "stderr"]), st.text("ab \r\n", max_size=5))
        | st.sampled_from(["take", "clear", "end"]),
        max_size=40,
    )
)
def test_when_writes_are_put_in_order_changes_nothing(waiting: int, written: list[Any]) -> None:
    """One at a time, as many as may wait, or all that came since the agent took some."""
    one_by_one, output = Written(limit=60, tail=20), Written(limit=60, tail=20)
    said: list[list[tuple[Any, ...]]] = [[], []]
    for each in written:
        for buffer, items, most in ((one_by_one, said[0], 0), (output, said[1], waiting)):
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr("allranks.rank.cell.output_buffer.WAITING", most)
                if each == "take":
                    items += buffer.take()[0]
                elif each == "clear":
                    buffer.clear(False)
                elif each == "end":
                    buffer.end()
                else:
                    buffer.write(*each)
    for buffer, items in ((one_by_one, said[0]), (output, said[1])):
        items += buffer.ended()
    assert flat(said[1]) == flat(said[0])
    assert (output.lines, output.nbytes, output.cut) == (one_by_one.lines, one_by_one.nbytes, one_by_one.cut)


PRINTS = ["line 0\n", "line 1\n", "careful\n", "begun and ended\n", "line 2\n", "last\n"]


def test_ctrl_c_costs_at_most_one_print_wherever_it_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    """The user's thread joins what was written where that has become much."""
    for lines in range(1, 1000):
        output = Written(limit=10_000)
        for text in PRINTS[:2]:
            output.write("stdout", text)
        output.write("stderr", PRINTS[2])
        for text in ("begun ", "and ended\n", *PRINTS[4:5]):
            output.write("stdout", text)
        with monkeypatch.context() as patch, suppress(KeyboardInterrupt):
            patch.setattr("allranks.rank.cell.output_buffer.WAITING", 0)
            with interrupted_after(lines):
                output.write("stdout", PRINTS[5])
            break
        left = "".join(text for item in output.ended() for text in item[2])
        whole = [text for text in PRINTS if text in left]
        assert len(whole) >= len(PRINTS) - 1 and left.count("\n") <= len(PRINTS), (lines, left)
        places = [left.index(text) for text in whole if text != PRINTS[2]]  # which is on a stream of its own
        assert places == sorted(places), (lines, left)
    assert lines > 50


@contextmanager
def interrupted_after(lines: int) -> Iterator[None]:
    """Raises KeyboardInterrupt before the line of that number that runs in the module.

    Not at the ``with`` of a lock, which CPython leaves without looking for signals between.
    """
    left = lines

    def trace(frame: FrameType, event: str, _: object) -> Any:
        nonlocal left
        code = frame.f_code
        ours = code.co_filename == output_buffer.__file__ and code.co_name not in ("write", "settle")
        left -= event == "line" and ours
        if not left:
            raise KeyboardInterrupt
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        yield
    finally:
        sys.settrace(before)


def flat(items: list[tuple[Any, ...]]) -> list[Any]:
    """One after the other, with the prints of one stream joined."""
    joined: list[Any] = []
    for item in items:
        if item[0] == "text" and joined and joined[-1][:2] == item[:2]:
            joined[-1] = (*item[:2], joined[-1][2] + "".join(item[2]))
        else:
            joined.append((*item[:2], "".join(item[2])) if item[0] == "text" else item)
    return joined


def test_a_line_longer_than_everything_is_cut_and_counted() -> None:
    output = Written(limit=1000, tail=100)
    output.write("stdout", "y" * 1_000_000)
    output.write("stdout", "\n")
    items = output.ended()
    kept = texts(items)
    assert len(kept) <= 1101
    assert cuts(items) == [{"lines": 0, "bytes": 1_000_001 - len(kept)}]


def test_what_was_cut_is_told_once() -> None:
    output = Written(limit=100, tail=10)
    for _ in range(100):
        output.write("stdout", "0123456789\n")
    assert len(cuts(output.ended())) == 1
    assert output.ended() == []
    output.reset(100)
    output.write("stdout", "fine\n")
    assert output.ended() == [("text", "stdout", ["fine\n"])]


def test_a_line_printed_after_a_flood_has_ended_is_not_lost() -> None:
    output = Written(limit=100, tail=20)
    for _ in range(100):
        output.write("stdout", "0123456789\n")
    output.ended()
    output.write("stdout", "late\n")
    assert texts(output.ended()) == "late\n"


def test_figures_are_bounded_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("allranks.rank.cell.output_buffer.RICH_LIMIT", 1000)
    output = Written()
    for _ in range(10):
        output.rich("display", {"data": {"text/html": "x" * 300}})
    items = output.ended()
    assert [item[0] for item in items].count("display") == 3
    assert cuts(items)[0]["bytes"] > 7 * 300


def test_clear_output_keeps_its_place() -> None:
    output = Written()
    output.write("stdout", "old")
    output.clear(True)
    output.write("stdout", "new\n")
    assert output.take()[0] == [("text", "stdout", ["old"]), ("clear", True), ("text", "stdout", ["new\n"])]


def test_many_threads_lose_nothing() -> None:
    output = Written(limit=10_000_000)
    start = threading.Barrier(8)

    def work(name: int) -> None:
        start.wait()
        for i in range(500):
            output.write("stdout", f"{name}:{i}\n")

    threads = [threading.Thread(target=work, args=(name,)) for name in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    lines = texts(output.ended()).split()
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
