"""Folding: equal output once, differing output in rank order, nothing lost, nothing twice, and fast."""

from __future__ import annotations

import random
from itertools import groupby
from typing import Any

import pytest

from allranks.notebook.fold import GRACE, PATIENCE, Block, Fold
from allranks.notebook.rank_queue import LOOK
from tests.growth import growth


def text(*lines: str, stream: str = "stdout") -> list[tuple[Any, ...]]:
    return [("text", stream, [line + "\n" for line in lines])]


def bundle(plain: str, display_id: str | None = None) -> dict[str, Any]:
    return {"data": {"text/plain": plain}, "metadata": {}, "display_id": display_id}


def folded(*per_rank: list[Any], finish: bool = True) -> list[Block]:
    fold = Fold(range(len(per_rank)))
    for rank, items in enumerate(per_rank):
        fold.feed(rank, items, now=0.0)
        if finish:
            fold.finish(rank)
    return fold.drain(0.0)


def said(blocks: list[Block]) -> list[tuple[tuple[int, ...], str]]:
    return [(block.ranks, block.content.replace("\n", " ").strip()) for block in blocks]


def test_equal_output_becomes_one_block_of_all_ranks() -> None:
    assert said(folded(*[text("a", "b", "c")] * 4)) == [((0, 1, 2, 3), "a b c")]


@pytest.mark.parametrize("differs", [0, 1, 4, 5, 6, 20, 21, 30, 99])
def test_equal_lines_are_one_block_up_to_the_line_that_differs(differs: int) -> None:
    lines = [f"line {at}" for at in range(100)]
    other = [*lines[:differs], "other", *lines[differs + 1 :]]
    blocks = folded(text(*lines), text(*other), text(*lines))
    assert [(block.ranks, block.content.splitlines()) for block in blocks] == [
        (ranks, said)
        for ranks, said in [
            ((0, 1, 2), lines[:differs]),
            ((0, 2), [lines[differs]]),
            ((1,), ["other"]),
            ((0, 1, 2), lines[differs + 1 :]),
        ]
        if said
    ]


def test_what_a_rank_printed_before_the_cell_comes_first_and_in_one_piece() -> None:
    fold = Fold(range(2))
    fold.feed(1, text("next"), now=0.0)
    fold.feed_before(0, text("printed before:", "called"), now=0.0)
    assert said(fold.drain(0.0)) == [((0,), "printed before: called")]
    fold.feed(0, text("next"), now=0.1)
    assert said(fold.drain(0.1)) == [((0, 1), "next")]


def test_what_ranks_printed_alike_before_the_cell_is_one_block() -> None:
    fold = Fold(range(3))
    fold.feed_before(0, text("tick"), now=0.0)
    fold.feed(0, text("next"), now=0.0)
    assert not fold.drain(0.0) and fold.next_deadline() == GRACE
    fold.feed_before(2, text("tick"), now=0.1)
    assert not fold.drain(0.1), "rank 1 may have printed as much"
    fold.finish(1)
    assert said(fold.drain(0.1)) == [((0, 2), "tick")]
    fold.finish(2)
    assert said(fold.drain(0.1)) == [((0,), "next")]


def test_output_waits_no_longer_than_usual_for_what_others_printed_before_the_cell() -> None:
    fold = Fold(range(2))
    fold.feed_before(0, text("tick"), now=0.0)
    fold.feed(0, text("next"), now=0.0)
    assert said(fold.drain(GRACE)) == [((0,), "tick"), ((0,), "next")]
    assert fold.next_deadline() is None


def test_differing_items_come_in_rank_order_item_by_item() -> None:
    assert said(folded(text("a0", "b0"), text("a1", "b1"))) == [
        ((0,), "a0"),
        ((1,), "a1"),
        ((0,), "b0"),
        ((1,), "b1"),
    ]


def test_many_that_all_differ_stand_together_by_rank_and_no_rank_has_the_page_for_itself() -> None:
    lines = [text(*(f"line {line} of {rank}" for line in range(120))) for rank in range(8)]
    blocks = folded(*lines)
    assert [block.ranks for block in blocks] == [(rank,) for _ in range(2) for rank in range(8)]
    assert [block.content.count("\n") for block in blocks] == [LOOK] * 8 + [120 - LOOK] * 8


def test_what_ranks_say_alike_among_many_that_differ_stays_between_them() -> None:
    lines = [text(*("middle" if line == 30 else f"line {line} of {rank}" for line in range(40))) for rank in range(2)]
    assert [(block.ranks, block.content.count("\n")) for block in folded(*lines)] == [
        ((0,), 30),
        ((1,), 30),
        ((0, 1), 1),
        ((0,), 9),
        ((1,), 9),
    ]


