"""What a user holds: a cluster from Python, its arguments, its status, and values to and from its ranks."""

from __future__ import annotations

import os
import re
import signal
import socket
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from threading import Thread
from types import ModuleType
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx.utils import tree_flatten

import allranks
from allranks.cluster.start_and_end import StartAndEnd
from allranks.errors import (
    AllranksError,
    Busy,
    CannotStart,
    CannotTravel,
    CellInterrupted,
    NoCluster,
    RankError,
    UsageError,
    WorldBroken,
    WouldHang,
)
from allranks.head.world import forming
from allranks.head.world.ranks import Ranks
from allranks.machine.tcp_ports import free_ports
from allranks.messages.requests import DecidePush, Push
from allranks.notebook.feed_dashboards import Nowhere
from allranks.pickling import pickle_values
from allranks_backends.views import Snapshot
from tests.waiting import comes_true, idle

WITHIN = 60.0

nn: Any = pytest.importorskip("mlx.nn")  # it has no types of its own

# Up and down.


def test_the_readmes_lines() -> None:
    with allranks.Cluster(n=4, backend="ring") as cluster:
        result = cluster.run("mx.distributed.all_sum(mx.ones(10))", ranks=None, timeout=None)
        assert result.ok
        assert result[0].value.tolist() == [4.0] * 10
        assert result[0].stdout == ""
        assert result[2].error is None
        cluster.push({"lr": 1e-3})
        assert cluster.pull("lr") == [1e-3] * 4
        cluster.run("loss = rank * lr")
        assert cluster.pull("loss") == [0.0, 1e-3, 2e-3, 3e-3]
    assert cluster.state == "down"


@pytest.mark.slow
def test_one_rank_is_a_world_too() -> None:
    with allranks.Cluster(1) as cluster:
        assert cluster.run("mx.distributed.all_sum(mx.ones(2)).tolist(), rank, size")[0].value == ([1.0, 1.0], 0, 1)


@pytest.mark.slow
def test_auto_says_what_it_chose() -> None:
    cluster = allranks.Cluster(2)
    assert cluster.backend == "auto"
    with cluster:
        assert cluster.backend in ("ring", "nccl", "jaccl", "jaccl-ring")
        assert cluster.chosen_because.startswith(f"{cluster.backend}, since ")


def test_nothing_starts_before_up_and_down_is_harmless() -> None:
    cluster = allranks.Cluster(2)
    assert cluster.state == "down"
    assert repr(cluster) == "<Cluster 'main': down>"
    cluster.down()
    with pytest.raises(NoCluster, match="is down"):
        cluster.run("1")
    with pytest.raises(NoCluster):
        _ = cluster.connection_file


@pytest.mark.slow
def test_a_cluster_can_go_up_again_after_down() -> None:
    cluster = allranks.Cluster(2)
    for _ in range(2):
        with cluster:
            assert cluster.run("mx.distributed.all_sum(mx.array(1)).item()")[1].value == 2
    with cluster, pytest.raises(UsageError, match="already up"):
        cluster.up()


@pytest.mark.slow
def test_of_threads_that_start_a_cluster_at_once_one_does() -> None:
    """No cluster would end the ranks that a second call had started."""
    cluster = allranks.Cluster(2, backend="ring")
    try:
        with ThreadPoolExecutor(3) as threads:
            begun = [threads.submit(cluster.up) for _ in range(3)]
        errors = [each.exception() for each in begun]
        assert errors.count(None) == 1, errors
        for error in filter(None, errors):
            assert isinstance(error, UsageError) and ("by another thread" in str(error) or "already up" in str(error))
        assert cluster.run("rank").ok
    finally:
        cluster.down()


@pytest.mark.slow
def test_two_clusters_live_side_by_side(ring2: allranks.Cluster) -> None:
    with allranks.Cluster(2, name="other") as other:
        other.push({"mark": "other"})
        ring2.push({"mark": "first"})
        assert (other.pull("mark"), ring2.pull("mark")) == (["other"] * 2, ["first"] * 2)
        assert other.run("mx.distributed.all_sum(mx.array(1)).item()")[0].value == 2


