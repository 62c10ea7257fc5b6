"""Pictures that a saved notebook shows without a kernel: topology and throughput."""

from __future__ import annotations

import dataclasses
import re
import time
import xml.etree.ElementTree as ET
from types import SimpleNamespace
from typing import Any

import pytest
from IPython.core.interactiveshell import InteractiveShell

from allranks_backends.views import LinkView, RankState, RankView, Snapshot
from allranks_widgets import Dashboard
from allranks_widgets import dashboard as dashboard_module
from allranks_widgets._history import RateHistory
from allranks_widgets.svg_text import GRID, LINE, WIDTH, Picture, stacked, svg_text
from allranks_widgets.throughput_picture import throughput_picture
from allranks_widgets.topology_picture import BOX, MOST_LINES, finding, missing_ranks, topology_picture
from tests.widgets import streams

SVG = "{http://www.w3.org/2000/svg}"


def parsed(picture: Picture | str) -> ET.Element:
    return ET.fromstring(str(picture))


def texts(picture: Picture | str) -> list[str]:
    return [each.text or "" for each in parsed(picture).iter(f"{SVG}text")]


def world(*states: RankState, **changes: Any) -> Snapshot:
    ranks = tuple(RankView(rank, "host", state=state, since=9.0) for rank, state in enumerate(states))
    return dataclasses.replace(Snapshot("main", "ring", "whole", 1, ranks), **changes)


def changed(snapshot: Snapshot, rank: int, **changes: Any) -> Snapshot:
    ranks = [dataclasses.replace(view, **changes) if view.rank == rank else view for view in snapshot.ranks]
    return dataclasses.replace(snapshot, ranks=tuple(ranks))


def test_the_title_is_what_one_must_know_first() -> None:
    hang = streams.hanging(4, 1)
    assert missing_ranks(hang) == [2]
    straggler = "rank 1 was last in 1 of 2 timed calls; the others waited 400 ms for it"
    told = {
        "4 ranks idle": world("idle", "idle", "idle", "idle"),
        "1 rank idle": world("idle"),
        "3 ranks: 2 running, 1 idle": world("running", "idle", "running"),
        "Rank 2 is dead: killed by SIGKILL": changed(world("idle", "idle", "dead"), 2, cause="killed by SIGKILL"),
        "Ranks 0, 2 are dead": world("dead", "failed", "dead"),
        "Rank 1 failed: ValueError: bad batch": changed(world("idle", "failed"), 1, cause="ValueError: bad batch"),
        "Rank 1 is out of reach": changed(world("idle", "idle"), 1, away=4),
        "Ranks 0-1, 3 wait for rank 2": hang,
        "The world is down": world(state="down"),
        "2 ranks idle when the world ended": world("idle", "idle", state="down"),
        "The world is broken": world("idle", "idle", state="broken"),
        straggler.capitalize(): world("idle", "idle", straggler=straggler),
    }
    assert {said: finding(snapshot) for said, snapshot in told.items()} == {said: said for said in told}
    assert all(texts(topology_picture(snapshot))[0] == said for said, snapshot in told.items())


def test_a_rank_that_others_have_waited_for_only_a_moment_is_not_blamed() -> None:
    hang = streams.hanging(4, 1)
    ranks = tuple(dataclasses.replace(view, since=0.5) for view in hang.ranks)
    soon = dataclasses.replace(hang, ranks=ranks, straggler=None, straggler_rank=None)
    assert missing_ranks(soon) == [] and finding(soon) == "4 ranks: 3 exchanging, 1 running"


def test_each_rank_is_there_with_its_state_in_words_and_a_shape_of_its_own() -> None:
    states: list[RankState] = [
        "idle",
        "running",
        "waiting",
        "debugging",
        "failed",
        "unblocked",
        "suspended",
        "silent",
        "dead",
    ]
    picture = topology_picture(world(*states))
    shapes = [each for each in parsed(picture).iter(f"{SVG}path") if len(each)]
    assert [each[0].text for each in shapes] == states
    assert len({(each.attrib["d"], each.attrib["fill"] == "none") for each in shapes}) == len(states)
    words = ["in the debugger" if state == "debugging" else state for state in states]
    assert [text for text in texts(picture) if text in words or text.startswith("rank ")] == [
        part for rank, word in enumerate(words) for part in (f"rank {rank}", word)
    ]


