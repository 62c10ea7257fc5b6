"""Values come out as they went in: every dtype, every shape, and a clear word for what cannot travel."""

from __future__ import annotations

import importlib
import socket
import sys
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cloudpickle
import mlx.core as mx
import numpy as np
import pytest
from mlx.utils import tree_flatten

from allranks.pickling.pickle_values import NotPicklable, can_travel, pack, pack_call, unpack

nn: Any = pytest.importorskip("mlx.nn")  # it has no types of its own

DTYPES = [
    mx.bool_,
    mx.uint8,
    mx.uint16,
    mx.uint32,
    mx.uint64,
    mx.int8,
    mx.int16,
    mx.int32,
    mx.int64,
    mx.float16,
    mx.bfloat16,
    mx.float32,
    mx.complex64,
]


def travelled(value: Any) -> Any:
    """The value after a journey, its buffers as the bytes that ZeroMQ would hand over."""
    return unpack([bytes(buffer) for buffer in pack(value)])


def same(one: mx.array, other: mx.array) -> bool:
    return one.dtype == other.dtype and one.shape == other.shape and bool(mx.array_equal(one, other).item())


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(), (0,), (0, 3), (7,), (2, 3, 4)], ids=str)
def test_an_mlx_array_keeps_its_dtype_shape_and_values(dtype: mx.Dtype, shape: tuple[int, ...]) -> None:
    count = int(np.prod(shape))
    array = (mx.arange(count) % 3).reshape(shape).astype(dtype)
    assert same(travelled(array), array)


@pytest.mark.parametrize("dtype", [*DTYPES, mx.float64], ids=str)
def test_a_dtype_travels(dtype: mx.Dtype) -> None:
    assert travelled([dtype]) == [dtype]


def test_float64_travels_too() -> None:
    with mx.stream(mx.cpu):
        array = mx.array([1 / 3], dtype=mx.float64)
        back = travelled(array)
        assert back.dtype == mx.float64
        assert back.item() == array.item()


def test_infinities_and_nan_of_bfloat16_keep_their_bits() -> None:
    array = mx.array([float("inf"), -float("inf"), float("nan"), -0.0, 1e-40], dtype=mx.bfloat16)
    assert travelled(array).view(mx.uint16).tolist() == array.view(mx.uint16).tolist()


def test_views_that_are_not_contiguous() -> None:
    array = mx.arange(24).reshape(4, 6)
    for view in (array.T, array[:, ::2], array[::-1], mx.broadcast_to(array[:1], (3, 6)), array.astype(mx.bfloat16).T):
        assert same(travelled(view), view)


@pytest.mark.parametrize(
    "array",
    [
        np.arange(6.0).reshape(2, 3),
        np.array(3.5),
        np.zeros((0, 2), "int8"),
        np.arange(24).reshape(4, 6).T[::2],
        np.asfortranarray(np.arange(6).reshape(2, 3)),
        np.array(["a", "bc"]),
        np.array([(1, 2.0)], dtype=[("a", "i4"), ("b", "f8")]),
        np.array([None, "x"], dtype=object),
        np.array(["2020-01-01"], "datetime64[D]"),
    ],
    ids=lambda array: f"{array.dtype}{array.shape}",
)
def test_a_numpy_array_keeps_its_dtype_shape_and_values(array: np.ndarray) -> None:
    back = travelled(array)
    assert back.dtype == array.dtype
    assert np.array_equal(back, array)


def test_what_arrives_can_be_written_to() -> None:
    array = travelled(np.zeros(1000))
    array[0] = 1.0
    held = travelled({"x": np.zeros(1000)})["x"]
    held += 1


@dataclass
class Step:
    number: int
    loss: mx.array


def test_arrays_inside_containers_and_objects() -> None:
    value = {"w": [mx.ones(3), (np.ones(2), None)], "step": Step(3, mx.array(0.5)), "s": {1, 2}, "t": "täxt"}
    back = travelled(value)
    assert same(back["w"][0], mx.ones(3)) and np.array_equal(back["w"][1][0], np.ones(2))
    assert isinstance(back["step"], Step) and back["step"].loss.item() == 0.5
    assert (back["s"], back["t"]) == ({1, 2}, "täxt")


