"""Functions on the ranks: called like any other, with their own lines in errors, their values back, nothing lost."""

# ruff: noqa: F821  names that only a rank has
from __future__ import annotations

import asyncio
import functools
import os
import re
import subprocess
import sys
import types
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from allranks import Cluster
from allranks.errors import Busy, CannotTravel, CellFailed, CellTimeout, UsageError
from tests.jupyter import Notebook, uncoloured
from tests.needs import need
from tests.waiting import comes_true, idle

WITHIN = 60.0

rank: int
size: int
world: Any
log: Any
"""Set on the ranks, where this module has none of that name."""


class Scale:
    def __init__(self, factor: int) -> None:
        self.factor = factor

    def of(self, x: int) -> int:
        return self.factor * x

    def __call__(self, x: int) -> int:
        return self.of(x) + 1


def awaited(coroutine: Any) -> Any:
    """In a thread of its own: browser tests leave a running loop in this one."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, coroutine).result()


def fails_on_one(x: int) -> int:
    y = x + 1
    if rank == 1:
        raise ValueError(f"no {y}")
    return y


def waits_for_nobody() -> None:
    if rank == 0:
        mx.eval(mx.distributed.all_sum(mx.ones(3)))
    while True:
        pass


def yields() -> Iterator[int]:
    yield 1


# Values.


def test_values_come_in_rank_order_with_the_names_of_a_rank(ring2: Cluster) -> None:
    def names() -> Any:
        return rank, size, world.rank(), mx.distributed.all_sum(mx.array(1)).item(), callable(log)

    assert ring2.apply(names) == [(0, 2, 0, 2, True), (1, 2, 1, 2, True)]


def test_the_functions_own_arguments_are_not_the_cells(ring2: Cluster) -> None:
    def echo(*args: Any, **kwargs: Any) -> Any:
        return args, kwargs

    given = {"timeout": -1, "ranks": "all", "function": 3, "self": 4, "code": 5}
    assert ring2.options(ranks=1, timeout=WITHIN).apply(echo, 1, *"ab", **given) == [((1, "a", "b"), given)]
    assert len(ring2.apply(echo, **given)) == 2


def test_arrays_go_both_ways(ring2: Cluster) -> None:
    array, half = np.arange(6.0).reshape(2, 3), mx.arange(4).astype(mx.bfloat16)
    returned = ring2.apply(lambda a, h: {"a": a * 2, "h": [h + 1]}, array, h=half)
    for each in returned:
        assert isinstance(each["a"], np.ndarray) and (each["a"] == array * 2).all() and each["a"].flags.writeable
        assert each["h"][0].dtype == mx.bfloat16 and each["h"][0].tolist() == [1, 2, 3, 4]


@pytest.mark.parametrize(
    ("function", "returned"),
    [
        (lambda x: x**2, 9),
        (functools.partial(lambda a, b, *, c=1: (a, b, c), 1, c=5), (1, 3, 5)),
        (Scale(2).of, 6),
        (Scale(2), 7),
        (str, "3"),
        (abs, 3),
    ],
    ids=["lambda", "partial", "method", "object", "class", "builtin"],
)
def test_whatever_can_be_called(function: Callable[[int], Any], returned: Any, ring2: Cluster) -> None:
    assert ring2.apply(function, 3) == [returned, returned]


def test_a_closure_brings_what_it_closes_over(ring2: Cluster) -> None:
    weights = mx.ones(3)

    def add(x: float) -> float:
        total: Any = (weights * x).sum().item()
        return float(total)

    assert ring2.apply(add, 2.0) == [6.0, 6.0]


def test_a_coroutine_function_is_awaited_there(ring2: Cluster) -> None:
    async def late(x: int) -> int:
        await asyncio.sleep(0.01)
        return x + rank

    returned: list[Any] = ring2.apply(late, 5)
    assert returned == [5, 6]


# Errors.


def test_an_error_points_at_the_functions_own_line(ring2: Cluster) -> None:
    line = fails_on_one.__code__.co_firstlineno + 3
    with pytest.raises(
        CellFailed, match=rf"^rank 1 raised ValueError: no 4 \(line {line} of test_applied_functions.py\)$"
    ) as caught:
        ring2.apply(fails_on_one, 3)
    error = caught.value.errors[1]
    assert (error.line, error.place) == (line, "test_applied_functions.py")
    shown = uncoloured(error.traceback)
    assert re.search(rf'-> {line} +raise ValueError\(f"no \{{y\}}"\)', shown)
    assert "carry_out" not in shown and "__import__" not in shown and "called_functions.py" not in shown


def test_what_printed_and_raised_is_in_the_result(ring2: Cluster) -> None:
    def tells(x: int) -> None:
        print("got", x)
        fails_on_one(x)

    result = ring2.options(timeout=WITHIN).begin(tells, 1).finish()
    assert result[0].ok and not result[1].ok
    assert [each.stdout for each in result.values()] == ["got 1\n", "got 1\n"]


@pytest.mark.parametrize(
    ("function", "arguments", "error", "said"),
    [
        (
            yields,
            (),
            UsageError,
            "yields is a generator function, and a generator cannot leave its rank: return a list.",
        ),
        ("1 + 1", (), UsageError, "a str is not a function. Cluster.run takes code as a string."),
        (abs, (sys._getframe(),), CannotTravel, "argument 1 of abs: cannot send a frame to another process"),
        (lambda: (n for n in [1]), (), CannotTravel, "rank 0: cannot send a generator to another process"),
    ],
    ids=["generator function", "code", "argument", "value"],
)
def test_what_cannot_be_is_said_in_a_sentence(
    function: Any, arguments: tuple[Any, ...], error: type[Exception], said: str, ring2: Cluster
) -> None:
    with pytest.raises(error, match=said):
        ring2.apply(function, *arguments)
    assert ring2.apply(lambda: 1) == [1, 1]


def test_what_is_closed_over_and_cannot_travel_is_refused_before_anything_runs(ring2: Cluster) -> None:
    with pytest.raises(CannotTravel, match="<lambda>: cannot send a function to another process"):
        ring2.apply(lambda: ring2)


def test_a_value_that_cannot_travel_is_not_lost(ring2: Cluster) -> None:
    with pytest.raises(CannotTravel, match=r"It was kept on the rank as the variable _\.$"):
        ring2.apply(lambda: (n for n in [7, 8]))
    assert ring2.apply(list, []) == [[], []]
    assert [each.value for each in ring2.run("list(_)").values()] == [[7, 8], [7, 8]]


def test_a_variable_of_the_users_of_that_name_is_left_alone(ring2: Cluster) -> None:
    ring2.run("for _ in range(3): pass").check()
    with pytest.raises(CannotTravel) as raised:
        ring2.apply(lambda: (n for n in [7, 8]))
    found = re.search(r"as the variable (_\d+)\.$", str(raised.value))
    assert found is not None, raised.value
    assert [each.value for each in ring2.run(f"_, list({found[1]})").values()] == [(2, [7, 8])] * 2
    ring2.run("del _").check()


def test_options_that_cannot_be_are_refused_where_they_stand(ring2: Cluster) -> None:
    anything: Any = ring2
    with pytest.raises(TypeError, match=r"options\(\): unknown option 'timeouts'. Did you mean 'timeout'\?"):
        anything.options(timeouts=3)
    with pytest.raises(UsageError, match="check='maybe': must be off, warn or strict"):
        anything.options(check="maybe")


# As any cell.


def test_who_waits_and_where_is_said_by_the_functions_lines(ring2: Cluster) -> None:
    first = waits_for_nobody.__code__.co_firstlineno
    cell = ring2.options(ranks=None).begin(waits_for_nobody)
    assert comes_true(ring2, lambda now: now.ranks[0].state == "waiting", WITHIN)
    doing = ring2.snapshot.doing([0, 1])
    assert f"line {first + 2}" in doing
    assert comes_true(ring2, lambda now: now.ranks[1].line in (first + 3, first + 4), WITHIN)
    with pytest.raises(Busy, match=f"line {first + 2}"):
        ring2.apply(abs, 1)
    ring2.interrupt(within=WITHIN)
    assert not cell.finish().ok
    assert ring2.apply(lambda: mx.distributed.all_sum(mx.array(rank)).item()) == [1, 1], "and the world is whole again"


def test_timeout(ring2: Cluster, patient_stop: None) -> None:
    with pytest.raises(CellTimeout):
        ring2.options(timeout=0.5).apply(waits_for_nobody)
    assert idle(ring2)


def test_a_first_failure_frees_those_that_wait_for_it(ring2: Cluster) -> None:
    def fails_before() -> None:
        if rank == 1:
            raise RuntimeError("no shard")
        mx.eval(mx.distributed.all_sum(mx.ones(2)))

    with pytest.raises(CellFailed, match=r"rank 1 raised RuntimeError: no shard .*; rank 0 waited for it"):
        ring2.options(timeout=WITHIN).apply(fails_before)
    assert ring2.apply(lambda: mx.distributed.all_sum(mx.array(1)).item()) == [2, 2]


# Decorated, and awaited.


def test_a_decorated_function_runs_on_the_ranks_when_it_is_called(ring2: Cluster) -> None:
    @ring2.options(ranks=1).remote
    def where(x: int) -> tuple[int, int]:
        """Where it runs."""
        return rank, x

    @ring2.remote
    def everywhere() -> int:
        return rank

    assert where(5) == [(1, 5)] and everywhere() == [0, 1]
    assert where.__doc__ == "Where it runs."
    itself: Any = where
    assert ring2.apply(itself, 5) == [(0, 5), (1, 5)], "on a rank it is the function itself"
    assert awaited(where.call_async(x=2)) == [(1, 2)]


def test_what_is_awaited_leaves_other_tasks_their_turn(ring2: Cluster, tmp_path: Path) -> None:
    go = tmp_path / "go"

    async def main() -> None:
        async def tick() -> None:
            for _ in range(20):
                await asyncio.sleep(0.01)
            go.touch()

        ticking = asyncio.ensure_future(tick())
        code = f"import os, time\nwhile not os.path.exists({str(go)!r}): time.sleep(0.01)\nrank"
        result = await ring2.run_async(code, timeout=WITHIN)
        assert [each.value for each in result.values()] == [0, 1]
        assert await ring2.apply_async(lambda x: x + rank, 1) == [1, 2]
        assert await ring2.options(ranks=1).apply_async(lambda: rank) == [1]
        with pytest.raises(CellFailed):
            await ring2.apply_async(fails_on_one, 1)
        with pytest.raises(CellTimeout):
            await ring2.run_async("while True: pass", timeout=0.3)
        await ticking

    awaited(main())


def test_of_calls_that_begin_at_once_one_runs_and_the_others_are_told(ring2: Cluster) -> None:
    """Otherwise some ranks get one cell first, some another, and both wait for good."""

    async def main() -> list[Any]:
        calls = (ring2.apply_async(lambda: mx.distributed.all_sum(mx.array(1)).item()) for _ in range(4))
        return await asyncio.gather(*calls, return_exceptions=True)

    for _ in range(5):
        came = awaited(asyncio.wait_for(main(), WITHIN))
        assert [each for each in came if not isinstance(each, Busy)].count([2, 2]) >= 1, came
        assert all(each == [2, 2] or isinstance(each, Busy) for each in came), came
    assert idle(ring2)


@pytest.mark.parametrize("when", ["at once", "while it waits"])
def test_a_cancelled_task_stops_its_cell(when: str, ring2: Cluster, patient_stop: None) -> None:
    async def main() -> None:
        task = asyncio.ensure_future(ring2.apply_async(waits_for_nobody))
        await asyncio.sleep(0)
        if when == "while it waits":
            while not any(each.state == "waiting" for each in ring2.snapshot.ranks):
                await asyncio.sleep(0.02)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    awaited(asyncio.wait_for(main(), 2 * WITHIN))
    assert idle(ring2)
    assert ring2.apply(lambda: mx.distributed.all_sum(mx.array(1)).item()) == [2, 2]


# In a notebook, and in a script.

NOTEBOOK = {
    "modules, helpers and classes travel": """
