"""The dashboard of a real world: it moves while ranks train, and its menu ends what hangs."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.browser.lab import Notebook
from tests.browser.pictures import open_ranks

pytestmark = [pytest.mark.browser, pytest.mark.timeout(300)]

OpenNotebook = Callable[..., Notebook]

UP = "%load_ext allranks\n%distributed up -n {size} --backend ring"
WATCH = "%distributed watch"
DOWN = "%distributed down"
TRAIN = """%%distributed
import itertools, os, mlx.nn as nn, mlx.optimizers as optim
mx.random.seed(0)
model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
optimizer = optim.SGD(learning_rate=0.1)
def loss(model, x): return (model(x) ** 2).mean()
step = nn.value_and_grad(model, loss)
for n in itertools.count():
    value, grads = step(model, mx.random.normal((32, 64)))
    grads = nn.average_gradients(grads)
    optimizer.update(model, grads)
    mx.eval(model.parameters())
    if n % 20 == 0: print("step", n)
    if mx.distributed.all_max(mx.array(os.path.exists({stop!r}))).item(): break
"done" """
FRAMES = 'Number(document.querySelector(".arw-root").dataset.frames)'
LAST_PROMPT = 'document.querySelectorAll(".jp-CodeCell")[{cell}].querySelector(".jp-InputPrompt").textContent'


def running(notebook: Notebook, cell: int) -> None:
    notebook.page.wait_for_function(f'() => {LAST_PROMPT.format(cell=cell)} === "[*]:"')


def watched(open_notebook: OpenNotebook, cell: str) -> Notebook:
    """Two ranks with a dashboard, which run this cell."""
    notebook = open_notebook(UP.format(size=2), WATCH, cell)
    notebook.begin()
    running(notebook, 2)
    return notebook


def menu(notebook: Notebook, rank: int, item: str) -> float:
    """Choose from a rank's menu; returns when that was."""
    while True:
        notebook.page.locator(f'.arw-rank[data-rank="{rank}"] .arw-more').click()
        found = notebook.page.get_by_role("menuitem", name=item)
        if found.is_enabled():  # not before the page has heard from the kernel
            break
        notebook.page.keyboard.press("Escape")
        notebook.page.wait_for_timeout(100)
    chosen = time.monotonic()
    found.click()
    return chosen


def test_all_three_pictures_move_while_ranks_train(open_notebook: OpenNotebook, tmp_path: Path) -> None:
    stop = tmp_path / "stop"
    notebook = open_notebook(UP.format(size=2), WATCH, TRAIN.format(stop=str(stop)), DOWN)
    notebook.begin()
    running(notebook, 2)
    page = notebook.page
    page.wait_for_function(
        "() => /[kMG]B\\/s/.test(document.querySelector('[aria-label=Topology]')?.textContent ?? '')"
    )
    page.wait_for_function("() => /all_sum/.test(document.querySelector('[aria-label=Throughput]')?.textContent ?? '')")
    open_ranks(page)
    # The first lines may be out of view by now.
    page.wait_for_function(r"() => /step \d+/.test(document.querySelector('.arw-list')?.textContent ?? '')")
    before = page.evaluate(FRAMES)
    page.wait_for_function(f"{FRAMES} >= {before + 3}")  # frames come while the cell runs
    assert page.evaluate(f"() => {LAST_PROMPT.format(cell=2)}") == "[*]:", "and the cell does run"
    stop.touch()
    notebook.finish()
    page.wait_for_function("() => /down/.test(document.querySelector('.arw-root').textContent)")


def test_interrupt_from_the_menu_ends_an_endless_loop(open_notebook: OpenNotebook) -> None:
    loop = "%%distributed\nif rank == 1:\n    while True: pass"
    notebook = watched(open_notebook, loop)
    page = notebook.page
    open_ranks(page)
    page.wait_for_function("() => /line 3/.test(document.querySelector('[aria-label=Ranks]')?.textContent ?? '')")
    chosen = menu(notebook, 1, "Interrupt")
    page.wait_for_function(f'() => {LAST_PROMPT.format(cell=2)} !== "[*]:"')
    took = time.monotonic() - chosen
    print(f"the cell ended {took * 1000:.0f} ms after the click")
    page.wait_for_function("() => /KeyboardInterrupt/.test(document.body.textContent)")


