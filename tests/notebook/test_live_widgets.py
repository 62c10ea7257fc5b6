"""Widgets of ranks in a page: shown alive one per rank, moved there, and moved by the rank."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

from allranks.notebook.output_writer import WIDGET_AS_TEXT
from tests.jupyter import CellOutputs, Notebook
from tests.needs import need

pytestmark = pytest.mark.slow

WITHIN = 60.0

VIEW = "application/vnd.jupyter.widget-view+json"


@pytest.fixture
def page(kernel: Notebook) -> Iterator[Notebook]:
    """The module's notebook as a page that shows widgets drives it, with two ranks."""
    need(importlib.util.find_spec("ipywidgets"), "ipywidgets is not installed")
    kernel.with_ranks("ring", 2)
    kernel.ok("allranks.notebook.fold.GRACE = 60.0")  # what a slower rank shows comes in its place all the same
    kernel.page, kernel.comms = True, []
    yield kernel
    kernel.page = False


def models(cell: CellOutputs) -> list[str]:
    """The models whose views a cell shows, in order."""
    return [view["model_id"] for view in cell.mime(VIEW)]


def opened(page: Notebook) -> dict[str, dict[str, Any]]:
    """The states with which models were opened, by id."""
    return {
        message["content"]["comm_id"]: message["content"]["data"]["state"]
        for message in page.comms
        if message["msg_type"] == "comm_open" and message["content"]["target_name"] == "jupyter.widget"
    }


def states(page: Notebook, model: str, name: str) -> list[Any]:
    """What a model said of one of its traits, in order."""
    return [
        message["content"]["data"]["state"][name]
        for message in page.comms
        if message["msg_type"] == "comm_msg"
        and message["content"]["comm_id"] == model
        and name in message["content"]["data"].get("state", {})
    ]


def closed(page: Notebook) -> set[str]:
    return {message["content"]["comm_id"] for message in page.comms if message["msg_type"] == "comm_close"}


def sliders(page: Notebook) -> tuple[CellOutputs, list[str]]:
    cell = page.ok("%%distributed\nimport ipywidgets\nslider = ipywidgets.IntSlider(value=7 + rank)\nslider")
    return cell, models(cell)


def test_each_rank_shows_its_own_and_the_page_has_the_models(page: Notebook) -> None:
    cell, shown = sliders(page)
    assert cell.stdout.splitlines() == ["rank 0    │", "rank 1    │"]
    known = opened(page)
    assert [known[model]["value"] for model in shown] == [7, 8]
    assert all(known[model]["layout"].removeprefix("IPY_MODEL_") in known for model in shown)
    versions = {message["metadata"]["version"] for message in page.comms if message["msg_type"] == "comm_open"}
    assert len(versions) == 1
    for text in cell.mime("text/plain"):
        assert WIDGET_AS_TEXT in text, "what a saved notebook shows"


def test_what_is_moved_in_the_page_moves_on_that_rank_alone_and_calls_back(page: Notebook) -> None:
    _, (_, second) = sliders(page)
    page.ok(
        "%%distributed\nimport threading\nseen = []\n"
        "slider.observe(lambda change: seen.append((change.new, threading.current_thread().name)), 'value')"
    )
    page.move(second, value=42)
    assert page.ok("%%distributed\nslider.value, seen").by_rank == {
        0: "(7, [])\n",
        1: "(42, [(42, 'MainThread')])\n",
    }


def test_a_busy_rank_hears_of_it_when_it_is_free(page: Notebook) -> None:
    _, (first, _) = sliders(page)
    running = page.begin(
        "%%distributed --no-wait\nimport time\nprint('begun', rank)\n"
        "for _ in range(60): time.sleep(0.02)\nprint(slider.value)"
    )
    page.shows(running, "begun 0")
    page.until(lambda: running.idle, WITHIN)
    page.move(first, value=30)
    page.shows(running, "rank 0    │ 7")
    page.comes_true("all(rank.state == 'idle' for rank in now.ranks)")
    assert page.ok("%%rank 0\nslider.value").stdout == "rank 0 │ 30\n"


def test_a_thousand_changes_are_few_messages_and_the_last_one_comes(page: Notebook) -> None:
    _, (first, second) = sliders(page)
    cell = page.ok(
        "%%distributed\nimport time\nfor n in range(1000):\n    slider.value = n % 100\n    time.sleep(0.0003)\n"
        "slider.value = 50 + rank"
    )
    page.until(lambda: states(page, first, "value")[-1:] == [50] and states(page, second, "value")[-1:] == [51], WITHIN)
    assert len(states(page, first, "value")) < 25 * cell.seconds + 5