def test_a_models_parameters() -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2, bias=False))
    back = dict(tree_flatten(travelled(model.parameters())))
    there = dict(tree_flatten(model.parameters()))
    assert back.keys() == there.keys() and all(same(back[name], there[name]) for name in there)


def test_functions_lambdas_and_classes_of_the_notebook_travel() -> None:
    scale = 3

    class Local:
        x = 5

    assert travelled(lambda x: x * scale)(4) == 12
    assert travelled(Local)().x == 5


def test_code_keeps_the_name_of_its_file() -> None:
    """Nested code, too: lines are read from the file of that name (cloudpickle 3.1.3 sends another name)."""

    def outer() -> Any:
        def inner() -> Any:
            return sys._getframe().f_code.co_filename, [sys._getframe().f_code.co_filename for _ in range(1)]

        return inner

    for function in (outer(), travelled(outer()), travelled(outer)(), travelled(travelled(outer))()):
        assert function() == (__file__, [__file__])


def test_the_files_of_a_module_that_is_sent_by_value_go_with_a_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sent_by_value.py").write_text("def f():\n    return 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    module: Any = importlib.import_module("sent_by_value")
    assert pack_call(module.f, without=())[1] == set()
    cloudpickle.register_pickle_by_value(module)
    try:
        assert pack_call(module.f, without=())[1] == {str(tmp_path / "sent_by_value.py")}
    finally:
        cloudpickle.unregister_pickle_by_value(module)
        sys.modules.pop("sent_by_value")


def test_dtypes_travel() -> None:
    assert travelled({"dtype": mx.bfloat16})["dtype"] == mx.bfloat16


def test_array_bytes_are_never_in_the_pickle() -> None:
    """They are handed to the network as they lie in memory: that is what makes big arrays cheap."""
    stream, *buffers = pack({"a": mx.ones((1000, 1000)), "b": np.ones(1_000_000), "c": mx.ones(500_000, mx.bfloat16)})
    assert len(stream) < 2000
    assert sorted(memoryview(buffer).nbytes for buffer in buffers) == [1_000_000, 4_000_000, 8_000_000]


def test_the_same_array_twice_travels_once() -> None:
    array = np.ones(1000)
    assert len(pack([array, array])) == 2


@pytest.mark.parametrize(
    "value",
    [
        (i for i in range(3)),
        {"deep": [threading.Lock()]},
        socket.socket(),
        [mx.distributed.init()],
    ],
    ids=["generator", "lock in a dict", "socket", "group"],
)
def test_what_cannot_travel_is_named_with_what_can(value: Any) -> None:
    with pytest.raises(NotPicklable, match=r"to another process .*Arrays, numbers, strings") as caught:
        pack(value)
    assert type(value).__name__ in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_group_says_why_it_stays() -> None:
    with pytest.raises(NotPicklable, match="a Group belongs to the process that joined the world"):
        pack({"world": mx.distributed.init()})


def test_too_deep_a_nesting_says_so() -> None:
    nested: list[Any] = []
    for _ in range(100_000):
        nested = [nested]
    with pytest.raises(NotPicklable, match="deep recursion"):
        pack(nested)


def test_an_object_whose_own_pickling_fails_says_why() -> None:
    class Stubborn:
        def __reduce__(self) -> Any:
            raise RuntimeError("I stay here")

    with pytest.raises(NotPicklable, match="I stay here"):
        pack(Stubborn())


@pytest.mark.parametrize(
    "large", [["a" * 10] * 100 * 1000, [bytes(2 << 20)], [object] * 1000 * 1000], ids=["text", "bytes", "many"]
)
def test_whether_a_value_can_travel_is_seen_from_its_first_bytes(large: list[Any]) -> None:
    refused = threading.Lock()
    assert not can_travel([*large, refused])
    assert can_travel([*large, refused], look_at=100_000)
    assert not can_travel([refused, *large], look_at=100_000)
