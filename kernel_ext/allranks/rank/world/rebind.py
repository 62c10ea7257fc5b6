"""Take a group out of everything that holds it, and put the next one in.

MLX joins a new world in the same process only after the last reference to the old group is gone. Namespaces, sharded
layers, closures and nested containers hold references. They are found by means of the garbage collector.
"""

from __future__ import annotations

import gc
import sys
import types
from collections.abc import Callable
from typing import Any

Put = Callable[[object], None]


def take_out(group: object) -> list[Put]:
    """Replace `group` by None wherever it is held; each returned function puts another group in one of these places.

    Tuples, sets, deques and the frames of running functions keep the old group. But a tuple of default arguments is
    replaced by a new tuple.
    """
    _forget_cached()
    places: list[Put] = []
    own = sys._getframe()
    for holder in [*gc.get_referrers(group), *_untracked_holders(group)]:
        if holder is own or isinstance(holder, types.FrameType):
            continue
        places.extend(_places(holder, group))
    for put in places:
        put(None)
    return places


def _untracked_holders(group: object) -> list[object]:
    """The holders that `gc.get_referrers` misses: dicts, and functions with `group` among their default arguments.

    The collector does not track a dict or tuple whose items hold no references, and a group holds none. So
    ``{"world": world}`` and the defaults of ``def f(x, group=world)`` are found only through their own holders. In a
    forked rank, objects older than the rank are frozen (`gc.freeze`), and are not searched.
    """
    objects = gc.get_objects()
    dicts = {
        id(each): each
        for each in gc.get_referents(*objects)
        if type(each) is dict and not gc.is_tracked(each) and any(value is group for value in each.values())
    }
    functions = [each for each in objects if type(each) is types.FunctionType]
    return [*dicts.values(), *(each for each in functions if any(value is group for value in each.__defaults__ or ()))]


def _places(holder: object, group: object) -> list[Put]:
    if isinstance(holder, types.CellType):
        return [lambda new: setattr(holder, "cell_contents", new)]
    if isinstance(holder, types.FunctionType) and holder.__defaults__:
        return [*_in_defaults(holder, group), *_in_dict(vars(holder), group)]
    if isinstance(holder, list):
        return [lambda new, i=i: holder.__setitem__(i, new) for i, item in enumerate(holder) if item is group]  # type: ignore[misc]
    found: list[Put] = []
    if isinstance(holder, dict):
        found += _in_dict(holder, group)
    # An object whose ``__dict__`` was never requested (Python 3.11 and later) is the referrer itself.
    attributes = getattr(holder, "__dict__", None)
    if isinstance(attributes, dict) and attributes is not holder:
        found += _in_dict(attributes, group)
    return found + _in_slots(holder, group)


def _in_slots(holder: object, group: object) -> list[Put]:
    named = [slots for kind in type(holder).__mro__ if (slots := vars(kind).get("__slots__"))]
    names = [name for slots in named for name in ([slots] if isinstance(slots, str) else slots)]
    held = [name for name in names if getattr(holder, name, None) is group]
    return [lambda new, name=name: setattr(holder, name, new) for name in held]  # type: ignore[misc]


def _in_dict(holder: dict[Any, Any], group: object) -> list[Put]:
    keys = [key for key, value in list(dict.items(holder)) if value is group]
    if keys and "__module__" in holder:
        # Set through the class: the interpreter caches class attributes, and does not notice changes of the dict.
        owner = next((each for each in gc.get_referrers(holder) if isinstance(each, type)), None)
        if owner is not None:
            return [lambda new, key=key: setattr(owner, key, new) for key in keys]  # type: ignore[misc]
    return [lambda new, key=key: dict.__setitem__(holder, key, new) for key in keys]  # type: ignore[misc]


def _in_defaults(function: types.FunctionType, group: object) -> list[Put]:
    """Return one function that replaces the whole tuple of default arguments, in a list; [] if `group` is not in it."""
    # `put` must not hold the tuple, which holds the group.
    kept = [None if value is group else value for value in function.__defaults__ or ()]
    at = {i for i, value in enumerate(function.__defaults__ or ()) if value is group}

    def put(new: object) -> None:
        function.__defaults__ = tuple(new if i in at else value for i, value in enumerate(kept))

    return [put] if at else []


def _forget_cached() -> None:
    """Clear the cache of ``mlx.nn``'s ``sum_gradients``, whose entries hold a group."""
    layers = sys.modules.get("mlx.nn.layers.distributed")
    if layers is not None and hasattr(layers.sum_gradients, "cache_clear"):
        layers.sum_gradients.cache_clear()