def test_equal_ones_among_differing_items_are_grouped() -> None:
    blocks = folded(text("a", "x"), text("b", "x"), text("a", "x"), text("a", "x"))
    assert said(blocks) == [((0, 2, 3), "a"), ((1,), "b"), ((0, 1, 2, 3), "x")]


def test_a_header_of_one_rank_leaves_the_rest_in_step() -> None:
    blocks = folded(text("H1", "H2", "H3", "a", "b", "c"), *[text("a", "b", "c")] * 3)
    assert said(blocks) == [((0,), "H1 H2 H3"), ((0, 1, 2, 3), "a b c")]


def test_extra_lines_in_the_middle_and_of_several_ranks() -> None:
    blocks = folded(text("a", "b", "c"), text("a", "odd", "b", "c"), text("a", "b", "c"), text("a", "odd", "b", "c"))
    assert said(blocks) == [((0, 1, 2, 3), "a"), ((1, 3), "odd"), ((0, 1, 2, 3), "b c")]


def test_a_differing_rank_stays_in_step_with_a_header_before_it() -> None:
    blocks = folded(text("H", "loss 3.1", "end"), text("loss 3.1", "end"), text("loss 9.9", "end"))
    assert said(blocks) == [((0,), "H"), ((0, 1), "loss 3.1"), ((2,), "loss 9.9"), ((0, 1, 2), "end")]


def test_a_chance_match_far_away_does_not_pull_ranks_out_of_step() -> None:
    a = text(*(line for i in range(30) for line in (f"loss {i}", "saved")))
    b = text(*(line for i in range(30) for line in (f"loss {(i + 20) % 30}", "saved")))
    assert sum(block.ranks == (0, 1) for block in folded(a, b)) == 30


def test_a_missing_line_among_lines_that_all_differ_later() -> None:
    a = text(*(f"step {i}" for i in range(100)))
    b = text(*(f"step {i}" for i in range(100) if i != 50))
    assert [block.ranks for block in folded(a, b)] == [(0, 1), (0,), (0, 1)]


def test_lines_that_are_missing_far_apart() -> None:
    a = text(*(f"step {i}" for i in range(300)))
    b = text(*(f"step {i}" for i in range(300) if i not in (10, 200)))
    assert [block.ranks for block in folded(a, b)] == [(0, 1), (0,), (0, 1), (0,), (0, 1)]


def test_an_equal_item_that_comes_next_keeps_ranks_in_step() -> None:
    ranks = text("loss 1", "saved"), text("loss 2", "saved", "loss 1"), text("loss 3", "done")
    assert said(folded(*ranks[:2])) == [((0,), "loss 1"), ((1,), "loss 2"), ((0, 1), "saved"), ((1,), "loss 1")]
    assert said(folded(*ranks)) == [
        ((0,), "loss 1"),
        ((1,), "loss 2"),
        ((2,), "loss 3"),
        ((0, 1), "saved"),
        ((2,), "done"),
        ((1,), "loss 1"),
    ]


def test_of_several_ways_to_line_up_the_shortest_is_taken_then_that_of_the_lowest_rank() -> None:
    assert said(folded(text("a", "b"), text("b", "a"))) == [((1,), "b"), ((0, 1), "a"), ((0,), "b")]
    blocks = folded(text("a", "b"), text("b", "a"), text("c", "b", "a"))
    assert said(blocks) == [((0,), "a"), ((2,), "c"), ((0, 1, 2), "b"), ((1, 2), "a")]


def test_a_print_burst_is_never_split() -> None:
    matrix = ("text", "stdout", ["[[1, 2],\n [3, 4]]\n"])
    assert [b.content for b in folded([matrix, *text("x")], [matrix, *text("y")])] == [*matrix[2], "x\n", "y\n"]


def test_streams_are_kept_apart() -> None:
    items = [*text("a"), *text("a", stream="stderr"), *text("b", stream="stderr")]
    assert [(b.stream, b.content) for b in folded(items, items)] == [("stdout", "a\n"), ("stderr", "a\nb\n")]
    assert [b.ranks for b in folded(text("a"), text("a", stream="stderr"))] == [(0,), (1,)]


