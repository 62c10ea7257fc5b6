"""What a dashboard sends, and when; what it keeps to send again; what is shown where there is no front end."""

from __future__ import annotations

import dataclasses
import json
import re
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_args

import pytest

from allranks_backends.views import Collective, RankState, RankView, Snapshot
from allranks_widgets import Dashboard, from_json
from allranks_widgets import dashboard as module
from allranks_widgets._history import LETTERS, SECONDS, RateHistory
from allranks_widgets._kept import KeptOutput
from tests.widgets import streams

WAITING = Snapshot("main", "ring", "whole", 1, (RankView(0, "a", state="waiting", since=1.0),), at=100.0)


class Spy(Dashboard):
    """A dashboard whose messages can be read, and whose clock stands still unless it is moved."""

    def __init__(self, **options: Any) -> None:
        self.messages: list[tuple[dict[str, Any], list[bytes]]] = []
        self.answered = threading.Event()
        super().__init__(**options)

    def send(self, content: Any, buffers: Any = None) -> None:
        self.messages.append((content, list(buffers or ())))
        if content["do"] == "said":
            self.answered.set()

    @property
    def items(self) -> list[dict[str, Any]]:
        return [
            item for content, buffers in self.messages if content["do"] == "output" for item in json.loads(buffers[0])
        ]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [1000.0]
    # The module's alone: the threads of worlds that are up in this process go by the real one.
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: now[0], time=time.time))
    return now


def later(snapshot: Snapshot, seconds: float, **changes: Any) -> Snapshot:
    ranks = tuple(dataclasses.replace(rank, since=(rank.since or 0) + seconds, **changes) for rank in snapshot.ranks)
    return dataclasses.replace(snapshot, at=snapshot.at + seconds, ranks=ranks)


def test_a_page_is_told_every_second_that_the_kernel_goes_on(clock: list[float]) -> None:
    dashboard = Spy()
    dashboard.show(WAITING)
    assert not dashboard.messages, "a picture that is shown once is not followed"
    for step in range(1, 31):
        clock[0] += 0.1
        dashboard.show(later(WAITING, 0.1 * step) if step < 15 else later(WAITING, 0.1 * step, line=step))
    assert [content for content, _ in dashboard.messages] == [{"do": "beat"}] * 3


def test_nothing_is_sent_when_only_time_went_on(clock: list[float]) -> None:
    dashboard = Dashboard()
    for step in range(10):
        clock[0] += 1
        dashboard.show(later(WAITING, step))
    assert dashboard.sent == 1


def test_seconds_of_a_stalled_transfer_or_a_compiler_that_go_on_are_not_sent(clock: list[float]) -> None:
    dashboard = Dashboard()
    dashboard.show(WAITING)
    for step in range(10):
        clock[0] += 1
        dashboard.show(later(WAITING, 9, stalled=0.5 + step, away=step, compiler="g++", compiling=step))
    assert dashboard.sent == 2, "that they began"
    clock[0] += 1
    dashboard.show(later(WAITING, 9))
    assert dashboard.sent == 3, "that they ended"


def test_a_wait_that_becomes_a_hang_is_sent(clock: list[float]) -> None:
    dashboard = Dashboard()
    for step in range(30):  # 2 s are reached at the tenth
        clock[0] += 1
        dashboard.show(later(WAITING, 0.1 * step, collective=Collective(4, "all_sum", (1000,), "float32", 4000)))
    assert dashboard.sent == 2 and from_json(dashboard.frame).ranks[0].since == pytest.approx(2.0)


def test_a_wait_that_begins_anew_is_sent(clock: list[float]) -> None:
    dashboard = Dashboard()
    dashboard.show(later(WAITING, 5))
    clock[0] += 1
    dashboard.show(WAITING)
    assert dashboard.sent == 2


