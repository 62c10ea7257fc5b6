"""A rank's variables in a private file: what travels comes back equal, what cannot is named."""

from __future__ import annotations

import resource
import signal
import sys
import types
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn
import numpy as np
import pytest

from allranks.rank.values import checkpoint

nn: Any = mlx.nn  # it says nothing of what it exports

DTYPES = (
    *(mx.bool_, mx.uint8, mx.uint16, mx.uint32, mx.uint64, mx.int8, mx.int16, mx.int32, mx.int64),
    *(mx.float16, mx.bfloat16, mx.float32, mx.complex64),
)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "rank-0"


@pytest.fixture
def user_ns(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Stands for the namespace of cells, which is that of ``__main__`` in a rank."""
    main = types.ModuleType("__main__")
    main.__dict__["mx"] = mx
    monkeypatch.setitem(sys.modules, "__main__", main)
    return main.__dict__


def save(file: Path, variables: dict[str, Any]) -> list[str]:
    return checkpoint.save(file, variables).left


def load(file: Path) -> dict[str, Any]:
    namespace: dict[str, Any] = {}
    assert checkpoint.load(file, namespace).failed == {}
    return namespace


def over(file: Path, variables: dict[str, Any]) -> dict[str, Any]:
    assert save(file, variables) == []
    return load(file)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 3, 4)], ids=str)
def test_arrays_come_back_bit_for_bit(dtype: mx.Dtype, shape: tuple[int, ...], file: Path) -> None:
    before = (mx.random.uniform(shape=shape) * 100).astype(dtype)
    after = over(file, {"x": before})["x"]
    assert (after.dtype, after.shape) == (dtype, shape)
    assert mx.array_equal(after, before)


def test_arrays_that_are_views_or_not_computed_yet(file: Path) -> None:
    base = mx.arange(24).reshape(4, 6)
    after = over(file, {"turned": base.T, "part": base[1:3, ::2], "pending": base * 2 + 1, "nan": mx.array([mx.nan])})
    assert after["turned"].tolist() == base.T.tolist()
    assert after["part"].tolist() == base[1:3, ::2].tolist()
    assert after["pending"].tolist() == (base * 2 + 1).tolist()
    assert np.isnan(after["nan"].item())


def test_what_is_shared_stays_shared(file: Path) -> None:
    weights = mx.ones(3)
    items = [weights]
    after = over(file, {"weights": weights, "items": items, "same": items})
    assert after["items"] is after["same"]
    assert after["items"][0] is after["weights"]


def test_models_optimizer_states_and_plain_things(file: Path) -> None:
    model = nn.Sequential(nn.Linear(3, 2), nn.ReLU())
    config = {"rate": 1e-3, "names": ("a", "b")}
    after = over(file, {"model": model, "config": config, "none": None, "text": "\udcff ä"})
    assert mx.array_equal(after["model"].layers[0].weight, model.layers[0].weight)
    assert after["config"] == config and after["none"] is None and after["text"] == "\udcff ä"


def test_what_cannot_travel_is_named_and_the_rest_goes(file: Path) -> None:
    variables = {"x": mx.ones(2), "steps": (i for i in range(3)), "log": open(file.parent / "log", "w"), "y": [1]}
    assert save(file, variables) == ["steps", "log"]
    after = load(file)
    assert sorted(after) == ["x", "y"]


def test_the_world_becomes_the_receivers_own_group(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mine, theirs = mx.distributed.init(), mx.distributed.init()
    monkeypatch.setattr(mx.distributed, "init", lambda: mine)  # as in a rank: always the same object
    assert save(file, {"world": mine, "nest": [{"group": mine}]}) == []
    monkeypatch.setattr(mx.distributed, "init", lambda: theirs)
    after = load(file)
    assert after["world"] is theirs and after["nest"][0]["group"] is theirs


def test_a_group_that_is_not_the_world_cannot_travel(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world, part = mx.distributed.init(), mx.distributed.init()
    monkeypatch.setattr(mx.distributed, "init", lambda: world)
    assert save(file, {"part": part, "x": 1}) == ["part"]
    assert load(file) == {"x": 1}


def test_functions_look_up_names_in_the_namespace_they_come_to(file: Path, user_ns: dict[str, Any]) -> None:
    code = """
rate, rank, stuck = 2, 0, (i for i in range(3))
_hidden = 5
def scaled(x):
    return x * rate + rank + _hidden
def uses_stuck():
    return next(stuck)
class Scaler:
    def __call__(self, x):
        return scaled(x)
scaler = Scaler()
"""
    exec(code, user_ns)
    variables = checkpoint.user_variables(user_ns, {})
    assert "rank" not in variables and "_hidden" not in variables
    assert save(file, variables) == ["stuck"]
    user_ns.clear()
    user_ns.update(mx=mx, rank=7)
    assert checkpoint.load(file, user_ns).failed == {}
    assert user_ns["scaled"](10) == 10 * 2 + 7 + 5
    user_ns["rate"] = 100
    assert user_ns["scaler"](1) == 100 + 7 + 5
    user_ns["stuck"] = iter([3])
    assert user_ns["uses_stuck"]() == 3
    assert user_ns["scaled"].__globals__ is user_ns


def test_only_what_the_user_made_is_carried() -> None:
    def get_ipython() -> None:
        pass

    user_ns = {
        "mx": mx,
        "world": 1,
        "rank": 0,
        "size": 1,
        "In": [],
        "_": 3,
        "__name__": "x",
        "mine": 1,
        "tool": get_ipython,
    }
    assert checkpoint.user_variables(user_ns, {"tool": get_ipython, "mine": "something else"}) == {"mine": 1}


def test_the_file_is_private_and_an_older_one_is_replaced(file: Path) -> None:
    save(file, {"x": mx.ones(1000)})
    save(file, {"y": 1})
    assert file.stat().st_mode & 0o777 == 0o600
    assert load(file) == {"y": 1}


def test_what_restores_an_object_may_use_what_cells_imported_and_defined(file: Path, user_ns: dict[str, Any]) -> None:
    code = """
class Locked:
    def __init__(self):
        self.lock = 1
    def __getstate__(self):
        return {"rate": rate()}
    def __setstate__(self, state):
        self.lock, self.rate = threading.Lock(), state["rate"] + rate() + _hidden
locked = Locked()
import threading
_hidden = 100
def rate():
    return 5 + _hidden
"""
    exec(code, user_ns)
    assert save(file, checkpoint.user_variables(user_ns, {})) == []
    user_ns.clear()
    assert checkpoint.load(file, user_ns).failed == {}
    assert user_ns["locked"].rate == 310 and user_ns["locked"].lock.acquire()


FICKLE = """
class Fickle:
    def __init__(self, layers):
        self.layers = layers
    def __setstate__(self, state):
        if "ready" not in globals():
            raise LookupError("not\\nyet")
        self.__dict__.update(state)
layers = [mx.ones((64, 64)), mx.ones(3)]
_default = Fickle(layers)
fickle = Fickle(layers)
holds = {"deep": [fickle]}
model = {"layers": layers}
def uses_default(x=3):
    return _default
def plain():
    return fickle
"""


def test_what_does_not_load_is_left_out_and_the_rest_stays_shared(file: Path, user_ns: dict[str, Any]) -> None:
    exec(FICKLE, user_ns)
    assert save(file, checkpoint.user_variables(user_ns, {})) == []
    user_ns.clear()
    user_ns.update(mx=mx, fickle="mine", rank=7)
    loaded = checkpoint.load(file, user_ns)
    assert loaded.failed == dict.fromkeys(("uses_default", "fickle", "holds"), "LookupError: not")
    assert sorted(loaded.names) == ["Fickle", "layers", "model", "plain"]
    assert user_ns["model"]["layers"] is user_ns["layers"] and user_ns["layers"][0].shape == (64, 64)
    assert (user_ns["fickle"], user_ns["rank"]) == ("mine", 7)
    assert {"holds", "uses_default", "_default"}.isdisjoint(user_ns)


def test_a_file_is_loaded_again_once_it_can_be(file: Path, user_ns: dict[str, Any]) -> None:
    exec(FICKLE, user_ns)
    assert save(file, checkpoint.user_variables(user_ns, {})) == []
    user_ns.clear()
    user_ns.update(mx=mx)
    with pytest.raises(ValueError, match="fickle cannot be loaded: LookupError: not; holds cannot"):
        checkpoint.load_variables(str(file))
    user_ns["ready"] = True
    assert "fickle" in checkpoint.load_variables(file)
    assert user_ns["holds"]["deep"][0] is user_ns["fickle"] and user_ns["fickle"].layers is user_ns["layers"]
    assert user_ns["uses_default"]().layers is user_ns["layers"]


@pytest.mark.parametrize("left", [0, 4, 100, -1])
def test_a_file_that_is_not_whole_is_an_error(left: int, file: Path) -> None:
    save(file, {"x": mx.ones(1000), "y": 2})
    file.write_bytes(file.read_bytes()[:left])
    with pytest.raises(EOFError):
        checkpoint.load(file, {})


def test_where_there_is_no_room_no_half_file_stays(tmp_path: Path) -> None:
    full = tmp_path / "0"
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, limits[1]))
    try:
        with pytest.raises(OSError):
            checkpoint.save(full, {"x": mx.ones(1 << 20)})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, before)
    assert not full.exists()