def test_a_silent_rank_is_waited_for_until_grace() -> None:
    fold = Fold(range(3), grace=0.5)
    assert fold.next_deadline() is None
    fold.feed(0, text("a"), now=10.0)
    fold.feed(1, text("a"), now=10.2)
    assert fold.drain(10.4) == []
    deadline = fold.next_deadline()
    assert deadline == 10.5
    assert said(fold.drain(deadline)) == [((0, 1), "a")]
    fold.feed(2, text("a"), now=10.6)
    assert fold.drain(10.6) == []
    assert fold.drain(11.1) == [], "the others have put something out lately"
    assert fold.next_deadline() == 10.2 + PATIENCE
    assert said(fold.drain(10.2 + PATIENCE)) == [((2,), "a")]
    assert fold.next_deadline() is None


def test_a_rank_that_is_slower_is_waited_for_longer() -> None:
    fold = Fold(range(2), grace=0.3, patience=2.0)
    for step in range(5):
        fold.feed(0, text(f"step {step}"), now=10.0 + step)
        fold.feed(1, text(f"step {step}"), now=11.0 + step)
        assert said(fold.drain(11.0 + step)) == [((0, 1), f"step {step}")]
    fold.feed(0, text("only rank 0"), now=30.0)
    assert said(fold.drain(30.3)) == [((0,), "only rank 0")], "rank 1 has been silent for long"


def test_only_heads_past_grace_go_without_the_silent_rank() -> None:
    fold = Fold(range(2), grace=0.5)
    fold.feed(0, text("a", "b"), now=0.0)
    fold.feed(0, text("c", "d"), now=0.4)
    assert said(fold.drain(0.5)) == [((0,), "a b")]
    fold.feed(1, text("c", "d"), now=0.6)
    assert said(fold.drain(0.6)) == [((0, 1), "c d")]


def test_differing_items_past_grace_do_not_take_later_ones_along() -> None:
    fold = Fold(range(3), grace=0.5)
    for rank, (early, late) in enumerate((("a", "c"), ("b", "d"))):
        fold.feed(rank, text(early), now=0.0)
        fold.feed(rank, text(late), now=0.4)
    assert said(fold.drain(0.5)) == [((0,), "a"), ((1,), "b")]
    assert said(fold.drain(0.9)) == [((0,), "c"), ((1,), "d")]


def test_the_usual_grace() -> None:
    fold = Fold(range(2))
    fold.feed(0, text("a"), now=1.0)
    assert fold.next_deadline() == 1.0 + GRACE


def test_an_item_that_comes_just_in_time_folds() -> None:
    fold = Fold(range(2))
    fold.feed(0, text("a"), now=0.0)
    assert fold.drain(0.1) == []
    fold.feed(1, text("a"), now=0.2)
    assert said(fold.drain(0.2)) == [((0, 1), "a")]


def test_finished_ranks_are_not_waited_for_but_what_they_left_still_folds() -> None:
    fold = Fold(range(3))
    fold.finish(2)
    fold.feed(0, text("a", "b"), now=0.0)
    fold.finish(0)
    fold.feed(1, text("a"), now=0.0)
    assert said(fold.drain(0.0)) == [((0, 1), "a")]
    fold.finish(1)
    assert said(fold.drain(0.0)) == [((0,), "b")]


def test_flush_waits_for_nobody() -> None:
    fold = Fold(range(2))
    fold.feed(1, text("a"), now=0.0)
    assert said(fold.drain(0.0, flush=True)) == [((1,), "a")]


def test_rich_items_fold_by_content() -> None:
    items: list[Any] = [
        ("display", bundle("<plot>")),
        ("result", bundle("array(4)")),
        ("clear", True),
        ("error", {"ename": "ValueError", "evalue": "no", "traceback": ["a"], "line": 2}),
        ("cut", {"lines": 3, "bytes": 40}),
    ]
    blocks = folded(items, items)
    assert [(b.kind, b.ranks) for b in blocks] == [
        (kind, (0, 1)) for kind in ("display", "result", "clear", "error", "cut")
    ]
    assert blocks[2].content is True
    assert blocks[4].content == {"lines": 3, "bytes": 40}
    assert [b.ranks for b in folded([("clear", True)], [("clear", False)])] == [(0,), (1,)]