@pytest.mark.slow
def test_environment_folder_and_interpreter_of_the_ranks(tmp_path: Path) -> None:
    with allranks.Cluster(2, env={"GREETING": "grüß dich"}, cwd=tmp_path, python=sys.executable) as cluster:
        result = cluster.run("import os, sys; os.environ['GREETING'], os.getcwd(), sys.executable")
        assert result[1].value == ("grüß dich", str(tmp_path), sys.executable)


@pytest.mark.slow
def test_several_connections_for_a_ring_link() -> None:
    with allranks.Cluster(2, backend="ring", connections=3) as cluster:
        assert cluster.run("mx.distributed.all_sum(mx.ones(1 << 20))[-1].item()")[0].value == 2


@pytest.mark.slow
def test_a_hostfile_of_this_machine(tmp_path: Path) -> None:
    hostfile = tmp_path / "hosts.json"
    hostfile.write_text('[{"ssh": "127.0.0.1", "ips": ["127.0.0.1"]}, {"ssh": "127.0.0.1", "ips": ["127.0.0.1"]}]')
    with allranks.Cluster(hostfile=hostfile) as cluster:
        assert cluster.size == 2
        assert cluster.run("size")[1].value == 2


@pytest.mark.slow
def test_a_port_that_was_taken_since_it_was_chosen_costs_another_try(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        taken = [other.getsockname()[1]]

        def choose(count: int, *args: Any) -> list[int]:
            ports = free_ports(count, *args)
            if taken:
                ports[0] = taken.pop()
            else:
                monkeypatch.setattr(forming, "FORM_WITHIN", within)
            return ports

        within = forming.FORM_WITHIN
        monkeypatch.setattr(forming, "FORM_WITHIN", 5.0)  # the first try fails, however long it may take
        monkeypatch.setattr("allranks.hosts.local.free_ports", choose)
        with allranks.Cluster(2, backend="ring") as cluster:
            assert cluster.run("mx.distributed.all_sum(mx.array(1)).item()")[1].value == 2
        assert not taken


def test_hosts_may_be_named_as_in_the_magic() -> None:
    assert allranks.Cluster(hosts="localhost, localhost").size == 2
    with pytest.raises(UsageError, match="no hosts given"):
        allranks.Cluster(hosts=" ,")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"n": 0}, "-n 0: a world needs at least 1 rank"),
        ({"n": 2, "backend": "gloo"}, "unknown backend 'gloo'"),
        ({"n": 2, "hosts": ["localhost"]}, "cannot be combined"),
        ({"hosts": ["localhost"], "ranks_per_host": 0}, "--ranks-per-host 0"),
        ({"n": 2, "connections": 0}, "--connections 0"),
        ({"n": 2, "cwd": "/nowhere/at/all"}, "--cwd /nowhere/at/all: no such folder"),
        ({"n": 2, "python": "/nowhere/python"}, "--python /nowhere/python: no such program"),
        ({"n": 2, "name": "../up"}, "--name '../up'"),
        ({"n": 2, "name": "-n"}, "--name '-n'"),
        ({"n": 2, "name": "a" * 65}, "up to 64 letters"),
        ({"n": 2, "name": None}, "--name None"),
        ({"hostfile": "/nowhere/hosts.json"}, "/nowhere/hosts.json"),
    ],
)
def test_arguments_that_cannot_be(arguments: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=re.escape(said)):
        allranks.Cluster(**arguments)


# What it shows.


def test_the_status_names_every_rank(ring4: allranks.Cluster) -> None:
    ring4.run("mx.distributed.all_sum(mx.ones(10))")
    lines = repr(ring4).splitlines()
    assert lines[0] == 'world "ring4" · 4 ranks · ring · ready'
    assert lines[1].split()[:4] == ["rank", "host", "pid", "state"]
    assert [line.split()[0] for line in lines[2:6]] == ["0", "1", "2", "3"]
    pids = [int(line.split()[2]) for line in lines[2:6]]
    assert pids == [result.value for result in ring4.run("import os; os.getpid()").values()]
    html = ring4._repr_html_()
    assert html is not None and all(str(pid) in html for pid in pids) and "<script" not in html