@pytest.mark.parametrize(("size", "count"), [(2, 1), (4, 1), (8, 4), (32, 8)])
def test_links_of_a_ring_run_beside_the_hosts_each_with_its_rates(size: int, count: int) -> None:
    snapshot = streams.snapshot(size, count, 3.0)
    picture = topology_picture(snapshot)
    links = [each.attrib["d"] for each in parsed(picture).iter(f"{SVG}path") if not len(each)]
    assert len(links) == len({frozenset((view.link.source, view.link.target)) for view in snapshot.links})
    for way in links:
        assert all(float(x) >= BOX for x in re.findall(r"[MH](\d+)", way)), "no link crosses a host"
    assert len([text for text in texts(picture) if re.fullmatch(r"↓ .+/s ↑ .+/s( · 40 Gbit/s)?", text)]) == len(links)


def test_a_mesh_is_arcs_and_its_rates_are_summed_up() -> None:
    snapshot = dataclasses.replace(streams.snapshot(4, 2, 0.0), links=streams.mesh(4, 2))
    picture = topology_picture(snapshot)
    assert sum("A" in each.attrib["d"] for each in parsed(picture).iter(f"{SVG}path")) == 6
    assert texts(picture)[-1] == "6 linked pairs of ranks: 27.0 GB/s in all, 2.4 GB/s at most (ranks 0 and 3)."


def test_rates_that_are_not_known_are_not_zero() -> None:
    snapshot = streams.snapshot(2, 1, 0.0)
    unknown = tuple(LinkView(view.link) for view in snapshot.links)
    said = texts(topology_picture(dataclasses.replace(snapshot, links=unknown)))
    assert "rate unknown" in said and not any("0 B/s" in text for text in said)


@pytest.mark.parametrize(("size", "count"), [(MOST_LINES, 4), (MOST_LINES + 1, 3), (64, 8), (256, 32), (6, 6)])
def test_nothing_leaves_the_picture_or_lies_on_something_else(size: int, count: int) -> None:
    picture = topology_picture(streams.snapshot(size, count, 3.0))
    boxes = [
        tuple(float(each.attrib[name]) for name in ("x", "y", "width", "height"))
        for each in parsed(picture).iter(f"{SVG}rect")
    ]
    assert len(boxes) == count
    for number, (x, y, width, height) in enumerate(boxes):
        assert x >= 0 and x + width <= WIDTH and y + height <= picture.height
        for left, top, _, _ in boxes[number + 1 :]:
            assert left >= x + width or top >= y + height or left + 0.1 < x
    places = [(each.attrib["x"], each.attrib["y"]) for each in parsed(picture).iter(f"{SVG}text")]
    assert len(places) == len(set(places))
    assert sum(text.removeprefix("rank ").isdigit() for text in texts(picture)) == size


@pytest.mark.parametrize("nasty", ["a<b>&'\"", "a\0\x1b[1m\nb", "\ud800", "n" * 10_000])
def test_any_name_can_be_drawn(nasty: str) -> None:
    snapshot = streams.snapshot(2, 1, 0.0)
    snapshot = dataclasses.replace(snapshot, name=nasty, straggler=nasty)
    snapshot = dataclasses.replace(
        snapshot, hosts=tuple(dataclasses.replace(host, chip=nasty) for host in snapshot.hosts)
    )
    picture = topology_picture(changed(snapshot, 1, state="failed", cause=nasty, host=nasty))
    assert texts(picture) and len(str(picture)) < 10_000


def history(*rates: float | None) -> RateHistory:
    past = RateHistory()
    for second, rate in enumerate(rates):
        now = streams.snapshot(2, 1, 0.0)
        links = tuple(dataclasses.replace(view, rate=rate) for view in now.links[:2])
        past.add(dataclasses.replace(now, links=links, at=1000.0 + second))
    return past


def test_the_throughput_says_the_highest_rate_and_the_last() -> None:
    picture = throughput_picture(history(1e6, 4e6, 2e6, 0.0).columns())
    assert texts(picture)[0] == "A rank sent 4.0 MB/s at most, 0 B/s at the end"
    assert texts(throughput_picture(history(4e6, 4e6).columns()))[0] == "A rank sent 4.0 MB/s at most"
    assert texts(throughput_picture(history(0.0, 0.0).columns()))[0] == "Nothing was sent in the last ten minutes"