import math
class Circle:
    def __init__(self, r): self.r = r
    def area(self): return scaled(math.pi, self.r ** 2)
def scaled(a, b): return a * b
def fact(n): return 1 if n < 2 else n * fact(n - 1)
def train(r, *, times=2): return times * Circle(r).area() / math.pi, fact(r), rank
cluster.apply(train, 3)""",
    "the newest is called": """
def scaled(a, b): return a * b * 10
print("new")
cluster.apply(train, 1)""",
    "what a cell has defined on the rank stays": """
cluster.run("def scaled(a, b): return -1.0").check()
[value[0] * math.pi for value in cluster.apply(train, 1)]""",
    "classes and their objects": "cluster.apply(Circle(2).area), type(cluster.apply(Circle, 3)[0]) is Circle",
}


def test_functions_of_a_notebook(new_notebook: Callable[..., Notebook]) -> None:
    notebook = new_notebook()
    notebook.ok("import allranks\ncluster = allranks.Cluster(2).up()")
    value = notebook.ok(NOTEBOOK["modules, helpers and classes travel"]).mime("text/plain")[-1]
    assert value == "[(18.0, 6, 0), (18.0, 6, 1)]"
    assert notebook.ok(NOTEBOOK["the newest is called"]).mime("text/plain")[-1] == "[(20.0, 1, 0), (20.0, 1, 1)]"
    assert notebook.ok(NOTEBOOK["what a cell has defined on the rank stays"]).mime("text/plain")[-1] == "[-2.0, -2.0]"
    assert (
        notebook.ok("print(1)\n" + NOTEBOOK["classes and their objects"]).mime("text/plain")[-1]
        == "([-1.0, -1.0], True)"
    )

    said = notebook.ok("def tells():\n    print('hello')\ncluster.apply(tells)")
    assert said.by_rank == {0: "hello\n", 1: "hello\n"}, "what is printed is shown as by a cell of the ranks"

    notebook.ok("steps = 3\ndef lacks(x):\n    y = x\n    return steps + y")
    failed = notebook.run("cluster.apply(lacks, 1)")
    number = notebook.ok("len(In) - 3").mime("text/plain")[-1]
    assert f"name 'steps' is not defined (line 4 of In[{number}])" in failed.error
    assert "steps is defined here and not on the ranks: pass it as an argument, or push it." in failed.error
    assert f"Cell In[{number}], line 4, in lacks(x)" in failed.all
    assert re.search(r"----> 4 +return steps \+ y", failed.all)
    assert "carry_out" not in failed.all and "allranks/" not in failed.traceback

    notebook.ok("def divides(x):\n    return x / 0")
    deep = notebook.run("def calls(x):\n    return divides(x)\ncluster.apply(calls, 1)")
    assert f"Cell In[{int(number) + 3}], line 2, in divides(x)" in deep.all
    assert re.search(r"----> 2 +return x / 0", deep.all)

    awaited = notebook.ok("result = await cluster.run_async('print(rank)')\nawait cluster.apply_async(lambda: rank)")
    assert awaited.mime("text/plain")[-1] == "[0, 1]"


def test_an_interrupt_stops_what_a_notebook_awaits(new_notebook: Callable[..., Notebook]) -> None:
    notebook = new_notebook()
    notebook.ok(
        "import allranks\ncluster = allranks.Cluster(2).up()\ndef spin():\n    print('on')\n    while True: pass"
    )
    running = notebook.begin("await cluster.apply_async(spin)")
    notebook.shows(running, "on")
    notebook.interrupt()
    notebook.finish(running)
    assert running.error.startswith(("KeyboardInterrupt", "CancelledError"))
    notebook.ok(
        f"assert cluster._live.ranks.monitor.wait(lambda: not cluster._live.ranks.monitor.busy([0, 1]), {WITHIN})"
    )
    assert notebook.ok("cluster.apply(lambda: rank)").mime("text/plain")[-1] == "[0, 1]"


SCRIPT = """
import allranks