def test_the_snapshot_tells_what_a_rank_is_doing(ring2: allranks.Cluster, tmp_path: Path) -> None:
    go = tmp_path / "go"
    cell = ring2.begin(
        f"import pathlib, time\nif rank == 0:\n    while not pathlib.Path({str(go)!r}).exists():\n"
        "        time.sleep(0.02)\ntotal = mx.distributed.all_sum(mx.ones((3, 4)))\nmx.eval(total)"
    )
    views: list[Any] = []

    def told(now: Snapshot) -> bool:
        views[:] = now.ranks
        return views[0].state == "running" and views[0].line in (3, 4) and views[1].state == "waiting"

    assert comes_true(ring2, told, WITHIN), views
    assert views[1].doing.startswith("blocked in all_sum #") and views[1].doing.endswith("f32[3,4] (line 5)")
    assert "running line" in views[0].doing
    go.touch()
    assert cell.finish(WITHIN).ok
    assert idle(ring2)


def test_memory_is_told_in_bytes(ring2: allranks.Cluster) -> None:
    ring2.run("ballast = mx.ones(10_000_000); mx.eval(ballast)")

    def told(now: Snapshot) -> bool:
        return all((view.mlx_active or 0) >= 40_000_000 and (view.rss or 0) > 40_000_000 for view in now.ranks)

    assert comes_true(ring2, told, WITHIN), ring2.status()
    ring2.run("del ballast")


def test_a_failed_rank_says_so_until_its_next_cell(ring2: allranks.Cluster) -> None:
    ring2.run("assert rank == 0")
    assert [view.state for view in ring2.snapshot.ranks] == ["idle", "failed"]
    assert ring2.snapshot.ranks[1].doing == "failed: AssertionError"
    ring2.run("1")
    assert [view.state for view in ring2.snapshot.ranks] == ["idle", "idle"]


@pytest.mark.slow
def test_a_stopped_process_is_told_from_a_dead_one(ring2: allranks.Cluster) -> None:
    pid = ring2.snapshot.ranks[1].pid
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    try:
        # It says nothing any more: the other rank's reports are the events that make this look again.
        assert comes_true(ring2, lambda now: now.ranks[1].state == "suspended", WITHIN)
        assert ring2.snapshot.ranks[0].state == "idle"
    finally:
        os.kill(pid, signal.SIGCONT)
    assert comes_true(ring2, lambda now: now.ranks[1].state == "idle", WITHIN)
    assert ring2.run("rank")[1].value == 1


# Values.

VALUES: dict[str, Any] = {
    "number": 3.5,
    "text": "grüße \U0001f600 \x00",
    "none": None,
    "big": 1 << 200,
    "bytes": b"\xff\x00",
    "nested": {"a": [1, {"b": (2, {3})}], "π": 3.14},
    "ints": np.arange(12).reshape(3, 4)[:, ::2],
    "empty": np.zeros((0, 3), "float16"),
    "scalar": np.float32(1.5),
    "strings": np.array(["a", "bcd"]),
}


@pytest.mark.parametrize("name", VALUES)
def test_plain_values_come_back_as_they_went(name: str, ring2: allranks.Cluster) -> None:
    value = VALUES[name]
    ring2.push({"moved": value})
    for back in ring2.pull("moved"):
        assert type(back) is type(value)
        if isinstance(value, np.ndarray):
            assert (back.dtype, back.shape) == (value.dtype, value.shape)
            assert np.array_equal(back, value)
        else:
            assert back == value


@pytest.mark.parametrize("dtype", ["bool_", "uint8", "int64", "float16", "bfloat16", "float32", "complex64"])
def test_mlx_arrays_come_back_as_they_went(dtype: str, ring2: allranks.Cluster) -> None:
    whole = (mx.arange(24) % 5).reshape(4, 6).astype(getattr(mx, dtype))
    for array in (whole, whole.T, whole[::2, 1:4], whole[0, 0], whole[:0]):
        ring2.push({"moved": array})
        for back in ring2.pull("moved"):
            assert (back.dtype, back.shape) == (array.dtype, array.shape)
            assert mx.array_equal(back, array).item()


