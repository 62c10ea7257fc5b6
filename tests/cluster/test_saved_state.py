"""What ranks hold, saved to a folder and loaded again."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import threading
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest

from allranks import Cluster
from allranks.cluster import cells, run_history, saved_state
from allranks.cluster import cluster as cluster_module
from allranks.cluster.run_history import RunHistory
from allranks.errors import (
    AllranksError,
    Busy,
    CannotLoad,
    CannotSave,
    CellInterrupted,
    UsageError,
    WorldBroken,
    WouldHang,
)
from allranks.head.state import cell_run
from allranks.head.state.logged import Row
from allranks.notebook.cell_curves import CellCurves
from allranks.notebook.show_blocks import Show
from tests.notebook.test_watch import until
from tests.waiting import WITHIN, comes_true

TRAINING = """
import random
import mlx.nn as nn
import mlx.optimizers as optim
import numpy as np

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = [nn.Linear(8, 8), nn.Linear(8, 2)]
        self.norm = nn.BatchNorm(8)
        self.dropout = nn.Dropout(0.2)

    def __call__(self, x):
        return self.layers[1](self.dropout(self.norm(nn.relu(self.layers[0](x)))))

def loss_of(model, x):
    return (model(x) ** 2).mean()

def train(steps):
    for _ in range(steps):
        x = mx.random.normal((4, 8)) + random.random() + float(np.random.rand())
        loss, gradients = nn.value_and_grad(model, loss_of)(model, x)
        optimizer.update(model, nn.average_gradients(gradients))
        mx.eval(model.state, optimizer.state, loss)
        losses.append(loss.item())

def outcome():
    from mlx.utils import tree_flatten
    leaves = tree_flatten(model.parameters()) + tree_flatten(optimizer.state)
    return [(key, np.array(value).tobytes()) for key, value in leaves], losses