def test_no_more_than_ten_frames_a_second_and_the_last_one_gets_through(clock: list[float]) -> None:
    dashboard = Dashboard()
    for step in range(100):
        clock[0] += 0.01
        dashboard.show(later(WAITING, 1, line=step))
    assert dashboard.sent <= 11
    dashboard.flush()
    assert from_json(dashboard.frame).ranks[0].line == 99
    dashboard.flush()
    assert dashboard.sent <= 12


def test_a_frame_says_until_when_the_one_before_held(clock: list[float]) -> None:
    dashboard = Dashboard()
    dashboard.show(WAITING)
    clock[0] += 1
    dashboard.show(later(WAITING, 30))
    clock[0] += 1
    dashboard.show(later(WAITING, 31, line=2))
    assert json.loads(dashboard.frame)["held"] == 130.0


def test_output_is_numbered_so_that_a_page_sees_a_loss() -> None:
    dashboard = Spy()
    dashboard.output(streams.training(2))
    dashboard.output(streams.failing(2))
    assert [content["number"] for content, _ in dashboard.messages] == [1, 2]
    assert dashboard.items == streams.as_sent([*streams.training(2), *streams.failing(2)])


def test_a_page_that_asks_gets_everything() -> None:
    dashboard = Spy()
    dashboard.show(streams.snapshot(2, 1, 0.0, at=100.0))
    dashboard.output(streams.training(2))
    module._heard(None, None, {"content": {"key": dashboard.key, "ask": "all", "page": "p1"}})
    content, buffers = dashboard.messages[-1]
    assert (content["do"], content["page"], content["number"]) == ("all", "p1", 1)
    assert json.loads(buffers[0])["at"] == [100.0]
    assert json.loads(buffers[1]) == streams.as_sent(streams.training(2))


def test_output_is_bounded_and_what_went_is_counted() -> None:
    kept = KeptOutput(limit=100_000)
    for items in streams.flood(4, 10_000):
        kept.add(items)
    again = [json.loads(data) for data in kept.everything()]
    assert sum(map(len, kept.everything())) < 130_000
    assert [item["kind"] for item in again[:2]] == ["begin", "dropped"]
    lines = sum(item["text"].count("\n") for item in again if item["kind"] == "text")
    assert again[1]["lines"] + lines == again[1]["said"] + lines == 40_000


def test_what_went_is_counted_without_notes_as_the_page_counts_it() -> None:
    kept = KeptOutput(limit=300)
    for stream in ("stdout", "note", "stdout"):
        kept.add([{"cell": 1, "kind": "text", "stream": stream, "ranks": [0, 1], "text": "x" * 250 + "\n"}])
    (dropped, _) = map(json.loads, kept.everything())
    assert (dropped["items"], dropped["lines"], dropped["said"]) == (2, 1, 2)


def test_a_cell_of_which_only_its_beginning_went_is_still_named() -> None:
    begin = {"cell": 7, "kind": "begin", "ranks": [0], "count": 3, "code": "x" * 500}
    text = {"cell": 7, "kind": "text", "stream": "stdout", "ranks": [0], "text": "y" * 500}
    kept = KeptOutput(limit=800)
    kept.add([begin])
    kept.add([text])
    assert [json.loads(data)["kind"] for data in kept.everything()] == ["begin", "text"]


def test_unfinished_lines_are_sent_again_until_the_cell_ends() -> None:
    kept = KeptOutput()
    kept.add(streams.training(2))
    assert json.loads(kept.everything()[-1])["kind"] == "live"
    kept.add([{"cell": 7, "kind": "end", "ok": True, "seconds": 1.0}])
    assert json.loads(kept.everything()[-1])["kind"] == "end"


def test_the_past_is_one_row_a_second_for_ten_minutes() -> None:
    history = RateHistory()
    for step in range(5 * (SECONDS + 100)):
        history.add(streams.snapshot(2, 1, step / 5))
    columns = history.columns()
    assert len(columns["at"]) == SECONDS
    assert len(columns["ranks"]) == 2
    assert columns["link_names"] == ["0 → 1", "1 → 0"]


