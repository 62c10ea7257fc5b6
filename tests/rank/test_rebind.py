"""Every place that holds a group is found, emptied, and given the next one."""

from __future__ import annotations

import collections
import functools
import gc
import types
import weakref
from collections.abc import Callable
from typing import Any

import mlx.core as mx
import mlx.nn
import pytest
from mlx.nn.layers.distributed import shard_linear

from allranks.rank.world import rebind

pytestmark = pytest.mark.slow

nn: Any = mlx.nn  # it says nothing of what it exports


class Holder:
    def __init__(self, group: Any) -> None:
        self.group = group


class Slotted:
    __slots__ = ("group", "other")

    def __init__(self, group: Any) -> None:
        self.group = group


class Shared:
    group: Any = None


def closure(group: Any) -> Callable[[], Any]:
    return lambda: group


def default(group: Any) -> Callable[[], Any]:
    def function(first: int = 1, group: Any = group, *, named: Any = group) -> Any:
        return group if group is named else "differs"

    return function


def module(group: Any) -> types.ModuleType:
    made = types.ModuleType("made")
    made.group = group  # type: ignore[attr-defined]
    return made


def module_class(group: Any) -> type:
    Shared.group = group
    return Shared


HOLDERS: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    "namespace": (lambda group: {"world": group, "x": mx.ones(1)}, lambda held: held["world"]),
    "dict of plain things": (lambda group: {"world": group}, lambda held: held["world"]),
    "nested dict of plain things": (lambda group: {"a": {"b": {"world": group}}}, lambda held: held["a"]["b"]["world"]),
    "list": (lambda group: [1, group, group], lambda held: held[1] if held[1] is held[2] else "differs"),
    "list in a tuple": (lambda group: ([group],), lambda held: held[0][0]),
    "ordered dict": (lambda group: collections.OrderedDict(world=group), lambda held: held["world"]),
    "object": (Holder, lambda held: held.group),
    "object whose dict was asked for": (
        lambda group: [holder := Holder(group), holder.__dict__],
        lambda held: held[0].group,
    ),
    "object with slots": (Slotted, lambda held: held.group),
    "class": (module_class, lambda held: held.group),
    "closure": (closure, lambda held: held()),
    "default arguments": (default, lambda held: held()),
    "partial": (lambda group: functools.partial(Holder, group=group), lambda held: held().group),
    "module": (module, lambda held: held.group),
    "nn.Module": (lambda group: shard_linear(nn.Linear(4, 4), "all-to-sharded", group=group), lambda held: held.group),
    "nn.Module in a model": (
        lambda group: nn.Sequential(shard_linear(nn.Linear(4, 4), "sharded-to-all", group=group), nn.ReLU()),
        lambda held: held.layers[0].group,
    ),
}


@pytest.mark.parametrize("kind", HOLDERS)
def test_each_kind_of_holder_is_emptied_and_filled(kind: str) -> None:
    make, read = HOLDERS[kind]
    group, successor = mx.distributed.init(), mx.distributed.init()
    assert group is not successor
    box = [make(group)]
    places = rebind.take_out(group)
    del group  # this frame held it too, and frames are left alone
    assert read(box[0]) is None
    for put in places:
        put(successor)
    assert read(box[0]) is successor


def test_nothing_keeps_the_old_group_alive() -> None:
    class Group:
        """MLX's own takes no weak references."""

    def make() -> tuple[weakref.ref[Group], list[Any], list[rebind.Put]]:
        group = Group()
        held = [make(group) for name, (make, _) in HOLDERS.items() if not name.startswith("nn.")]
        return weakref.ref(group), held, rebind.take_out(group)

    gone, held, places = make()
    gc.collect()
    assert gone() is None, gc.get_referrers(gone())
    assert len(places) >= len(held)


def test_what_holds_something_else_is_left_alone() -> None:
    group, other = mx.distributed.init(), mx.distributed.init()
    held = {"world": group, "other": other, "list": [other], "holder": Holder(other)}
    rebind.take_out(group)
    assert held["other"] is other and held["list"] == [other]
    assert held["holder"].group is other  # type: ignore[attr-defined]


def test_a_holder_that_was_changed_meanwhile_is_not_upset() -> None:
    group = mx.distributed.init()
    held: dict[str, Any] = {"world": group, "list": [group]}
    places = rebind.take_out(group)
    held["world"] = "mine"
    del held["list"]
    for put in places:
        put("next")
    assert held == {"world": "next"}


def test_mlx_forgets_the_group_it_has_cached() -> None:
    group = mx.distributed.init()
    layer = shard_linear(nn.Linear(4, 4), "sharded-to-all", group=group)
    from mlx.nn.layers import distributed

    distributed.sum_gradients(group)
    assert distributed.sum_gradients.cache_info().currsize
    rebind.take_out(group)
    assert not distributed.sum_gradients.cache_info().currsize
    assert layer.group is None
