"""Take a group out of everything that holds it, and put the next one in.

MLX joins a new world in the same process only after the last reference to the old group is gone. Namespaces, sharded
layers, closures and nested containers hold some: the garbage collector knows them all.
"""

from __future__ import annotations

import gc
import sys
import types
from collections.abc import Callable
from typing import Any

Put = Callable[[Any], None]


def take_out(group: Any) -> list[Put]:
    """Replace `group` by None wherever it is held; each function returned puts a successor in one of these places.

    Tuples cannot be changed and keep the old group, which then raises when it is used.
    """
    _forget_cached()
    places: list[Put] = []
    own = sys._getframe()
    for holder in gc.get_referrers(group):
        if holder is own or isinstance(holder, types.FrameType):
            continue
        places.extend(_places(holder, group))
    for put in places:
        put(None)
    return places


def _places(holder: Any, group: Any) -> list[Put]:
    if isinstance(holder, types.CellType):
        return [lambda new: setattr(holder, "cell_contents", new)]
    if isinstance(holder, list):
        return [lambda new, i=i: holder.__setitem__(i, new) for i, item in enumerate(holder) if item is group]  # type: ignore[misc]
    found: list[Put] = []
    if isinstance(holder, dict):
        found += _in_dict(holder, group)
    # An object whose attributes were never asked for as a dict (Python 3.11 and later) is its own referrer.
    attributes = getattr(holder, "__dict__", None)
    if isinstance(attributes, dict) and attributes is not holder:
        found += _in_dict(attributes, group)
    return found


def _in_dict(holder: dict[Any, Any], group: Any) -> list[Put]:
    keys = [key for key, value in list(dict.items(holder)) if value is group]
    return [lambda new, key=key: dict.__setitem__(holder, key, new) for key in keys]  # type: ignore[misc]


def _forget_cached() -> None:
    """Caches of MLX's own that hold a group."""
    layers: Any = sys.modules.get("mlx.nn.layers.distributed")
    if layers is not None and hasattr(layers.sum_gradients, "cache_clear"):
        layers.sum_gradients.cache_clear()