def test_a_models_parameters_travel_both_ways(ring2: allranks.Cluster) -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 2))
    ring2.push({"weights": model.parameters()})
    ring2.run("""
import mlx.nn as nn
model = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 2))
model.update(weights)
parameters = model.parameters()
""")
    there = dict(tree_flatten(model.parameters()))
    for parameters in ring2.pull("parameters"):
        back = dict(tree_flatten(parameters))
        assert back.keys() == there.keys()
        assert all(mx.array_equal(back[name], there[name]).item() for name in there)


@pytest.mark.slow
def test_a_hundred_megabytes_travel_as_bytes(ring2: allranks.Cluster) -> None:
    array = np.arange(13_000_000, dtype="float64")
    ring2.push({"large": array}, ranks=0)
    assert ring2.run("float(large.sum()), large.nbytes", ranks=0)[0].value == (float(array.sum()), 104_000_000)
    [back] = ring2.pull("large", ranks=[0])
    assert np.array_equal(back, array)
    ring2.run("del large", ranks=0)


def test_a_pending_collective_can_be_pulled_from_all_ranks(ring2: allranks.Cluster) -> None:
    ring2.run("pending = mx.distributed.all_sum(mx.ones(3))")
    assert [array.tolist() for array in ring2.pull("pending")] == [[2.0] * 3] * 2


def test_a_dotted_path_is_followed(ring2: allranks.Cluster) -> None:
    ring2.run("import types; state = types.SimpleNamespace(step=types.SimpleNamespace(count=rank + 7))")
    assert ring2.pull("state.step.count") == [7, 8]
    with pytest.raises(AllranksError, match=r"rank 0 has no 'state\.nothing'"):
        ring2.pull("state.nothing")


@dataclass
class Settings:
    rate: float


def test_functions_and_classes_of_the_notebook_travel(ring2: allranks.Cluster) -> None:
    ring2.push({"double": lambda x: 2 * x})
    assert ring2.run("double(rank + 1)")[1].value == 4


def test_pushed_to_some_ranks_only(ring2: allranks.Cluster) -> None:
    ring2.push({"mine": "all"})
    ring2.push({"mine": "one"}, ranks=1)
    assert ring2.pull("mine") == ["all", "one"]


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("stuck = (i for i in range(3))", "generator"),
        ("import threading; stuck = {'a': [threading.Lock()]}", "dict"),
        ("stuck = world", "Group"),
    ],
)
def test_what_cannot_travel_is_named_with_its_rank(code: str, kind: str, ring2: allranks.Cluster) -> None:
    ring2.run(code)
    with pytest.raises(CannotTravel, match=rf"rank 0: stuck: cannot send an? {kind} to another process") as caught:
        ring2.pull("stuck")
    assert "Arrays, numbers, strings" in str(caught.value)
    result = ring2.run("stuck")
    assert result.ok, "a value that stays is no failure of the cell"
    with pytest.raises(CannotTravel, match=f"rank 1: cannot send an? {kind}"):
        _ = result[1].value
    assert ring2.run("'alive'")[0].value == "alive"


def test_an_object_whose_pickling_raises_or_prints_does_no_harm(ring2: allranks.Cluster) -> None:
    result = ring2.run("""
class Stubborn:
    def __reduce__(self):
        raise RuntimeError("I stay here")
Stubborn()""")
    assert result.ok
    with pytest.raises(CannotTravel, match="I stay here"):
        _ = result[0].value
    assert ring2.run("'alive'")[0].value == "alive"


ONLY_ON_RANK_0 = """
import sys, types
if rank == 0:
    {name} = sys.modules["{name}"] = types.ModuleType("{name}")
    exec("class Model: pass", {name}.__dict__)
"""