def helper(x):
    return x + rank

def total(x):
    return mx.distributed.all_sum(mx.array(helper(x))).item()

def fails():
    raise KeyError("here")

if __name__ == "__main__":
    with allranks.Cluster(2) as cluster:
        print(cluster.apply(total, 1))
        try:
            cluster.apply(fails)
        except allranks.errors.CellFailed as error:
            print(error)
"""


def test_functions_of_a_script(tmp_path: Path) -> None:
    (tmp_path / "work.py").write_text(SCRIPT)
    run = subprocess.run(
        [sys.executable, "work.py"], cwd=tmp_path, capture_output=True, text=True, timeout=200, check=True
    )
    assert run.stdout == "[3, 3]\nranks 0-1 raised KeyError: 'here' (line 11 of work.py)\n"


SHAPES = """
def checked(x):
    raise KeyError("module")
"""
LINES = """
import sys

import cloudpickle
import allranks
import shapes

class Batch:
    def fails(self):
        raise KeyError("method")

def nested():
    def inner():
        raise KeyError("nested")
    return inner()

def through_module():
    return shapes.checked(1)

absent = lambda: {}["lambda"]

def sums():
    mx.eval(mx.distributed.all_sum(mx.ones(3)))

def waits(go):
    import os, time
    while rank == 1 and not os.path.exists(go):
        time.sleep(0.01)
    sums()