def test_who_others_wait_for_is_seen_first_and_a_button_ends_it(open_notebook: OpenNotebook) -> None:
    late = "%%distributed\nimport time\nif rank == 1:\n    time.sleep(600)\nmx.eval(mx.distributed.all_sum(mx.ones(3)))"
    notebook = watched(open_notebook, late)
    page = notebook.page
    page.wait_for_selector('.arw-rank[data-rank="1"][data-late="true"]')
    assert page.locator('.arw-rank[data-late="true"]').count() == 1
    assert notebook.text('.arw-rank[data-late="true"]').split("\n")[-2:] == ["In[3], line 4", "others wait for it"]
    assert "waiting for rank 1" in notebook.text(".arw-world")
    waits = "Rank 0 waits in all_sum #1 f32[3] for rank 1 (line 4: time.sleep(600)), for "
    assert waits in notebook.text(".arw-advice")
    page.get_by_role("button", name="Interrupt rank 1").click()
    page.wait_for_function(f'() => {LAST_PROMPT.format(cell=2)} !== "[*]:"')
    page.wait_for_selector(".arw-advice", state="hidden")


def test_a_dead_rank_is_healed_by_a_button_that_is_seen(open_notebook: OpenNotebook) -> None:
    dies = "%%distributed\nimport os, signal\nif rank == 1:\n    os.kill(os.getpid(), signal.SIGKILL)"
    notebook = open_notebook(UP.format(size=2), WATCH)
    notebook.run()
    notebook.execute(dies)
    page = notebook.page
    page.wait_for_selector(".arw-advice >> text=Rank 1 died: killed by SIGKILL.")
    page.get_by_role("button", name="Heal", exact=True).click()
    page.wait_for_selector(".arw-said >> text=rank 1 started empty")
    page.wait_for_selector(".arw-advice", state="hidden")
    page.wait_for_selector(".arw-world >> text=ready")


def test_a_dashboard_says_since_when_it_hears_nothing_and_that_the_kernel_ended(open_notebook: OpenNotebook) -> None:
    notebook = open_notebook(UP.format(size=2), WATCH)
    notebook.run()
    page = notebook.page
    page.wait_for_selector('.arw-rank[data-state="idle"]')
    assert page.locator(".arw-silence").is_hidden()
    # As code does that holds the GIL: no thread of the kernel runs, so nothing more is sent.
    page.evaluate(
        """(code) => { window.panel.sessionContext.session.kernel.requestExecute({ code }) }""",
        "import ctypes; ctypes.PyDLL(None).sleep(8)",
    )
    page.wait_for_selector(".arw-silence >> text=No message from the kernel since")
    page.wait_for_selector(".arw-silence", state="hidden")
    page.evaluate("() => window.panel.sessionContext.session.kernel.restart()")
    page.wait_for_selector(".arw-silence >> text=The kernel has ended or was restarted")
    assert page.locator(".arw-root").get_attribute("data-silent") == "true"


def test_break_from_the_menu_frees_ranks_that_wait(open_notebook: OpenNotebook) -> None:
    wait = "%%distributed\nif rank == 0:\n    mx.eval(mx.distributed.all_sum(mx.ones(3)))"
    notebook = watched(open_notebook, wait)
    page = notebook.page
    open_ranks(page)
    page.wait_for_function("() => /waiting/.test(document.querySelector('[aria-label=Ranks]')?.textContent ?? '')")
    chosen = menu(notebook, 0, "Abort")
    page.wait_for_function(f'() => {LAST_PROMPT.format(cell=2)} !== "[*]:"')
    took = time.monotonic() - chosen
    print(f"the cell ended {took * 1000:.0f} ms after the click")
    page.wait_for_function("() => /Re-formed the world/.test(document.body.textContent)")