def test_displays_fold_though_every_rank_invents_its_own_id() -> None:
    ids = ["u0", "u1"]
    blocks = folded(*[[("display", bundle("0 %", i)), ("update", bundle("50 %", i))] for i in ids])
    assert [(b.kind, b.ranks, b.content["ids"]) for b in blocks] == [
        ("display", (0, 1), {0: "u0", 1: "u1"}),
        ("update", (0, 1), {0: "u0", 1: "u1"}),
    ]
    blocks = folded(*[[("display", bundle("0 %", i)), *text(i)] for i in ids], [("display", bundle("1 %", "u2"))])
    assert [b.content["ids"] for b in blocks[:2]] == [{0: "u0", 1: "u1"}, {2: "u2"}]
    assert [b.ranks for b in folded([("display", bundle("a", "u"))], [("display", bundle("a"))])] == [(0,), (1,)]


def test_json_lists_do_as_well_as_tuples() -> None:
    assert said(folded([["text", "stdout", ["a\n"]]], text("a"))) == [((0, 1), "a")]


def per_rank(blocks: list[Block], rank: int) -> list[tuple[str, Any]]:
    """What one rank said, with neighbouring text of one stream joined."""
    flat = [(b.kind + b.stream, b.content) for b in blocks if rank in b.ranks]
    runs = ((kind, [content for _, content in run]) for kind, run in groupby(flat, key=lambda pair: pair[0]))
    return [(kind, "".join(contents) if kind.startswith("text") else contents) for kind, contents in runs]


def random_item(rng: random.Random, variety: int) -> tuple[Any, ...]:
    n = rng.randrange(variety)
    match rng.randrange(12):
        case 0:
            return ("display", bundle(str(n), rng.choice([None, f"id{rng.random()}"])))
        case 1:
            return ("clear", bool(n % 2))
        case 2:
            return ("text", "stderr", [f"err {n}\n"] * rng.randint(1, 2))
        case _:
            return ("text", "stdout", [f"{n}\n" if n % 3 else f"{n}\nand more"] * rng.randint(1, 2))


@pytest.mark.parametrize("seed", range(60))
def test_every_item_comes_out_exactly_once_and_per_rank_in_order(seed: int) -> None:
    """The property everything rests on, over arrivals, grace, ends and flushes in any order."""
    rng = random.Random(seed)
    size, variety = rng.randint(1, 5), rng.choice([2, 5, 200])
    common = [random_item(rng, variety) for _ in range(rng.randint(0, 300))]
    said_by: list[list[tuple[Any, ...]]] = []
    for _ in range(size):
        own = [item for item in common if rng.random() > 0.05]
        for _ in range(rng.randint(0, 20)):
            own.insert(rng.randint(0, len(own)), random_item(rng, variety))
        said_by.append(own)
    fold, now, out = Fold(range(size), grace=0.3), 0.0, list[Block]()
    sent = [0] * size
    while any(n < len(items) for n, items in zip(sent, said_by, strict=True)):
        rank, many = rng.randrange(size), rng.choice([1, 3, 50])
        fold.feed(rank, said_by[rank][sent[rank] : sent[rank] + many], now)
        sent[rank] += many
        if sent[rank] >= len(said_by[rank]) and rng.random() < 0.5:
            fold.finish(rank)
        now += rng.choice([0.0, 0.05, 0.4])
        out += fold.drain(now, flush=rng.random() < 0.02)
    deadline = fold.next_deadline()
    if deadline is not None:
        out += fold.drain(max(now, deadline) if rng.random() < 0.5 else now)
    out += fold.drain(now, flush=True)
    assert fold.next_deadline() is None
    for rank, items in enumerate(said_by):
        told = [
            Block(i[0], (rank,), "".join(i[2]), i[1]) if i[0] == "text" else Block(i[0], (rank,), i[1]) for i in items
        ]
        assert strip_ids(per_rank(out, rank)) == strip_ids(per_rank(told, rank))


def strip_ids(runs: list[tuple[str, Any]]) -> list[tuple[str, Any]]:
    """Folded displays carry the id of their first rank; each rank's own is in ``ids``."""
    return [
        (kind, [c["data"] if isinstance(c, dict) else c for c in content] if isinstance(content, list) else content)
        for kind, content in runs
    ]


@pytest.mark.parametrize("line", ["step {i}\n", "rank {rank} step {i}\n"], ids=["equal", "all differ"])
def test_many_lines_cost_no_more_than_their_number(line: str) -> None:
    said = [[line.format(rank=rank, i=i) for i in range(20_000)] for rank in range(4)]

    def fold_lines(number: int) -> None:
        fold = Fold(range(len(said)))
        for rank, own in enumerate(said):
            fold.feed(rank, [("text", "stdout", own[:number])], now=0.0)
        assert sum(block.content.count("\n") for block in fold.drain(0.0)) in (number, 4 * number)

    assert growth(fold_lines, 5_000) < 11
