"""Output without line ends: the work grows with what is written, memory has a bound, and the text is right."""

from __future__ import annotations

import io
import tracemalloc
from collections.abc import Callable
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from allranks import Cluster
from allranks.messages.events import Cut, Done, Output, Text
from allranks.rank.cell import unfinished_line
from allranks.rank.cell.kept_events import KeptEvents
from allranks.rank.cell.output_buffer import LIMIT, TAIL, OutputBuffer
from allranks.rank.cell.unfinished_line import Unfinished, overlaid
from tests.growth import growth
from tests.jupyter import Notebook
from tests.waiting import eventually

Write = Callable[[str], None]


def numbers(write: Write, count: int) -> None:
    """As ``print(i, end=" ")`` writes them."""
    for i in range(count):
        write(str(i))
        write(" ")


def characters(write: Write, count: int) -> None:
    for _ in range(count):
        write("x")


def bar(write: Write, count: int) -> None:
    for i in range(count):
        write(f"\r{i}/{count} ####")


def bar_below_a_heading(write: Write, count: int) -> None:
    write("epoch 1\n0%")
    bar(write, count)


def bar_over_a_long_line(write: Write, count: int) -> None:
    write("x" * count)
    for _ in range(count):
        write("\r")


def blank_lines_after_text(write: Write, count: int) -> None:
    for _ in range(count):
        write("a\n ")


class Counting(io.StringIO):
    """Counts the characters that are moved in and out."""

    moved = 0

    def __init__(self, text: str = "") -> None:
        super().__init__(text)
        Counting.moved += len(text)

    def write(self, text: str) -> int:
        Counting.moved += len(text)
        return super().write(text)

    def getvalue(self) -> str:
        text = super().getvalue()
        Counting.moved += len(text)
        return text