"""
START = """
mx.random.seed(0); model = Net(); optimizer = optim.AdamW(optim.cosine_decay(1e-2, 20)); losses = []
mx.random.seed(rank); random.seed(rank); np.random.seed(rank)
train(3)
"""


LOGS = "scale = {scale}\nfor step in range({first}, {first} + 5): log(loss=scale * step + rank, step=step)"


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> Callable[[], RunHistory]:
    """Begins as another notebook would: without runs."""

    def fresh() -> RunHistory:
        history = RunHistory()
        for module in (cells, run_history, saved_state, cluster_module):
            monkeypatch.setattr(module, "RUNS", history)
        CellCurves._ended.clear()
        return history

    return fresh


def values(cluster: Cluster, code: str) -> list[Any]:
    return [rank.value for rank in cluster.run(code).check().values()]


def arrays_of(file: Path) -> Any:
    return mx.load(str(file))


def test_training_goes_on_bit_for_bit_in_other_processes(ring2: Cluster, tmp_path: Path) -> None:
    ring2.run(TRAINING).check()
    ring2.run(START).check()
    saved = ring2.save(tmp_path / "run")
    assert {"optimizer", "Net", "train"} <= set(saved.equal)
    assert {"model", "losses"}.isdisjoint(saved.equal)  # each rank has running means of its own
    uninterrupted = values(ring2, "train(3)\noutcome()")
    with Cluster(2, backend="ring") as others:
        loaded = others.load(tmp_path / "run")
        assert set(loaded.variables) == set(saved.variables) and not loaded.notes
        assert values(others, "train(3)\noutcome()") == uninterrupted
        assert values(others, "isinstance(model, Net)") == [True, True]


def test_every_dtype_and_plain_values_come_back_as_they_were(ring2: Cluster, tmp_path: Path) -> None:
    kinds = "int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 bfloat16 float32 complex64"
    dtypes = ["bool_", *kinds.split()]
    ring2.run(
        "import numpy as np\n"
        f"arrays = {{name: (mx.arange(6).reshape(2, 3) / 3 + rank).astype(getattr(mx, name)) for name in {dtypes}}}\n"
        "empty, one, turned = mx.zeros((0, 3)), mx.array(2.5), mx.arange(6).reshape(2, 3).T\n"
        "own = {'numpy': np.arange(4.0), 'view': np.arange(6).reshape(2, 3)[:, 1:]}\n"
        "own['complex'] = np.ones(2, 'complex128')\n"
        "plain = [1, 'text', {2: (None, 3.5)}, b'raw', {4}]\n"
        "part = arrays['float32']; square = lambda x: x * x + plain[0]\n"
        "before = {name: (each.dtype, mx.array(each)) for name, each in arrays.items()}; mx.eval(before)\n"
    ).check()
    ring2.save(tmp_path / "a", ["arrays", "empty", "one", "turned", "own", "plain", "part", "square"])
    ring2.run("for name in 'arrays empty one turned own plain part square'.split(): del globals()[name]").check()
    ring2.load(tmp_path / "a")
    ring2.run("def same(old, dtype, new): return new.dtype == dtype and mx.array_equal(old, new).item()").check()
    compared = "[same(old, dtype, arrays[name]) for name, (dtype, old) in before.items()]"
    assert values(ring2, compared) == [[True] * len(dtypes)] * 2
    assert (
        values(ring2, "(empty.shape, one.item(), turned.tolist(), plain, square(3))")
        == [((0, 3), 2.5, [[0, 3], [1, 4], [2, 5]], [1, "text", {2: (None, 3.5)}, b"raw", {4}], 10)] * 2
    )
    assert (
        values(ring2, "({k: v.tolist() for k, v in own.items()}, part is arrays['float32'])")
        == [({"numpy": [0.0, 1.0, 2.0, 3.0], "view": [[1, 2], [4, 5]], "complex": [1, 1]}, True)] * 2
    )


def test_other_programs_can_read_it(ring2: Cluster, tmp_path: Path) -> None:
    ring2.run(
        "import mlx.nn as nn; mx.random.seed(1); model = nn.Sequential(nn.Linear(2, 3), nn.ReLU())\n"
        "shard = mx.full((4,), rank, dtype=mx.bfloat16); step = 7"
    ).check()
    saved = ring2.save(tmp_path / "a", ["model", "shard", "step"])
    said = f"Saved 3 variables of 2 ranks ({saved.nbytes / 1e3:.1f} kB, "
    assert str(saved).startswith(said) and str(saved).endswith(f"in {tmp_path}/a: 2 equal on all ranks, 1 per rank.")
    manifest = json.loads((tmp_path / "a" / "manifest.json").read_text())
    assert (manifest["format"], manifest["format_version"], manifest["world_size"]) == ("allranks", 2, 2)
    assert {name: each["equal"] for name, each in manifest["variables"].items() if name[0] != "("} == {
        "model": True,
        "shard": False,
        "step": True,
    }
    [weight] = manifest["arrays"]["model.layers.0.weight"]
    assert (weight["ranks"], weight["dtype"], weight["shape"]) == ([0, 1], "float32", [3, 2])
    assert arrays_of(tmp_path / "a" / weight["file"])["model.layers.0.weight"].shape == (3, 2)
    for rank, shard in enumerate(manifest["arrays"]["shard"]):
        read = arrays_of(tmp_path / "a" / shard["file"])["shard"]
        assert (shard["ranks"], read.dtype, read.tolist()) == ([rank], mx.bfloat16, [rank] * 4)


def test_only_the_names_that_were_asked_for(ring2: Cluster, tmp_path: Path) -> None:
    ring2.run("a, b, c = mx.array([rank]), 2, 3; mx.random.seed(5)").check()
    assert ring2.save(tmp_path / "a", ["a", "b"]).variables == ("a", "b")
    ring2.run("a = b = c = None; mx.random.seed(6); expected = mx.random.uniform().item(); mx.random.seed(6)").check()
    assert ring2.load(tmp_path / "a", "a").variables == ("a",)
    assert values(ring2, "(a.tolist(), b, c, mx.random.uniform().item() == expected)") == [
        ([0], None, None, True),
        ([1], None, None, True),
    ]
    with pytest.raises(UsageError, match=r"no rank has a variable nosuch \(%distributed vars lists them\)"):
        ring2.save(tmp_path / "a", ["a", "nosuch"])
    with pytest.raises(UsageError, match=r"has no variable nosuch\. It has a, b\."):
        ring2.load(tmp_path / "a", ["nosuch"])
    with pytest.raises(UsageError, match=r"'a\.b' is not a variable name"):
        ring2.save(tmp_path / "a", ["a.b"])


def test_a_world_of_another_size_gets_what_was_equal(ring2: Cluster, ring4: Cluster, tmp_path: Path) -> None:
    ring2.run(
        "import random, numpy\nw = mx.arange(3) * 2; shard = mx.array([rank])\n"
        "for each in (mx.random.seed, random.seed, numpy.random.seed): each(rank)"
    ).check()
    ring2.save(tmp_path / "a", ["w", "shard"])
    folder = tmp_path / "a"
    with pytest.raises(CannotLoad) as refused:
        ring4.load(folder)
    assert str(refused.value) == (
        f"cannot load {folder}: 2 ranks saved it, and this world has 4. shard was not equal on all ranks. Nothing was "
        f"loaded. %distributed load {folder} w loads the others. For all: %distributed resize 2, then load again."
    )
    assert values(ring4, "'w' in globals()") == [False] * 4
    ring4.load(folder, "w")
    assert values(ring4, "w.tolist()") == [[0, 2, 4]] * 4
    ring2.save(folder, "w")
    loaded = ring4.load(folder)
    assert "Loaded 1 variable of 2 ranks on 4 ranks (" in str(loaded)
    assert str(loaded).endswith(
        "Not loaded: the states of mx.random, numpy.random and random, which differed between ranks."
    )
    ring2.run("mx.random.seed(7); numpy.random.seed(7)").check()
    ring2.save(folder, "w")
    expected = values(ring2, "mx.random.uniform().item()")[0]
    (note,) = ring4.load(folder).notes
    assert note == "Not loaded: the state of random, which differed between ranks."
    assert values(ring4, "mx.random.uniform().item()") == [expected] * 4


@pytest.mark.parametrize("damage", ["truncated", "changed"])
@pytest.mark.parametrize("kind", ["safetensors", "pickle"])
def test_a_damaged_file_is_named_and_no_rank_loads_any_of_it(
    ring2: Cluster, tmp_path: Path, kind: str, damage: str
) -> None:
    ring2.run("x = mx.zeros(1000) + rank; y = 1").check()
    ring2.save(tmp_path / "a", ["x", "y"])
    [file] = (tmp_path / "a").glob(f"state-*/rank-1.{kind}")
    data = bytearray(file.read_bytes())
    data[-9] ^= 1
    file.write_bytes(data[: -len(data) // 3] if damage == "truncated" else data)
    ring2.run("x = y = 'kept'").check()
    said = "is incomplete" if damage == "truncated" else "was changed: .*does not match its checksum"
    with pytest.raises(CannotLoad, match=rf"rank 1: {file} {said}\. Nothing was loaded\."):
        ring2.load(tmp_path / "a")
    assert values(ring2, "(x, y)") == [("kept", "kept")] * 2


def test_what_cannot_be_saved_is_named_before_anything_is_written(ring2: Cluster, tmp_path: Path) -> None:
    ring2.run("import threading; x, batches = 1, (i for i in range(3)); lock = threading.Lock() if rank else 2").check()
    with pytest.raises(CannotSave) as refused:
        ring2.save(tmp_path / "a", ["x", "batches", "lock"])
    assert str(refused.value) == (
        "cannot save batches (cannot pickle 'generator' object); lock (cannot pickle '_thread.lock' object on rank 1). "
        f"Nothing was written. For the others: %distributed save {tmp_path}/a x"
    )
    assert not (tmp_path / "a").exists()
    saved = ring2.save(tmp_path / "a")
    assert {"x", "lock"} & set(saved.variables) == {"x", "lock"} and set(saved.not_saved) == {"batches", "lock"}
    assert "\nNot saved: batches (cannot pickle 'generator' object); lock (" in str(saved)


def test_where_there_is_no_state_or_none_can_be_written(ring2: Cluster, tmp_path: Path) -> None:
    ring2.run("x = mx.arange(100_000) + rank").check()
    with pytest.raises(CannotLoad, match=rf"cannot load {tmp_path}/a: ranks 0-1: there is no folder {tmp_path}/a\."):
        ring2.load(tmp_path / "a")
    (tmp_path / "a").mkdir()
    with pytest.raises(CannotLoad, match=rf"ranks 0-1: no saved state in {tmp_path}/a\."):
        ring2.load(tmp_path / "a")
    (tmp_path / "a" / "manifest.json").write_text('{"format": "web app"}')
    with pytest.raises(CannotLoad, match=r"manifest\.json was not written by allranks\."):
        ring2.load(tmp_path / "a")
    with pytest.raises(CannotSave, match=r"not written by allranks, and is not replaced\. Save in another folder\."):
        ring2.save(tmp_path / "a")
    (tmp_path / "file").write_text("")
    with pytest.raises(CannotSave, match=rf"cannot save in .*: ranks 0-1: .*{tmp_path}/file.*another folder"):
        ring2.save(tmp_path / "file")


def test_a_disk_that_takes_no_more_leaves_the_old_state(ring2: Cluster, tmp_path: Path) -> None:
    limit = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, ({}, resource.RLIM_INFINITY))"
    ring2.run("x = mx.zeros(100_000) + rank").check()
    ring2.save(tmp_path / "a", "x")
    ring2.run("x = x + 10").check()
    ring2.run(limit.format(100_000)).check()
    try:
        said = r"File too large\. Free space there, or .* folder\. If .*a had a saved state before, it still has it\."
        with pytest.raises(CannotSave, match=said):
            ring2.save(tmp_path / "a", "x")
    finally:
        ring2.run(limit.format("resource.RLIM_INFINITY")).check()
    assert len(list((tmp_path / "a").glob("state-*"))) == 1
    ring2.load(tmp_path / "a")
    assert values(ring2, "x[0].item()") == [0.0, 1.0]


def test_cells_change_nothing_in_what_is_being_written(ring2: Cluster, tmp_path: Path) -> None:
    ring2.run("import numpy as np; x, y, z = mx.zeros(1 << 20), np.zeros(1 << 20), [0]").check()
    saving = ring2.begin_save(tmp_path / "a", ["x", "y", "z"])
    ring2.run("x[0] = 1; y[0] = 1; z[0] = 1; mx.eval(x)").check()
    assert saving.result(WITHIN).variables == ("x", "y", "z")
    ring2.load(tmp_path / "a")
    assert values(ring2, "(x[0].item(), y[0].item(), z)") == [(0.0, 0.0, [0])] * 2


def test_what_waits_for_a_collective_is_evaluated_by_all_ranks_or_refused(ring2: Cluster, tmp_path: Path) -> None:
    ring2.run("x = mx.distributed.all_sum(mx.ones(3)) * 2").check()
    ring2.save(tmp_path / "a", "x")
    ring2.run("x = None").check()
    ring2.load(tmp_path / "a")
    assert values(ring2, "x.tolist()") == [[4.0] * 3] * 2
    ring2.run("y = mx.distributed.all_sum(mx.ones(3)); z = y if rank else 0; del y").check()
    with pytest.raises(WouldHang, match=r"z on rank 1 waits for a collective that not all ranks would enter\. Nothing"):
        ring2.save(tmp_path / "a")
    ring2.run("del z").check()


def test_ranks_that_run_a_cell_are_busy(ring2: Cluster, tmp_path: Path) -> None:
    end = tmp_path / "end"
    cell = ring2.begin(f"import os, time\nwhile not os.path.exists({str(end)!r}): time.sleep(0.01)")
    try:
        for ask in (ring2.save, ring2.load):
            with pytest.raises(Busy, match=r"ranks 0-1 are still busy with an earlier cell"):
                ask(tmp_path / "a")
    finally:
        end.touch()
        cell.finish().check()
    assert not (tmp_path / "a").exists()


def test_a_rank_that_dies_before_all_were_asked_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Cluster(2, backend="ring") as cluster:
        cluster.run("x = mx.array([rank])").check()
        cluster.save(tmp_path / "a")
        cluster.run("x = mx.array([rank + 10])").check()
        compare = cluster._states._equal

        def dies(*given: Any) -> list[str]:
            pid = cluster.snapshot.ranks[1].pid
            assert pid is not None
            os.kill(pid, signal.SIGKILL)
            assert comes_true(cluster, lambda snapshot: snapshot.ranks[1].state == "dead", WITHIN)
            return compare(*given)

        monkeypatch.setattr(cluster._states, "_equal", dies)
        with pytest.raises(WorldBroken, match=r"rank 1 died .*If .*a had a saved state before, it still has it\."):
            cluster.save(tmp_path / "a")
        cluster.heal()
        cluster.load(tmp_path / "a")
        assert values(cluster, "x.item()") == [0, 1]


def test_down_does_not_wait_for_what_is_being_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    is_down = threading.Event()
    with Cluster(2, backend="ring") as cluster:
        cluster.run("x = mx.array([rank])").check()
        cluster.save(tmp_path / "a")
        before = (tmp_path / "a" / "manifest.json").read_bytes()
        compare = cluster._states._equal

        def waits(*given: Any) -> list[str]:
            assert is_down.wait(WITHIN)
            return compare(*given)

        monkeypatch.setattr(cluster._states, "_equal", waits)
        saving = cluster.begin_save(tmp_path / "a")
        cluster.down()
        is_down.set()
        assert isinstance(saving.exception(WITHIN), AllranksError)
        assert (tmp_path / "a" / "manifest.json").read_bytes() == before


def test_an_invalid_array_is_not_saved(ring2: Cluster, tmp_path: Path) -> None:
    ring2.run("x, y = 1, mx.distributed.all_sum(mx.ones(3))\nif rank: raise ValueError\nmx.eval(y)")
    with pytest.raises(CannotSave, match=r"cannot save y \(its collective was aborted, so it is invalid\)"):
        ring2.save(tmp_path / "a", ["x", "y"])
    assert ring2.save(tmp_path / "a", "x").variables == ("x",)


@pytest.mark.slow
def test_a_rank_that_is_killed_leaves_the_old_state_or_the_new_one(tmp_path: Path) -> None:
    drawn, folder = random.Random(), tmp_path / "a"
    print("seed:", seed := drawn.randrange(1 << 30))
    drawn.seed(seed)
    with Cluster(2, backend="ring") as cluster:
        cluster.run("x = mx.zeros(4 << 20) + rank; whole = mx.zeros(1 << 20)").check()
        seconds, done = cluster.save(folder).seconds, 0
        for number in range(1, 5):
            cluster.run(f"x = mx.zeros(4 << 20) + rank + {10 * number}; whole = mx.ones(1 << 20) * {number}").check()
            pid = cluster.snapshot.ranks[drawn.randrange(2)].pid
            assert pid is not None
            killing = threading.Timer(drawn.uniform(0, 1.2 * seconds), os.kill, (pid, signal.SIGKILL))
            killing.start()
            with pytest.raises(WorldBroken, match=r"rank \d .*SIGKILL"):  # noqa: PT012 - until it comes
                while True:
                    cluster.save(folder)
                    done = number
            killing.join()
            with pytest.raises(WorldBroken, match="died"):
                cluster.save(folder)
            cluster.heal()
            cluster.load(folder)
            [(first, ones), (second, others)] = values(cluster, "(x[0].item(), whole[-1].item())")
            assert ones == others and (first, second) == (10 * ones, 10 * ones + 1)
            assert ones in (done, number)
        cluster.save(folder)
        assert len(list(folder.glob("state-*"))) == 1


def test_what_is_equal_is_written_once_on_a_disk_that_ranks_share(ring2: Cluster, tmp_path: Path) -> None:
    ring2.run("w = mx.arange(1000)").check()
    ring2.save(tmp_path / "a", "w")
    assert [each.name for each in (tmp_path / "a").glob("state-*/*.safetensors")] == ["shared.safetensors"]


def test_disks_that_are_not_shared_have_what_their_ranks_need(ring2: Cluster, tmp_path: Path) -> None:
    for rank in range(2):
        (tmp_path / str(rank)).mkdir()
    ring2.run(f"import os; before = os.getcwd(); os.chdir(os.path.join({str(tmp_path)!r}, str(rank)))").check()
    try:
        ring2.run("w, shard = mx.arange(3), mx.array([rank])").check()
        ring2.save("a", ["w", "shard"])
        for rank in range(2):
            files = {each.name for each in (tmp_path / str(rank) / "a").glob("state-*/*")}
            own = {f"rank-{rank}.safetensors", f"rank-{rank}.pickle"}
            assert files == {"manifest.json", "runs.json", "shared.safetensors", *own}
        shutil.copytree(tmp_path / "1" / "a", tmp_path / "1" / "old")
        [old] = (tmp_path / "0" / "a").glob("state-*")
        shutil.copytree(old, tmp_path / "0" / "old")
        ring2.run("w, shard = w + 1, shard + 1").check()
        ring2.save("a", ["w", "shard"])
        ring2.load("a")
        assert values(ring2, "(w.tolist(), shard.item())") == [([1, 2, 3], 1), ([1, 2, 3], 2)]
        # As if the second host had gone down before it had the new manifest: the last save that both have is loaded.
        shutil.rmtree(tmp_path / "1" / "a")
        (tmp_path / "1" / "old").rename(tmp_path / "1" / "a")
        with pytest.raises(CannotLoad, match=r"the hosts have states of different saves \(rank 0 state-"):
            ring2.load("a")
        (tmp_path / "0" / "old").rename(old)
        ring2.load("a")
        assert values(ring2, "(w.tolist(), shard.item())") == [([0, 1, 2], 0), ([0, 1, 2], 1)]
    finally:
        ring2.run("os.chdir(before)").check()


def test_hosts_in_another_order_load_what_was_equal(ring2: Cluster, tmp_path: Path) -> None:
    for rank in range(2):
        (tmp_path / str(rank)).mkdir()
    ring2.run(f"import os; before = os.getcwd(); os.chdir(os.path.join({str(tmp_path)!r}, str(rank)))").check()
    try:
        ring2.run("import numpy; numpy.random.seed(rank); mx.random.seed(rank)").check()
        ring2.run("w, shard = mx.arange(3), mx.array([rank])").check()
        ring2.save("a", ["w", "shard"])
        ring2.run("os.chdir(os.path.join('..', str(1 - rank))); w = shard = None").check()
        with pytest.raises(CannotLoad) as refused:
            ring2.load("a")
        assert str(refused.value) == (
            "cannot load a: the files of some ranks are not on the hosts where these ranks are now. shard was not "
            "equal on all ranks. Nothing was loaded. %distributed load a w loads the others. For all: have the ranks "
            "on the same hosts as before, or copy the folders between hosts."
        )
        ring2.load("a", "w")
        assert values(ring2, "(w.tolist(), shard)") == [([0, 1, 2], None)] * 2
        ring2.save("b", "w")
        ring2.run("os.chdir(os.path.join('..', str(rank)))").check()
        assert ring2.load("b").notes == (
            "Not loaded: the states of mx.random, numpy.random and random, which differed between ranks.",
        )
    finally:
        ring2.run("os.chdir(before)").check()


def test_a_name_that_one_rank_alone_has_changes_no_key(ring2: Cluster, tmp_path: Path) -> None:
    ring2.run("globals().pop('a', None); w = [mx.arange(1000)]\nif rank: a = w[0]").check()
    saved = ring2.save(tmp_path / "a", ["a", "w"])
    assert (saved.variables, saved.equal) == (("a", "w"), ("w",))
    assert list(json.loads((tmp_path / "a" / "manifest.json").read_text())["arrays"]) == ["w.0"]
    ring2.run("w = None; globals().pop('a', None)").check()
    ring2.load(tmp_path / "a")
    assert values(ring2, "'a' in globals() and a is w[0]") == [False, True]
    ring2.run("globals().pop('a', None)").check()


def test_loading_a_name_changes_nothing_else(ring2: Cluster, tmp_path: Path) -> None:
    ring2.run("class Counter:\n    count = 1\nmade, x = Counter(), mx.zeros(3)").check()
    ring2.save(tmp_path / "a", ["Counter", "made", "x"])
    ring2.run("Counter.count, x = 2, None").check()
    ring2.load(tmp_path / "a", "x")
    assert values(ring2, "(Counter.count, made.count, x.tolist())") == [(2, 2, [0.0, 0.0, 0.0])] * 2
    ring2.load(tmp_path / "a", ["Counter", "made"])
    assert values(ring2, "(Counter.count, made.count, type(made) is Counter)") == [(1, 1, True)] * 2


def test_functions_of_another_python_are_refused(ring2: Cluster, tmp_path: Path) -> None:
    ring2.run("x, double = 1, lambda a: a * 2").check()
    ring2.save(tmp_path / "a", ["x", "double"])
    ring2.run("import sys; _version = sys.version_info; sys.version_info = (3, 99, 0); x = double = None").check()
    try:
        said = r"double \(RuntimeError: Python 3\.\d+ compiled its functions, and this is Python 3\.99\) on ranks 0-1"
        with pytest.raises(CannotLoad, match=rf"{said}.* To load the others, name them: x\. Nothing was loaded\."):
            ring2.load(tmp_path / "a")
        ring2.load(tmp_path / "a", "x")
        assert values(ring2, "(x, double)") == [(1, None)] * 2
    finally:
        ring2.run("sys.version_info = _version").check()


def test_only_one_saves_to_a_folder_at_a_time(
    ring2: Cluster, ring4: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "a"
    ring2.run("x = mx.array([rank])").check()
    ring4.run("x = mx.array([10 + rank])").check()
    written, goes_on, manifest = threading.Event(), threading.Event(), saved_state._manifest

    def waits(version: str, taken: Any, *given: Any) -> Any:
        if len(taken) == 2:
            written.set()
            assert goes_on.wait(WITHIN)
        return manifest(version, taken, *given)

    monkeypatch.setattr(saved_state, "_manifest", waits)
    saving = ring2.begin_save(folder, "x")
    assert written.wait(WITHIN)
    with pytest.raises(CannotSave, match=rf"another save to {folder} is under way\. If"):
        ring4.save(folder, "x")
    goes_on.set()
    saving.result(WITHIN)
    ring2.run("x = None").check()
    ring2.load(folder)
    assert values(ring2, "x.item()") == [0, 1]
    ring4.save(folder, "x")
    assert json.loads((folder / "manifest.json").read_text())["world_size"] == 4
    assert len(list(folder.glob("state-*"))) == 1


def test_what_a_save_that_was_killed_left_is_removed_by_the_next(ring2: Cluster, tmp_path: Path) -> None:
    left = tmp_path / "a" / "state-20260102-030405-000006"
    left.mkdir(parents=True)
    (left / "rank-0.pickle").write_bytes(b"part")
    (tmp_path / "a" / "state-of-mine").mkdir()
    ring2.run("x = 1").check()
    ring2.save(tmp_path / "a", "x")
    assert not left.exists() and (tmp_path / "a" / "state-of-mine").is_dir()


@pytest.mark.parametrize("when", ["before it is asked", "while it is asked"])
def test_ranks_that_are_removed_while_they_are_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    compares, resized = tmp_path / "compares", threading.Event()
    with Cluster(2, backend="ring") as cluster:
        cluster.run("x = mx.array([1])").check()
        compare = cluster._states._equal

        def waits(*given: Any) -> list[str]:
            assert resized.wait(WITHIN)
            return compare(*given)

        if when == "before it is asked":
            monkeypatch.setattr(cluster._states, "_equal", waits)
            compares.touch()
        else:
            cluster.run(
                "from allranks.rank.values.state_files import StateSnapshot\nimport time, pathlib\n"
                f"def never(*_): pathlib.Path({str(compares)!r}).touch(); time.sleep(600)\n"
                "if rank: StateSnapshot.digests = never",
            ).check()
        saving = cluster.begin_save(tmp_path / "a", "x")
        assert until(compares.exists)
        cluster.resize(1)
        resized.set()
        with pytest.raises(CannotSave, match=r"rank 1 was removed in the meantime\. If"):
            saving.result(WITHIN)
        assert not list((tmp_path / "a").glob("state-*"))
        assert cluster.save(tmp_path / "a", "x").size == 1


def test_a_snapshot_that_nobody_waits_for_is_dropped(ring2: Cluster, tmp_path: Path) -> None:
    began, gate = tmp_path / "began", tmp_path / "gate"
    ring2.run(
        "import gc, os, time\n"
        "class Slow:\n    packed = 0\n    def __reduce__(self):\n        Slow.packed += 1\n"
        "        if Slow.packed > 1:  # the first time, it is asked whether it can be saved\n"
        f"            open({str(began)!r}, 'w').close()\n"
        f"            while not os.path.exists({str(gate)!r}): time.sleep(0.01)\n"
        "        return (Slow, ())\n"
        "slow = Slow()"
    ).check()

    def press() -> None:
        assert until(began.exists)
        os.kill(os.getpid(), signal.SIGINT)

    pressing = threading.Thread(target=press)
    pressing.start()
    with pytest.raises(CellInterrupted):
        ring2.save(tmp_path / "a", "slow")
    pressing.join()
    gate.touch()
    snapshots = "len([each for each in gc.get_objects() if type(each).__name__ == 'StateSnapshot'])"
    assert values(ring2, snapshots) == [0, 0]
    ring2.run("del slow, Slow").check()


def test_arrays_in_objects_are_looked_at_as_well(ring2: Cluster, tmp_path: Path) -> None:
    ring2.run("class Box:\n    pass\nbox = Box(); box.x = mx.distributed.all_sum(mx.ones(3))").check()
    ring2.run("if not rank: box.x = 0").check()
    with pytest.raises(WouldHang, match=r"box on rank 1 waits for a collective"):
        ring2.save(tmp_path / "a", "box")
    ring2.run("box.x = 0; x = mx.distributed.all_sum(mx.ones(3)); box.x = x").check()
    ring2.run("if rank: raise ValueError\nmx.eval(x)")
    with pytest.raises(CannotSave, match=r"box, x \(its collective was aborted, so it is invalid\)"):
        ring2.save(tmp_path / "a", ["box", "x"])
    ring2.run("import collections; del box, Box; x = mx.distributed.all_sum(mx.ones(3))").check()
    ring2.run("queue = collections.deque([x if rank else 0])").check()
    with pytest.raises(WouldHang, match=r"queue on rank 1 waits for a collective"):
        ring2.save(tmp_path / "a", "queue")
    ring2.run("del x, queue").check()


def test_an_object_whose_own_code_fails_is_left_out_alone(ring2: Cluster, tmp_path: Path) -> None:
    ring2.run(
        "class Odd:\n    @property\n    def __dict__(self): raise RuntimeError('odd')\n"
        "    def __reduce__(self): raise RuntimeError('odd')\n"
        "odd, x = Odd(), 1"
    ).check()
    saved = ring2.save(tmp_path / "a")
    assert saved.not_saved["odd"] == "odd" and "x" in saved.variables
    ring2.run("del odd, Odd").check()


def test_functions_bring_the_underscored_names_that_they_use(ring2: Cluster, tmp_path: Path) -> None:
    ring2.run("def _half(x): return x / 2\ndef halved(x): return _half(x)").check()
    ring2.save(tmp_path / "a", "halved")
    ring2.run("del _half, halved").check()
    ring2.load(tmp_path / "a")
    assert values(ring2, "halved(3)") == [1.5, 1.5]


def test_a_future_of_a_save_may_load(ring2: Cluster, tmp_path: Path) -> None:
    ring2.run("x = 1").check()
    loaded, saving = threading.Event(), ring2.begin_save(tmp_path / "a", "x")
    saving.add_done_callback(lambda _: loaded.set() if ring2.load(tmp_path / "a").variables == ("x",) else None)
    assert loaded.wait(WITHIN) and not saving.cancel()


def test_runs_come_with_the_state_and_go_on_after_it(
    ring2: Cluster, tmp_path: Path, runs: Callable[[], RunHistory], monkeypatch: pytest.MonkeyPatch
) -> None:
    yesterday = runs()
    ring2.run(LOGS.format(scale=0.5, first=0) + "\nlog(loss=float('nan'), other=float('-inf'), step=5)").check()
    yesterday.rename(1, "half")
    ring2.run("token = 'hf_secret'\n" + LOGS.format(scale=2, first=0)).check()
    yesterday.hide(2)
    ring2.run("token = 'hf_secret'\n" + LOGS.format(scale=3, first=0)).check()
    ring2.save(tmp_path / "a")
    assert b"hf_secret" not in next((tmp_path / "a").glob("state-*/runs.json")).read_bytes()
    today = runs()
    assert str(ring2.load(tmp_path / "a")).splitlines()[1] == "2 runs came with it: %distributed runs"
    half, other = today
    assert (half.name, other.name, half.status, half.backend) == ("half", "run 2", "ok", "ring")
    assert half.values["scale"] == 0.5 and half.code == yesterday[1].code and half.at == yesterday[1].at
    assert half.seconds == yesterday[1].seconds and other.changes(half) == yesterday[3].changes(yesterday[1])
    saved = [(row.rank, row.name, row.step, str(row.value), row.at) for row in yesterday[1].rows()]
    assert [(row.rank, row.name, row.step, str(row.value), row.at) for row in half.rows()] == saved
    assert str(ring2.load(tmp_path / "a")).count("\n") == 0, "they are here already"
    show = Show(range(2), live=False)
    ring2.run(LOGS.format(scale=3, first=5), screen=show).check()
    assert today[3].name == "run 3"


def test_of_a_long_run_its_chart_is_saved(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cell_run, "MOST_STORED", 300)
    run = cell_run.CellRun(1, "lr = 1", (0, 1), "ring")
    for step in range(1000):
        for rank in range(2):
            run.add(Row(rank, "loss", 1, float(step), 1.0 / (step + 1), float(step)))
    again = cell_run.CellRun.restored(run.stored())
    steps = [row.step for row in again.rows() if row.rank == 1]
    assert len(steps) == 143 and steps[-1] == 999.0 and {b - a for a, b in pairwise(steps)} == {7.0}
    assert run.status == "running" and again.status == "stopped"


def test_values_that_json_lacks_are_left_out_and_a_process_without_runs_keeps_those_that_were_saved(
    ring2: Cluster, tmp_path: Path, runs: Callable[[], RunHistory]
) -> None:
    runs()
    ring2.run("best, seed = float('inf'), 1 << 70").check()
    ring2.run("rate, large = 0.5, 1 << 64\nlog(loss=rate if best > seed else 0)").check()
    ring2.save(tmp_path / "a")
    runs()
    ring2.save(tmp_path / "a")
    today = runs()
    ring2.load(tmp_path / "a")
    assert [each.values for each in today] == [{"rate": 0.5}]


def test_runs_that_were_changed_do_not_keep_the_state_from_being_loaded(
    ring2: Cluster, tmp_path: Path, runs: Callable[[], RunHistory]
) -> None:
    runs()
    ring2.run("x = rank\nlog(loss=1)").check()
    ring2.save(tmp_path / "a", "x")
    (file,) = (tmp_path / "a").glob("state-*/runs.json")
    file.write_text("[{]")
    runs()
    ring2.run("x = -1").check()
    assert "\nNo runs were loaded: runs.json was changed (" in str(ring2.load(tmp_path / "a"))
    assert ring2.pull("x") == [0, 1]
    file.unlink()
    assert "run" not in str(ring2.load(tmp_path / "a")).split("/a.")[1]