def test_the_line_of_the_wire_is_where_its_rates_are_and_broken_where_none_is_known() -> None:
    picture = throughput_picture(history(1e9, 2e9, None, 4e9, 3e9).columns())
    lines = [each.attrib for each in parsed(picture).iter(f"{SVG}path") if each.attrib.get("stroke-width") == "1.6"]
    wire = [line["d"] for line in lines if line["stroke"] == lines[0]["stroke"]]
    heights = [[float(y) for y in re.findall(r"[\d.]+ ([\d.]+)", d)] for d in wire]
    assert [len(run) for run in heights] == [2, 2]
    assert heights[0][0] > heights[0][1] > heights[1][1] > heights[1][0]


def test_without_links_the_rate_of_the_arrays_is_named() -> None:
    past = RateHistory()
    past.add(dataclasses.replace(streams.snapshot(2, 1, 0.0), links=(), at=1000.0))
    said = texts(throughput_picture(past.columns()))
    assert said[0].startswith("A rank passed to collectives 2.") and not any(text.startswith("wire") for text in said)
    assert texts(throughput_picture(RateHistory().columns())) == ["No rate is known"]


def test_a_stack_is_as_high_as_what_it_holds() -> None:
    one, two = (Picture((svg_text(0, 9, text),), 20, text) for text in ("one", "two"))
    both = stacked([one, two])
    assert texts(both) == ["one", "two"] and both.height > 40 and both.said == "one two"


def test_a_dashboard_gives_its_pictures_to_a_program() -> None:
    dashboard = Dashboard()
    with pytest.raises(ValueError, match="no data yet"):
        dashboard.picture("topology")
    dashboard.show(streams.snapshot(4, 2, 3.0))
    assert "studio-2" in texts(dashboard.picture()) and texts(dashboard.picture("throughput"))[0].startswith(
        "A rank sent"
    )
    with pytest.raises(ValueError, match="Nothing has been logged yet"):
        dashboard.picture("log")
    dashboard.logged([(0, "loss", 1, step, 1 - step / 10, 0.0) for step in range(10)])
    assert texts(dashboard.picture("log"))[0] == "loss 1 → 0.1"
    with pytest.raises(ValueError, match="no picture of 'moons': choose from topology, throughput, log"):
        dashboard.picture("moons")


@pytest.fixture
def published(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, dict[str, str], bool]]:
    """What a kernel would send to the page: display id, data, and whether it replaces an earlier one."""
    sent: list[tuple[str, dict[str, str], bool]] = []

    def publish(data: dict[str, str], transient: dict[str, str] | None = None, update: bool = False) -> None:
        sent.append(((transient or {}).get("display_id", ""), data, update))

    monkeypatch.setattr("IPython.core.display_functions.publish_display_data", publish)
    shell = InteractiveShell.instance()
    monkeypatch.setattr(shell, "kernel", object(), raising=False)
    return sent


def test_what_stays_in_a_saved_notebook_is_a_picture_and_tables_of_the_end(
    published: list[tuple[str, dict[str, str], bool]],
) -> None:
    dashboard = Dashboard()
    dashboard._ipython_display_()
    (_, live, _), (picture_id, picture, _), (tables_id, tables, _) = published
    assert "application/vnd.jupyter.widget-view+json" in live and "text/html" in tables and picture_id != tables_id
    assert texts(picture["image/svg+xml"]) == ["No data from the ranks yet"] and "text/html" not in picture
    dashboard.show(changed(streams.snapshot(4, 1, 0.0), 2, state="dead", cause="killed by SIGKILL"))
    dashboard.logged([(0, "loss", 1, step, 1 - step / 10, 0.0) for step in range(10)])
    dashboard.refresh()
    (now_id, picture, update), (_, tables, _) = published[-2:]
    assert now_id == picture_id and update and "killed by SIGKILL" in tables["text/html"]
    said = texts(picture["image/svg+xml"])
    assert said[0] == "Rank 2 is dead: killed by SIGKILL" and "loss" in said and any("A rank " in text for text in said)
    assert parsed(picture["image/svg+xml"]).attrib["id"] == f"arw-saved-{dashboard.key}"
    assert picture["text/plain"].startswith("Rank 2 is dead: killed by SIGKILL. main · 4 ranks · ring.")
    assert "<script" not in picture["image/svg+xml"] and "<style" not in picture["image/svg+xml"]


