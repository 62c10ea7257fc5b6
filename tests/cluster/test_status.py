"""The status table, as text and as HTML, drawn from a Snapshot alone."""

from __future__ import annotations

from dataclasses import replace
from html.parser import HTMLParser

import pytest

from allranks_backends.views import Collective, RankView, Snapshot
from allranks_widgets import human_bytes, status_html, status_text

WAITING = Collective(17, "all_sum", (1000,), "float32", 4000, line=5)
SNAPSHOT = Snapshot(
    name="main",
    backend="ring",
    state="whole",
    generation=1,
    ranks=(
        RankView(1, "mac2", pid=77, state="dead", cause="killed by signal 9 (out of memory?)"),
        RankView(
            0,
            "localhost",
            pid=12345,
            state="waiting",
            collective=WAITING,
            rss=1_500_000_000,
            mlx_active=12_000_000,
            mlx_peak=2_400_000_000,
        ),
    ),
    notes=("rank 1 is dead: %distributed heal replaces it",),
)


@pytest.mark.parametrize(
    ("n", "said"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.0 kB"),
        (96_300_000, "96.3 MB"),
        (999_950, "1.0 MB"),
        (1_000_000_000, "1.0 GB"),
        (137_438_953_472, "137.4 GB"),
        (5_000_000_000_000_000, "5000.0 TB"),
    ],
)
def test_bytes_for_people(n: int, said: str) -> None:
    assert human_bytes(n) == said


def test_a_rank_is_blocked_only_once_its_collective_takes_long() -> None:
    """Each takes some time: a healthy world is not to look like one that hangs."""
    said = [status_text(replace(SNAPSHOT, ranks=(waits(since),))).splitlines()[2] for since in (0.3, 2.5)]
    assert "exchanging in all_sum #17 f32[1000] (line 5)" in said[0] and "blocked in all_sum #17" in said[1]


def waits(since: float) -> RankView:
    return RankView(0, "localhost", state="waiting", collective=WAITING, since=since)


def test_the_text_table() -> None:
    assert status_text(SNAPSHOT).splitlines() == [
        'world "main" · 2 ranks · ring · ready',
        "rank  host       pid    state                                      memory  MLX active / peak",
        "0     localhost  12345  blocked in all_sum #17 f32[1000] (line 5)  1.5 GB  12.0 MB / 2.4 GB",
        "1     mac2       77     dead: killed by signal 9 (out of memory?)  –       –",
        "rank 1 is dead: %distributed heal replaces it",
    ]


class Cells(HTMLParser):
    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.rows: list[list[str]] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        if tag == "tr":
            self.rows.append([])

    def handle_data(self, data: str) -> None:
        if self.rows:
            self.rows[-1].append(data)


def test_the_html_table_says_the_same_and_needs_no_script_or_stylesheet() -> None:
    page = status_html(SNAPSHOT)
    cells = Cells(page)
    assert cells.tags <= {"div", "table", "thead", "tbody", "tr", "th", "td"}
    assert cells.rows[0] == ["rank", "host", "pid", "state", "memory", "MLX active / peak"]
    assert cells.rows[1][3] == "blocked in all_sum #17 f32[1000] (line 5)"
    assert cells.rows[2][3] == "dead: killed by signal 9 (out of memory?)"
    assert "background" not in page
    assert "world &quot;main&quot; · 2 ranks · ring · ready" in page


def test_what_ranks_say_is_shown_as_text() -> None:
    evil = RankView(0, "<b>h", state="failed", cause="<script>alert(1)</script>\x1b[2J\nnext")
    snapshot = Snapshot("<i>", "ring", "broken", 2, (evil,), notes=("<img src=x>",))
    page = status_html(snapshot)
    assert Cells(page).tags <= {"div", "table", "thead", "tbody", "tr", "th", "td"}
    assert "&lt;script&gt;alert(1)&lt;/script&gt; [2J next" in page
    assert "\x1b" not in status_text(snapshot)
    assert len(status_text(snapshot).splitlines()) == 4


def test_long_source_lines_do_not_widen_the_text_table() -> None:
    view = RankView(0, "localhost", state="running", line=3, source="x = " + "y" * 200)
    text = status_text(Snapshot("main", "ring", "whole", 1, (view,)))
    assert "running line 3: x = yyy" in text
    assert "…" in text
    assert max(map(len, text.splitlines())) < 120
    assert text.startswith('world "main" · 1 rank · ring')


def test_sixty_four_ranks_stay_in_columns_and_in_order() -> None:
    views = tuple(RankView(rank, f"host{rank % 8}", pid=rank, state="idle") for rank in reversed(range(64)))
    lines = status_text(Snapshot("big", "mpi", "whole", 3, views)).splitlines()
    assert len(lines) == 66
    assert [int(line.split()[0]) for line in lines[2:]] == list(range(64))
    assert len({line.index("idle") for line in lines[2:]}) == 1


def test_a_world_without_ranks_is_a_head_line() -> None:
    snapshot = Snapshot("main", "ring", "starting", 0, ())
    assert status_text(snapshot) == 'world "main" · 0 ranks · ring · starting'
    assert "<table" not in status_html(snapshot)