if __name__ == "__main__":
    cloudpickle.register_pickle_by_value(shapes)
    print(cloudpickle.__version__)
    with allranks.Cluster(2) as cluster:
        for function in (Batch().fails, nested, through_module, absent, lambda: shapes.checked(2)):
            result = cluster.options().begin(function).finish()
            print(result.failure(), result.errors[0].traceback)
        print(cluster.options().begin(shapes.checked, 1).finish().failure())
        (call,) = cluster.options(timeline=True).begin(sums).finish().timeline.ranks[1].calls
        print("timeline:", call.op, call.line, call.source)
        cell = cluster.options().begin(waits, sys.argv[1])
        assert cluster._live.ranks.monitor.wait(
            lambda: cluster.snapshot.ranks[0].state == "waiting" and cluster.snapshot.ranks[1].source, 60
        )
        print(cluster.snapshot.doing([0, 1]))
        open(sys.argv[1], "w").close()
        assert cell.finish().ok
"""


@pytest.fixture(scope="module")
def earlier_cloudpickle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Version 3.1.2, which sends the file names of code; 3.1.3 and later send ``<dynamic-code>`` in their place."""
    folder = tmp_path_factory.mktemp("cloudpickle")
    command = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", str(folder), "cloudpickle==3.1.2"]
    installed = subprocess.run(command, capture_output=True, text=True)
    need(installed.returncode == 0, f"cloudpickle 3.1.2 cannot be installed: {installed.stderr.strip()[-300:]}")
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("version", ["installed", "3.1.2"])
def test_every_function_keeps_its_file_and_lines(version: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """In errors, in the state of a rank that waits, and in the timeline, with either version of cloudpickle."""
    env = dict(os.environ)
    if version != "installed":
        env["PYTHONPATH"] = str(request.getfixturevalue("earlier_cloudpickle"))
    (tmp_path / "shapes.py").write_text(SHAPES)
    (tmp_path / "work.py").write_text(LINES)
    run = subprocess.run(
        [sys.executable, "work.py", str(tmp_path / "go")], cwd=tmp_path, env=env, capture_output=True, text=True
    )
    assert run.returncode == 0, run.stderr
    shown = uncoloured(run.stdout)
    assert shown.startswith("3.1.2\n") == (version == "3.1.2")
    assert "dynamic-code" not in shown
    for text in (
        "KeyError: 'method' (line 10 of work.py)",
        "KeyError: 'nested' (line 14 of work.py)",
        "KeyError: 'module' (line 18 of work.py)",
        "KeyError: 'lambda' (line 20 of work.py)",
        "KeyError: 'module' (line 35 of work.py)",
        "KeyError: 'module' (line 3 of shapes.py)",
        'raise KeyError("method")',
        'raise KeyError("nested")',
        f"File {tmp_path / 'shapes.py'}:3, in checked(x)",
        'raise KeyError("module")',
        "timeline: all_sum 23 mx.eval(mx.distributed.all_sum(mx.ones(3)))",
        "rank 0 blocked in all_sum #2 f32[3] (line 23)",
        "rank 1 running line 28: time.sleep(0.01)",
    ):
        assert text in shown, shown


def test_the_example_of_the_documentation(tmp_path: Path) -> None:
    text = (Path(__file__).parents[2] / "docs" / "api.md").read_text(encoding="utf-8")
    (example,) = [block for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL) if "cluster.apply(" in block]
    (tmp_path / "example.py").write_text(example)
    subprocess.run([sys.executable, "example.py"], cwd=tmp_path, timeout=200, check=True)