@pytest.mark.parametrize("verb", ["push", "scatter"])
def test_a_value_that_one_rank_cannot_load_is_set_on_none(
    ring2: allranks.Cluster, verb: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = f"only_on_rank_0_for_{verb}"
    module = ModuleType(name)
    exec("class Model: pass", module.__dict__)
    monkeypatch.setitem(sys.modules, name, module)
    ring2.run(ONLY_ON_RANK_0.format(name=name) + "kept = other = 'old'").check()
    pushed = [module.Model(), module.Model()]
    with pytest.raises(RankError) as refused:
        getattr(ring2, verb)({"kept": pushed, "other": [1, 2]})
    assert str(refused.value).startswith(
        f"rank 1 could not load kept, other: ModuleNotFoundError: No module named '{name}'. No rank has the new values."
    )
    assert ring2.pull("kept") == ring2.pull("other") == ["old", "old"]
    ring2.push({"kept": "new"})
    assert ring2.pull("kept") == ["new", "new"]


@pytest.fixture
def before_the_last_is_bound(ring2: allranks.Cluster, monkeypatch: pytest.MonkeyPatch) -> list[Callable[[], object]]:
    """What is called in a push once rank 0 is to bind the values, before rank 1 is."""
    assert ring2._live.ranks is not None
    lifeline, calls, bound = ring2._live.ranks.lifeline, list[Callable[[], object]](), list[str]()
    ask = lifeline.ask

    def asked(uuid: str, question: Any, *args: Any) -> Any:
        if isinstance(question, DecidePush) and question.bind:
            bound.append(uuid)
            if len(bound) == 2:
                calls[0]()
        return ask(uuid, question, *args)

    monkeypatch.setattr(lifeline, "ask", asked)
    return calls


def test_ctrl_c_while_values_are_set_leaves_no_rank_behind(
    ring2: allranks.Cluster, before_the_last_is_bound: list[Callable[[], object]]
) -> None:
    ring2.run("kept = 'old'").check()
    before_the_last_is_bound.append(lambda: signal.raise_signal(signal.SIGINT))
    with pytest.raises(CellInterrupted, match="stopped once ranks 0-1 had the new values of kept"):
        ring2.push({"kept": "new"})
    assert ring2.pull("kept") == ["new", "new"]


def test_a_rank_that_has_lost_the_values_meanwhile_is_named_and_those_that_have_them(
    ring2: allranks.Cluster, before_the_last_is_bound: list[Callable[[], object]]
) -> None:
    ring2.run("kept = 'old'").check()
    before_the_last_is_bound.append(
        lambda: ring2._live.ask_all(Push(push=1), 1, pickle_values.pack({"kept": "another's"}))
    )
    with pytest.raises(RankError, match=r"^rank 1: kept: LookupError: .*\. Rank 0 has the new values of kept\.$"):
        ring2.push({"kept": "new"})
    assert ring2.pull("kept") == ["new", "old"]


def test_what_cannot_be_pushed_is_named(ring2: allranks.Cluster) -> None:
    with pytest.raises(CannotTravel, match=r"^steps: cannot send a generator"):
        ring2.push({"fine": 1, "steps": (i for i in range(3))})
    with pytest.raises(UsageError, match="'not a name'"):
        ring2.push({"not a name": 1})


def test_a_name_that_is_not_there(ring2: allranks.Cluster) -> None:
    ring2.run("only_here = 1", ranks=0)
    with pytest.raises(UsageError, match="rank 1 has no variable 'only_here'") as refused:
        ring2.pull("only_here")
    assert str(refused.value).endswith("rank 0 has it: %distributed pull only_here -r 0")
    assert ring2.pull("only_here", ranks=0) == [1]


TRANSFORMED = """
import mlx.nn as nn
def f(x): return (x ** 2).sum()
line = nn.Linear(1, 1)
line.update({"weight": mx.array([[2.0]]), "bias": mx.array([1.0])})
class Step:
    slope = mx.grad(f)  # does not become a method, as MLX's own does not
made = {
    "grad": mx.grad(f), "twice": mx.grad(mx.grad(lambda x: x ** 3)), "vmap": mx.vmap(f), "both": mx.value_and_grad(f),
    "checkpoint": mx.checkpoint(f), "compile": mx.compile(mx.grad(f)),
}
train = nn.value_and_grad(line, lambda model, x: model(x).sum())
"""
APPLIED = """
x = mx.array([1.0, 3.0])
[
    made["grad"](x).tolist(), made["twice"](mx.array(2.0)).item(), made["vmap"](mx.ones((2, 2))).tolist(),
    made["both"](x)[1].tolist(), made["checkpoint"](x).item(), made["compile"](x).tolist(), Step().slope(x).tolist(),
    train(line, mx.array([[5.0]]))[1]["weight"].item(), train(line, mx.array([[5.0]]))[0].item(),
]
"""


@pytest.mark.slow
def test_transformed_functions_arrive_as_what_they_are() -> None:
    right = [[2, 6], 12, [2, 2], [2, 6], 10, [2, 6], [2, 6], 5, 11]
    with allranks.Cluster(1, backend="ring", name="transformed") as cluster:
        cluster.run(TRANSFORMED).check()
        assert cluster.run(APPLIED)[0].value == right
        cluster.resize(2, source=0)
        assert cluster.run(APPLIED).check()[1].value == right
        gradient = cluster.pull("made", ranks=0)[0]["grad"]
        import mlx.core as mx

        assert gradient(mx.array([1.0, 3.0])).tolist() == [2, 6]


def test_what_waits_for_all_ranks_is_not_pulled_from_some(ring2: allranks.Cluster) -> None:
    ring2.run("t = mx.distributed.all_sum(mx.ones(3))")
    with pytest.raises(WouldHang, match="t on rank 0 is not evaluated yet: it needs a collective"):
        ring2.pull("t", ranks=0)
    assert [each.tolist() for each in ring2.pull("t")] == [[2, 2, 2]] * 2


@pytest.mark.slow
def test_debug_goes_to_the_rank_that_raised(ring2: allranks.Cluster) -> None:
    ring2.run("if rank == 1:\n    raise ValueError\nmx.eval(mx.distributed.all_sum(mx.ones(3)))")
    assert ring2.to_debug() == 1
    ring2.run("raise ValueError", ranks=0)
    assert ring2.to_debug() == 0, "the newest"
    ring2.run("1")
    with pytest.raises(UsageError, match="none raised in its last cell"):
        ring2.to_debug()


def test_numbers_cannot_be_joined(ring2: allranks.Cluster) -> None:
    ring2.run("loss = mx.array(1.0)")
    with pytest.raises(UsageError, match="cannot join loss: it has no axis to join along"):
        ring2.gather("loss")


@pytest.mark.slow
def test_names_of_ours_that_the_user_takes_are_the_users(worlds: object) -> None:
    with allranks.Cluster(2, backend="ring", name="taken") as cluster:
        first = cluster.run("for rank in range(5): pass\nsize = 1024")
        assert first[1].stderr.splitlines() == [
            "rank is now your own variable: world.rank() is this rank's number.",
            "size is now your own variable: world.size() is the number of ranks.",
        ]
        assert cluster.run("rank += 1")[1].stderr == "", "said once"
        assert {"rank", "size"} <= {row.name for row in cluster.vars().rows}
        cluster.resize(3)
        told = cluster.run("rank, size, world.rank(), world.size()")
        assert [each.value for each in told.values()] == [(5, 1024, 0, 3), (5, 1024, 1, 3), (2, 3, 2, 3)]
        cluster.run("rank, size = world.rank(), world.size()")
        cluster.resize(2)
        assert [each.value for each in cluster.run("rank, size").values()] == [(0, 2), (1, 2)]


@pytest.mark.parametrize("ranks", [[9], [-1], [], 2])
def test_ranks_that_are_not_there(ranks: Any, ring2: allranks.Cluster) -> None:
    for ask in (ring2.run, ring2.pull):
        with pytest.raises(UsageError, match=r"no rank|no ranks given"):
            ask("rank", ranks=ranks)


def test_a_busy_rank_refuses_values_and_cells(ring2: allranks.Cluster, tmp_path: Path) -> None:
    go = tmp_path / "go"
    cell = ring2.begin(
        f"import pathlib, time\nwhile not pathlib.Path({str(go)!r}).exists():\n    time.sleep(0.02)", ranks=[1]
    )
    for refused in (lambda: ring2.run("1"), lambda: ring2.pull("rank"), lambda: ring2.push({"a": 1})):
        with pytest.raises(Busy, match="rank 1 is still busy"):
            refused()
    assert ring2.run("'free'", ranks=0)[0].value == "free"
    go.touch()
    assert cell.finish(WITHIN).ok


# Death.


class Touch(Nowhere):
    """A screen that makes a file as soon as it has something to show."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def blocks(self, blocks: list[Any]) -> None:
        self.path.touch()


def test_a_cluster_that_is_ended_while_it_starts_is_said_to_be(monkeypatch: pytest.MonkeyPatch) -> None:
    choose = StartAndEnd._choose_backend

    def ends(start: StartAndEnd, ranks: Ranks) -> None:
        choose(start, ranks)
        thread = Thread(target=cluster.down)
        thread.start()
        thread.join()

    monkeypatch.setattr(StartAndEnd, "_choose_backend", ends)
    cluster = allranks.Cluster(2, backend="ring")
    with pytest.raises(CannotStart, match="was ended while it was being started"):
        cluster.up()
    assert cluster.state == "down"
    monkeypatch.undo()
    with cluster:
        assert cluster.state == "whole"


def test_death_is_known_at_once_and_the_others_keep_their_variables() -> None:
    with allranks.Cluster(3, backend="ring") as cluster:
        cluster.run("kept = rank * 10")
        pid = cluster.snapshot.ranks[1].pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        # Half a second is promised; a machine that is busy with other things gets more.
        assert comes_true(cluster, lambda now: now.ranks[1].state == "dead", WITHIN)
        assert cluster.snapshot.ranks[1].cause == "killed by SIGKILL"
        assert cluster.state == "broken"
        with pytest.raises(WorldBroken, match=r"rank 1 died \(killed by SIGKILL\)"):
            cluster.run("1")
        assert cluster.pull("kept", ranks=[0, 2]) == [0, 20]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("code", "cause"),
    [
        ("import os; os._exit(3)", r"os\._exit\(3\) called at line 5"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", "killed by SIGKILL"),
        ("import ctypes; ctypes.string_at(0)", "killed by SIGSEGV .*Fatal Python error: Segmentation fault"),
        ("import os; os.abort()", "killed by SIGABRT .*Fatal Python error: Aborted"),
    ],
    ids=["_exit", "kill", "segfault", "abort"],
)
def test_the_cause_of_a_death_in_a_cell(code: str, cause: str, tmp_path: Path) -> None:
    heard = tmp_path / "heard"
    wait = f"import pathlib, time\nwhile not pathlib.Path({str(heard)!r}).exists():\n    time.sleep(0.01)\n"
    with allranks.Cluster(2, backend="ring") as cluster:
        cell = cluster.begin(f"print('last words')\n{wait}{code}", ranks=[1], screen=Touch(heard))
        result = cell.finish(WITHIN)
        assert not result.ok
        assert re.search(cause, result[1].dead or ""), result[1].dead
        assert result[1].stdout == "last words\n"
        assert cluster.snapshot.ranks[1].state == "dead"


def test_a_fork_of_the_user_that_exits_does_not_count_as_the_rank(ring2: allranks.Cluster) -> None:
    result = ring2.run("""
import multiprocessing, os
def work(x):
    return x * x
with multiprocessing.get_context("fork").Pool(2) as pool:
    squares = pool.map(work, [1, 2, 3])
pid = os.fork()
if pid == 0:
    os._exit(7)
os.waitpid(pid, 0)[1] >> 8, squares""")
    assert result.ok, result.failure()
    assert result[1].value == (7, [1, 4, 9])
    assert ring2.state == "whole"