def test_a_line_is_as_wide_as_its_cable_is_fast_and_coloured_if_it_is_busy() -> None:
    now = streams.snapshot(4, 4, 0.0)
    speeds = {0: 10e9, 1: 40e9, 2: 40e9, 3: None}
    rates = {0: 1e9, 1: 1e3, 2: 0.0, 3: 1.25e9}
    links = [
        dataclasses.replace(view, nominal=speeds[number], rate=rates[number])
        for view in now.links
        for number in [min(view.link.source, view.link.target) if {view.link.source, view.link.target} != {0, 3} else 3]
    ]
    drawn = str(topology_picture(dataclasses.replace(now, links=tuple(links))))
    lines = re.findall(r'stroke="([^"]+)" stroke-width="(\d\.\d+)"/>', drawn)
    assert sorted(colour for colour, _ in lines) == sorted([LINE, LINE, GRID, LINE])
    widths = sorted(float(width) for _, width in lines)
    assert widths == pytest.approx([2.375, 3.5, 3.5, 3.5], abs=0.01), (
        "the slow cable, the two fast ones, and the busiest of those whose speed is unknown"
    )


def test_links_to_ranks_that_a_shrinking_world_no_longer_has_are_left_out() -> None:
    whole = streams.snapshot(4, 1, 0.0)
    fewer = dataclasses.replace(whole, ranks=whole.ranks[:2])
    assert "rank 1" in texts(topology_picture(fewer)) and "rank 2" not in texts(topology_picture(fewer))


def test_the_saved_copy_is_drawn_when_it_is_due(
    published: list[tuple[str, dict[str, str], bool]], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1000.0
    monkeypatch.setattr(dashboard_module, "time", SimpleNamespace(monotonic=lambda: now, time=time.time))
    four = streams.snapshot(4, 1, 0.0)
    dashboard = Dashboard()
    dashboard.show(four)
    dashboard._ipython_display_()
    shown = len(published)

    def saves() -> bool:
        nonlocal shown
        before, shown = shown, len(published)
        return shown > before

    dashboard.refresh()
    assert not saves(), "what was displayed is saved"
    dashboard.show(changed(four, 2, away=3))
    dashboard.refresh()
    assert saves()
    now += 5.0
    dashboard.show(four)
    assert not saves()
    dashboard.output([{"cell": 1, "kind": "end", "ok": True, "seconds": 0.1}])
    dashboard.show(four)
    assert saves(), "a cell has ended"
    dashboard.logged([(0, "loss", 1, 0, 1.0, 0.0)])
    dashboard.refresh()
    assert saves()
    dashboard.start_over([four], None)
    dashboard.refresh()
    assert saves()


def test_all_copies_of_a_dashboard_show_the_same(published: list[tuple[str, dict[str, str], bool]]) -> None:
    four = streams.snapshot(4, 1, 0.0)
    dashboard = Dashboard()
    dashboard.show(four)
    dashboard._ipython_display_()
    dashboard.show(changed(four, 2, state="dead", cause="killed by SIGKILL"))
    dashboard._ipython_display_()
    tables = {display: data["text/plain"] for display, data, _ in published if display.endswith("-tables")}
    assert len(tables) == 2 and all("killed by SIGKILL" in text for text in tables.values())


def test_what_stays_after_the_end_of_the_cluster_are_its_ranks(
    published: list[tuple[str, dict[str, str], bool]],
) -> None:
    dashboard = Dashboard(["topology", "throughput"])
    dashboard.show(dataclasses.replace(streams.snapshot(2, 1, 0.0), straggler=None, straggler_rank=None, at=1000.0))
    dashboard._ipython_display_()
    dashboard.show(Snapshot("main", "ring", "down", 0, ()))
    dashboard.refresh()
    said = texts(published[3][1]["image/svg+xml"])
    assert said[0].endswith("when the world ended") and "rank 1" in said
    assert "2 ranks · ring · down" in published[4][1]["text/html"]
    assert dashboard._history.columns()["at"] == [1000.0]


def test_a_view_of_the_log_alone_saves_its_curves_alone(published: list[tuple[str, dict[str, str], bool]]) -> None:
    dashboard = Dashboard(["log"])
    dashboard.show(streams.snapshot(2, 1, 0.0))
    dashboard._ipython_display_()
    assert texts(published[1][1]["image/svg+xml"]) == ["Nothing has been logged yet: call log(loss=...) in a cell."]
    dashboard.logged([(0, "loss", 1, step, 1 - step / 10, 0.0) for step in range(10)])
    dashboard.refresh()
    assert texts(published[3][1]["image/svg+xml"])[0] == "loss 1 → 0.1"
