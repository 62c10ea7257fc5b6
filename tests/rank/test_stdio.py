"""What a rank prints gets into the cell's output, at the cost of one call of Python for each write."""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any

import pytest

from allranks.rank.cell import output_buffer, stdio
from allranks.rank.cell.output_buffer import OutputBuffer
from allranks.rank.cell.stdio import RankStream


class Stream(RankStream):
    """One without ipykernel's threads and sockets."""

    def __init__(self, name: str) -> None:
        self.name: Any = name
        self.elsewhere_written: list[str] = []

    def _write_elsewhere(self, string: str) -> int:
        self.elsewhere_written.append(string)
        return len(string)

    def close(self) -> None: ...


@pytest.fixture
def woken() -> list[int]:
    return []


@pytest.fixture
def output(woken: list[int], monkeypatch: pytest.MonkeyPatch) -> OutputBuffer:
    one = OutputBuffer(lambda: woken.append(1))
    monkeypatch.setattr(RankStream, "output", one, raising=False)
    return one


def test_what_is_printed_is_in_order_and_wakes_the_agent_once(output: OutputBuffer, woken: list[int]) -> None:
    out, err = Stream("stdout"), Stream("stderr")
    print("line", 1, file=out)
    print("careful", file=err)
    print("line", 2, file=out)
    assert woken == [1]
    assert output.take()[0] == [
        ("text", "stdout", ["line 1\n"]),
        ("text", "stderr", ["careful\n"]),
        ("text", "stdout", ["line 2\n"]),
    ]
    assert out.write("ab") == 2 and woken == [1, 1]


def test_a_write_is_one_call(output: OutputBuffer) -> None:
    out, calls = Stream("stdout"), list[str]()
    print("first", file=out)

    def noted(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and frame.f_code.co_filename in (stdio.__file__, output_buffer.__file__):
            calls.append(frame.f_code.co_name)

    before = sys.getprofile()
    sys.setprofile(noted)
    try:
        print("line", 1, file=out)
    finally:
        sys.setprofile(before)
    assert calls == ["write"] * 4, "an argument, a space, an argument and the end of the line"


def test_a_large_write_is_settled_at_once(output: OutputBuffer) -> None:
    Stream("stdout").write("a" * 2000 + "\n")
    assert not output.written and output.lines == 1


def test_many_writes_are_settled_before_the_agent_takes_them(
    output: OutputBuffer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stdio, "WAITING", 3)
    out = Stream("stdout")
    for _ in range(4):
        out.write("a\n")
    assert not output.written and output.lines == 4


def test_what_plain_cells_print_goes_elsewhere(output: OutputBuffer, monkeypatch: pytest.MonkeyPatch) -> None:
    out = Stream("stdout")
    for elsewhere in (True, False, True):
        monkeypatch.setattr(RankStream, "elsewhere", elsewhere)
        out.write("a\n")
    assert out.elsewhere_written == ["a\n", "a\n"] and output.take()[0] == [("text", "stdout", ["a\n"])]


def test_only_text_is_written(output: OutputBuffer) -> None:
    out: Any = Stream("stdout")
    for _ in range(2):
        with pytest.raises(TypeError, match="must be str, not bytes"):
            out.write(b"a")


def test_a_forked_child_drops_what_it_prints(output: OutputBuffer) -> None:
    out = Stream("stdout")
    out.write("before\n")
    output.drop_in_child()
    out.write("in the child\n")
    assert not output.written


def test_a_write_of_the_users_own_stays_in_place(output: OutputBuffer, monkeypatch: pytest.MonkeyPatch) -> None:
    err, seen = Stream("stderr"), list[str]()
    original = err.write

    def tee(text: str) -> int:
        seen.append(text)
        return original(text)

    monkeypatch.setattr(err, "write", tee)
    for line in ("one\n", "two\n"):
        err.write(line)
    assert seen == ["one\n", "two\n"]
    assert output.take()[0] == [("text", "stderr", ["one\n", "two\n"])]