@pytest.mark.parametrize(
    "work", [numbers, characters, bar, bar_below_a_heading, bar_over_a_long_line, blank_lines_after_text]
)
def test_nothing_is_moved_again_when_more_is_written(
    work: Callable[[Write, int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unfinished_line, "io", SimpleNamespace(StringIO=Counting))
    monkeypatch.setattr(Counting, "moved", 0)
    output, written = OutputBuffer(lambda: None), 0

    def write(text: str) -> None:
        nonlocal written
        written += len(text)
        output.write("stdout", text)

    work(write, 20_000)
    output.end()
    assert Counting.moved <= 6 * written, (
        "in, out, and a line among others once more; by the square it would be thousands"
    )


def test_the_time_grows_with_what_is_written() -> None:
    def written(count: int) -> None:
        output = OutputBuffer(lambda: None)
        numbers(lambda text: output.write("stdout", text), count)
        output.end()

    assert growth(written, 10_000) < 12, "it was 24 when each piece moved all of the line"


def test_an_endless_line_keeps_its_start_and_its_end_and_counts_the_rest() -> None:
    output = OutputBuffer(lambda: None, limit=10_000, tail=1000)
    numbers(lambda text: output.write("stdout", text), 100_000)
    output.end()
    items, _ = output.take()
    whole = "".join(f"{i} " for i in range(100_000))
    assert [item[0] for item in items] == ["text", "cut", "text"], "the pieces of its end are one again"
    [start], cut, [end] = items[0][2], items[1][1], items[2][2]
    assert whole.startswith(start) and len(start) == 10_000
    assert whole.endswith(end) and 1000 >= len(end) > 800
    assert cut == {"lines": 0, "bytes": len(whole) - len(start) - len(end)}
    assert output.nbytes == len(whole)


def test_what_is_held_of_an_endless_line_has_a_bound() -> None:
    output = OutputBuffer(lambda: None)
    tracemalloc.start()
    try:
        characters(lambda text: output.write("stdout", text * 1000), 50_000)
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held < 4 * (LIMIT + 2 * TAIL), "of 50 million characters; a StringIO may take four bytes for one"


@given(st.lists(st.text("ab\r\n", max_size=6), max_size=12))
def test_however_it_is_cut_in_pieces_it_reads_the_same(pieces: list[str]) -> None:
    held = Unfinished()
    for piece in pieces:
        held.add(piece)
    assert held.take() == overlaid("".join(pieces))
    assert held.size == 0 and not held.has_lines


@given(st.lists(st.text("ab \r\n", max_size=6), max_size=12), st.integers(0, 8))
def test_its_end_is_that_of_the_whole(pieces: list[str], size: int) -> None:
    held, same = Unfinished(), Unfinished()
    for piece in pieces:
        held.add(piece)
        held.last(size)
        same.add(piece)
    end = held.last(size)
    whole = same.take()
    assert end == whole[len(whole) - min(size, len(whole)) :]
    assert held.take() == whole


def test_only_the_last_state_of_a_bar_is_kept_for_a_reconnect() -> None:
    sent: list[Output | Done] = []

    class Line:
        def send(self, event: Output | Done, _buffers: object = ()) -> None:
            sent.append(event)

    kept = KeptEvents(Line())  # type: ignore[arg-type]
    text = (Text("stdout", ["line\n"]),)
    for percent in range(100):
        kept.send(Output(1, (), {"stderr": f"{percent}%"}))
    kept.send(Output(1, text, None))
    kept.send(Output(1, (), {"stderr": "100%"}))
    kept.send(Done(1, True, None, 1, 5, Cut(0, 0), 0, (0, 0)))
    assert [event.seq for event in sent] == list(range(1, 104))
    sent.clear()
    kept.resend()
    assert [event.seq for event in sent] == [100, 101, 103]


def test_ranks_print_long_lines_in_pieces(ring2: Cluster) -> None:
    result = ring2.run("for i in range(60_000): print(i, end=' ')\nprint()", timeout=300).check()
    assert [result[rank].stdout for rank in (0, 1)] == ["".join(f"{i} " for i in range(60_000)) + "\n"] * 2
    result = ring2.run("import sys\nfor i in range(60_000): sys.stdout.write('x')", timeout=300).check()
    assert [result[rank].stdout for rank in (0, 1)] == ["x" * 60_000] * 2
    result = ring2.run("for i in range(20_000): print(f'\\r{i}', end='')", timeout=300).check()
    assert [result[rank].stdout for rank in (0, 1)] == ["19999"] * 2


def test_an_endless_line_is_shown_in_a_notebook_and_the_cut_is_told(notebook: Notebook) -> None:
    cell = notebook.ok("%%distributed -r 0 --max-output 0.1\nfor i in range(100_000): print(i, end=' ')", within=300)
    assert "0 1 2 3 4 5 " in cell.stdout and "99998 99999 " in cell.stdout
    assert "kB of text or figures not shown here: %distributed output has the text" in cell.stdout


def test_a_rank_keeps_no_second_copy_of_what_it_put_out(ring2: Cluster) -> None:
    """IPython has one from version 9 on, for ``%notebook``."""
    kept = "sum(map(len, getattr(get_ipython().history_manager, 'outputs', {}).values()))"
    printed = ring2.run(f"for i in range(100): print(i)\n{kept}").check()
    assert [each.value for each in printed.values()] == [0, 0], "while the cell runs"
    ring2.run("from IPython.display import display\ndisplay(1)\n2").check()
    assert [each.value for each in ring2.run(kept).check().values()] == [0, 0]


LATER = """
import threading, time
ready = done = False
def say():
    global done
    while not ready:
        time.sleep(0.01)
    print("after the cell")
    done = True
threading.Thread(target=say).start()
print("in the cell")
"""


def test_what_a_thread_prints_after_its_cell_is_in_the_text_of_the_cell(ring2: Cluster) -> None:
    ring2.run(LATER).check()
    ring2.push({"ready": True})
    assert eventually(lambda: ring2.pull("done") == [True, True])
    assert [list(ring2.printed().lines(rank)) for rank in (0, 1)] == [["in the cell\n", "after the cell\n"]] * 2
