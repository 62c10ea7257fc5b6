"""The picture of a timeline."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from dataclasses import fields
from pathlib import Path

import pytest

from allranks.errors import UsageError
from allranks.timeline.cell_timeline import CellTimeline
from allranks.timeline.clocks import Alignment
from allranks.timeline.rank_timeline import RankTimeline, TimelineCall
from allranks.timeline.timeline import Timeline
from allranks.timeline.timeline_svg import svg
from allranks.timeline.timeline_text import html, text

SVG = "{http://www.w3.org/2000/svg}"


def call(rank: int, began: float, ended: float = 1.0) -> TimelineCall:
    return TimelineCall(
        1,
        "all_sum",
        (1000,),
        "float32",
        4000,
        rank=rank,
        source="mx.eval(mx.distributed.all_sum(x))",
        place="",
        asked=began,
        began=began,
        ended=ended,
        wait=ended - 0.1 - began,
        transfer=0.1,
        last=1,
    )


def timeline(*calls: TimelineCall) -> CellTimeline:
    ranks = tuple(
        RankTimeline(rank, "a", 0.0, 2.0, 0, tuple(each for each in calls if each.rank == rank), (), ())
        for rank in sorted({0, 1} | {each.rank for each in calls})
    )
    return CellTimeline("main", "ring", 3, "", 2, False, 0.0, ranks, Alignment({"a": 0.0}, {"a": 0.0}))


def test_its_title_says_for_which_rank_the_others_waited_and_for_how_much_of_the_cell() -> None:
    found = timeline(call(0, 0.1), call(1, 0.9))
    finding = "Rank 1 was last in 1 of 1 timed calls; the others waited 800 ms for it (40% of the cell)."
    root = ET.fromstring(svg(found))
    assert root.findtext(f"{SVG}title") == found.finding == finding
    assert root.get("aria-label") == f"Timeline of a cell on each rank. {finding}"
    assert finding in text(found).splitlines() and f">{finding}</div>" in html(found)


def test_the_share_of_several_calls_stands_beside_their_sum() -> None:
    first = [call(0, 0.1), call(1, 0.5), call(2, 0.9)]
    second = [call(0, 1.1, 1.5), call(1, 1.4, 1.5), call(2, 1.2, 1.5)]
    third = [call(0, 1.6, 1.9), call(1, 1.7, 1.9), call(2, 1.8, 1.9)]
    assert timeline(*first, *second, *third).finding == (
        "Rank 2 was last in 2 of 3 timed calls; the others waited 1.00 s for it in all (50% of the cell), "
        "800 ms at the longest."
    )


def test_a_cell_in_which_nothing_was_timed_has_no_title() -> None:
    untimed = timeline()
    assert untimed.finding is None and ET.fromstring(svg(untimed)).find(f"{SVG}title") is None
    assert ET.fromstring(svg(untimed)).get("aria-label") == "Timeline of a cell on each rank."


def test_the_picture_is_saved_with_its_finding_as_the_title(tmp_path: Path) -> None:
    cell = timeline(call(0, 0.1), call(1, 0.9))
    found = Timeline(**{each.name: getattr(cell, each.name) for each in fields(cell)})
    found.save(tmp_path / "in3.svg")
    root = ET.parse(tmp_path / "in3.svg").getroot()
    said = ["".join(each.itertext()) for each in root.findall(f"{SVG}text")]
    assert " ".join(said[:-1]) == root.findtext(f"{SVG}title") == found.finding
    assert said[-1] == "timeline of In[3] · ranks 0-1 · ring · 2.00 s"
    inner = root.find(f"{SVG}svg")
    assert inner is not None
    size, frame = ([float(node.get(name, 0)) for name in ("width", "height")] for node in (inner, root))
    assert frame[0] == size[0] + 32 and frame[1] > size[1] + float(inner.get("y", 0))
    with pytest.raises(UsageError, match=r"No such file"):
        found.save(tmp_path / "absent" / "in3.svg")