def test_unknown_rates_have_no_sum() -> None:
    history = RateHistory()
    history.add(WAITING)
    assert (history.columns()["wire"], history.columns()["ranks"]) == ([None], [[None]])


def test_the_past_has_a_letter_for_the_state_of_each_rank() -> None:
    ranks = (
        RankView(0, "a", state="running"),
        RankView(1, "a", state="waiting", since=0.5),
        RankView(3, "a", state="waiting", since=5.0),
        RankView(4, "b", state="running", away=3),
        RankView(5, "a", state="running", silent=4),
        RankView(6, "a", state="waiting"),
        RankView(7, "a", state="waiting", since=0.5, in_task=True),
    )
    history = RateHistory()
    history.add(dataclasses.replace(WAITING, ranks=ranks))
    history.add(dataclasses.replace(WAITING, ranks=(RankView(0, "a", state="dead"),), at=101.5))
    assert history.columns()["states"] == ["re w  ww", "d"]


def test_the_page_has_the_same_letters_for_states() -> None:
    source = (Path(__file__).parents[2] / "widgets/js-src/src/rank_states.js").read_text(encoding="utf-8")
    (letters,) = re.findall(r"LETTERS = \{(.*?)\}", source, re.DOTALL)
    assert dict(re.findall(r'(\w+): "(.)"', letters)) == LETTERS
    assert set(LETTERS) == {*get_args(RankState), "exchanging"}


@pytest.mark.parametrize(
    ("act", "text", "failed"),
    [
        (lambda verb, rank: f"{verb} {rank} done", "abort 2 done", False),
        (lambda verb, rank: None, "", False),
        (lambda verb, rank: 1 / 0, "division by zero", True),
    ],
)
def test_an_action_is_answered(act: Any, text: str, failed: bool) -> None:
    dashboard = Spy(on_action=act)
    module._heard(None, None, {"content": {"key": dashboard.key, "ask": "abort", "rank": 2, "page": "p"}})
    assert dashboard.answered.wait(60)
    said, _ = dashboard.messages[-1]
    assert (said["text"], said["failed"], said["page"]) == (text, failed, "p")


def test_what_is_no_action_does_nothing() -> None:
    called: list[str] = []
    dashboard = Spy(on_action=lambda verb, rank: called.append(verb))
    module._heard(None, None, {"content": {"key": dashboard.key, "ask": "down", "rank": 2}})
    module._heard(None, None, {"content": {"key": "another", "ask": "heal"}})
    assert not called and not dashboard.messages


def test_the_saved_notebook_can_be_read() -> None:
    dashboard = Dashboard()
    dashboard.show(streams.snapshot(16, 4, 3.0))
    data, _ = dashboard._repr_mimebundle_()
    assert "application/vnd.jupyter.widget-view+json" in data
    for mime in ("text/plain", "text/html"):
        assert "thunderbolt" in data[mime]
        assert "40 Gbit/s" in data[mime]
        assert "all_gather" in data[mime]
        assert "timed with --timing only" in data[mime]
    assert "<svg" not in data["text/html"] and "<script" not in data["text/html"]


def test_the_links_of_a_large_mesh_are_cut_and_counted() -> None:
    links = streams.ring(64, 8, 0.0) * 10
    dashboard = Dashboard()
    dashboard.show(dataclasses.replace(streams.snapshot(4, 1, 0.0), links=links))
    assert "1152 more links are not listed: these have the highest rates." in repr(dashboard)


def test_only_known_views() -> None:
    assert Dashboard(views=["ranks"]).views == ["ranks"]
    with pytest.raises(Exception, match="views"):
        Dashboard(views=["moons"])


def test_a_missing_bundle_is_said(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "STATIC", tmp_path)
    assert "was not bundled" in module._front_end()
    assert "render" in module._front_end()