# ipyparallel's page on its direct interface, line for line: https://ipyparallel.readthedocs.io/en/latest/tutorial/direct.html

PAGE = [
    # rc = ipp.Client(); rc.ids; dview = rc[:]
    ("import allranks, asyncio\nrc = allranks.Cluster(4).up()\nlist(range(rc.size))", "[0, 1, 2, 3]"),
    # dview['a'] = 5; dview['b'] = 10
    ("rc.push({'a': 5})\nrc.push({'b': 10})", None),
    # dview.apply(lambda x: a+b+x, 27)
    ("rc.apply(lambda x: a+b+x, 27)", "[42, 42, 42, 42]"),
    # rc[::2].execute('c=a+b'); rc[1::2].execute('c=a-b'); dview['c']
    ("rc.run('c=a+b', ranks=range(0, 4, 2)).check()\nrc.run('c=a-b', ranks=range(1, 4, 2)).check()\nrc.pull('c')",
     "[15, -5, 15, -5]"),
    # def wait(t): ...
    ("def wait(t):\n    import time\n    tic = time.time()\n    time.sleep(t)\n    return time.time()-tic", None),
    # ar = dview.apply_async(wait, 2); ar.get()
    ("ar = asyncio.ensure_future(rc.apply_async(wait, 2))\nmin(await ar) > 1.9", "True"),
    # ar = dview.apply_async(wait, 10); ar.ready()
    ("ar = asyncio.ensure_future(rc.apply_async(wait, 10))\nar.done()", "False"),
    # ar.get(1): TimeoutError
    ("try:\n    await asyncio.wait_for(ar, 1)\nexcept TimeoutError as error:\n    print(type(error).__name__)\n"
     "assert rc._live.ranks.monitor.wait(lambda: not rc._live.ranks.monitor.busy(range(4)), 60)",
     "TimeoutError"),
    # dview.targets = [0, 2]; ar = dview.apply(lambda : 10); ar.get()
    ("dview = rc.options(ranks=[0, 2])\ndview.apply(lambda : 10)", "[10, 10]"),
    # dview.apply(lambda : 42)
    ("rc.apply(lambda : 42)", "[42, 42, 42, 42]"),
    # dview.push(dict(a=1.03234, b=3453)); dview.pull('a'); dview.pull('b', targets=0)
    ("rc.push(dict(a=1.03234, b=3453))\nrc.pull('a'), rc.pull('b', ranks=0)",
     "([1.03234, 1.03234, 1.03234, 1.03234], [3453])"),
    # ar = rc[:].apply_async(time.sleep, 5); rc.send_signal(signal.SIGINT)
    ("import time\nar = rc.options().begin(time.sleep, 600)\nrc.interrupt(within=60)\nar.finish().failure()",
     "'ranks 0-3 raised KeyboardInterrupt'"),
    # @dview.remote(block=True)
    ("@rc.remote\ndef getpid():\n    import os\n    return os.getpid()\nlen(set(getpid()))", "4"),
]  # fmt: skip


@pytest.mark.slow
def test_the_page_of_ipyparallels_direct_interface(new_notebook: Callable[..., Notebook]) -> None:
    notebook = new_notebook()
    for cell, shown in PAGE:
        out = notebook.ok(cell)
        assert shown is None or [*out.mime("text/plain"), out.stdout.strip()][0] == shown, cell


def test_what_a_cell_of_the_rank_made_of_a_name_stays(ring2: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """Modules, classes without functions and what was imported, too; what an earlier call brought is brought again."""
    script = types.ModuleType("__main__")
    monkeypatch.setitem(sys.modules, "__main__", script)
    exec(
        "import json as given\nclass Config: lr = 1\ndef helper(): return 1\ndef f(): return given.__name__, Config.lr",
        vars(script),
    )
    ring2.run("import math as given\nclass Config: lr = 2").check()
    assert ring2.apply(script.f) == [("math", 2)] * 2
    exec("def g(): return helper()", vars(script))
    assert ring2.apply(script.g) == [1, 1]
    exec("def helper(): return 2", vars(script))
    assert ring2.apply(script.g) == [2, 2]
    ring2.run("del given, Config").check()
    assert ring2.apply(script.f) == [("json", 1)] * 2
