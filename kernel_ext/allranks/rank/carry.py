"""Save the user's variables of this rank to a private file, and load them in another process."""

from __future__ import annotations

import os
import struct
import threading
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from . import values
from .trace import mark

GIVEN = frozenset({"mx", "world", "rank", "size"})
"""The names every rank starts with."""
OF_IPYTHON = frozenset({"In", "Out", "exit", "quit", "get_ipython", "open"})
RESCUE_WITHIN = 5.0
"""Seconds one variable may take to be packed: it may wait for the blocked main thread."""
_LENGTH = struct.Struct("<Q")


def user_variables(
    user_ns: Mapping[str, Any], hidden: Mapping[str, Any], given: Collection[str] = GIVEN
) -> dict[str, Any]:
    """What the user made: no underscored names, nothing IPython put there, not what the rank was `given`."""
    return {
        name: value
        for name, value in list(user_ns.items())
        if not name.startswith("_")
        and name not in OF_IPYTHON
        and name not in given
        and value is not mark
        and not (name in hidden and hidden[name] is value)
    }


def save(path: Path, variables: Mapping[str, Any]) -> list[str]:
    """Write what can travel (0600); returns the names that cannot. Objects shared by several names stay shared."""
    whole, left = dict(variables), []
    try:
        buffers = values.pack(whole, for_rank=True)
    except values.CannotTravel:
        for name, value in variables.items():
            try:
                values.pack(value, for_rank=True)
            except values.CannotTravel:
                left.append(name)
                del whole[name]
        buffers = values.pack(whole, for_rank=True)
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        for buffer in buffers:
            view = memoryview(buffer).cast("B")
            file.write(_LENGTH.pack(view.nbytes))
            file.write(view)
    return left


def rescue(path: Path, variables: Mapping[str, Any]) -> list[str]:
    """`save` from another thread while the main one is blocked in a collective for good; returns the names left.

    Arrays that are evaluated can be read from any thread. MLX evaluates pending ones only in the thread that made them
    (0.32.4), so they are left out, as is what does not come to an end.
    """
    ready = {name: value for name, value in variables.items() if _packs_within(value, RESCUE_WITHIN)}
    return [name for name in variables if name not in ready] + save(path, ready)


def _packs_within(value: Any, seconds: float) -> bool:
    packed: list[bool] = []

    def pack() -> None:
        try:
            values.pack(value, for_rank=True)
            packed.append(True)
        except values.CannotTravel:
            pass

    thread = threading.Thread(target=pack, daemon=True)
    thread.start()
    thread.join(seconds)
    return bool(packed)


def load(path: Path) -> dict[str, Any]:
    """Read what `save` wrote."""
    buffers: list[bytes] = []
    with open(path, "rb") as file:
        while head := file.read(_LENGTH.size):
            buffers.append(file.read(_LENGTH.unpack(head)[0]))
    loaded = values.unpack(buffers)
    assert isinstance(loaded, dict)
    return loaded