def test_bytes_reach_the_page(page: Notebook) -> None:
    cell = page.ok("%%rank 1\nimage = ipywidgets.Image(value=b'first')\nimage")
    [model] = models(cell)
    page.ok("%%rank 1\nimage.value = b'second'")

    def values() -> list[bytes]:
        of = [message for message in page.comms if message["content"]["comm_id"] == model]
        having = [message for message in of if message["content"]["data"]["buffer_paths"] == [["value"]]]
        return [bytes(message["buffers"][0]) for message in having]

    page.until(lambda: values() == [b"first", b"second"], WITHIN, lambda: str(values()))


def test_a_notebook_bar_is_the_page_s_own_and_moves(page: Notebook) -> None:
    need(importlib.util.find_spec("tqdm"), "tqdm is not installed")
    cell = page.ok(
        "%%distributed\nimport time\nfrom tqdm.notebook import tqdm\n"
        "for _ in tqdm(range(20), desc='steps'): time.sleep(0.02)"
    )
    assert len(models(cell)) == 2
    assert cell.stderr == ""
    known = opened(page)
    bars = [model for model, state in known.items() if state["_model_name"] == "FloatProgressModel"]
    assert len(bars) == 2
    for bar in bars:
        page.until(partial(lambda bar: states(page, bar, "value")[-1:] == [20], bar), WITHIN)
        page.until(
            partial(lambda bar: states(page, bar, "bar_style") == ["success"], bar), WITHIN
        )  # a message of its own


def test_a_cell_that_no_page_sent_has_text(page: Notebook) -> None:
    sliders(page)
    page.page = False
    cell = page.ok("%%distributed\nslider")
    assert models(cell) == []
    assert "IntSlider(value=7" in cell.all and WIDGET_AS_TEXT in cell.all


def test_a_closed_widget_is_closed_in_the_page_and_then_text(page: Notebook) -> None:
    _, (first, second) = sliders(page)
    cell = page.ok("%%rank 0\nslider.close()\nslider")
    page.until(lambda: bool(closed(page)), WITHIN)
    assert closed(page) == {first}
    assert models(cell) == []
    page.move(second, value=9)
    assert page.ok("%%rank 1\nslider.value").stdout == "rank 1 │ 9\n"


def test_what_a_callback_prints_and_raises_comes_with_the_next_cell(page: Notebook) -> None:
    _, (first, _) = sliders(page)
    page.ok("%%rank 0\ndef called(change):\n    print('called')\n    1 / 0\nslider.observe(called, 'value')")
    page.move(first, value=50)
    cell = page.ok("%%distributed\nprint('next')")
    assert cell.stdout.startswith("rank 0    │ printed after the previous cell:\n          │ called\n")
    assert cell.stdout.endswith("ranks 0-1 │ next\n")
    assert "ZeroDivisionError" in cell.all
    assert cell.all.rindex("called") < cell.all.rindex("next")


def test_the_oldest_of_too_many_are_closed(page: Notebook) -> None:
    _, (first, second) = sliders(page)
    page.ok("import allranks.notebook.comm_proxies as comms\nmost, comms.MOST = comms.MOST, 30")
    try:
        page.ok("%%rank 0\nfor _ in range(20): ipywidgets.IntSlider()")
        page.until(lambda: first in closed(page), WITHIN)
    finally:
        page.ok("comms.MOST = most")
    assert second not in closed(page)
    assert models(page.ok("%%rank 0\nslider")) == []
    assert models(page.ok("%%rank 1\nslider")) == [second]


def test_widgets_of_a_dead_rank_stay_disabled_and_the_healed_world_has_new_ones(page: Notebook) -> None:
    _, (first, second) = sliders(page)
    page.run("%%rank 1\nimport os, signal\nos.kill(os.getpid(), signal.SIGKILL)")
    page.until(lambda: states(page, second, "disabled") == [True], WITHIN)
    page.move(second, value=3)
    page.ok("%distributed heal")
    page.move(first, value=11)
    assert page.ok("%%rank 0\nslider.value").stdout == "rank 0 │ 11\n"
    _, shown = sliders(page)
    assert len(shown) == 2
    page.ok("%distributed down")
    page.until(lambda: all(states(page, model, "disabled") == [True] for model in shown), WITHIN)
    page.move(shown[0], value=5)
    quiet = page.ok("print('quiet')")
    assert quiet.all == "quiet\n"
    assert not closed(page)
