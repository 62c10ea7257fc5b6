"""Values between the notebook and the ranks: arrays as raw buffers, the rest with pickle.

Both ends are ours and the channel between them is authenticated and encrypted (see `agent`), which is what makes pickle
acceptable here. Arrays, also inside lists, dicts and objects, travel as pickle protocol 5 out-of-band buffers: their
bytes are never turned into text.
"""

from __future__ import annotations

import io
import pickle
import sys
import types
from collections.abc import Sequence
from typing import Any

import cloudpickle


class CannotTravel(ValueError):
    """A value that cannot leave the process it lives in; the message says which part and what can."""


def pack(value: Any, *, for_rank: bool = False) -> list[Any]:
    """Turn a value into buffers that `unpack` restores.

    With `for_rank`, the world's Group in it becomes the receiving rank's own (a notebook has none, so otherwise it
    cannot travel), and the user's functions look up their global names in the receiving rank's namespace.
    Returns the pickle stream followed by the out-of-band buffers. Evaluates MLX arrays, so a pending collective among
    them must be packed by every rank. Raises CannotTravel.
    """
    buffers: list[Any] = []
    stream = io.BytesIO()
    try:
        pickler = _Pickler(stream, protocol=5, buffer_callback=lambda buffer: buffers.append(buffer.raw()))
        if for_rank:
            pickler.for_rank = True
            pickler.globals_ref[id(_namespace())] = _Namespace()
        pickler.dump(value)
    except Exception as error:  # an object's own __reduce__ may raise anything
        raise CannotTravel(
            f"a value of type {type(value).__name__} cannot travel between processes ({_reason(error)}). "
            "Arrays, numbers, strings, and lists, dicts and dataclasses of them can."
        ) from None
    return [stream.getvalue(), *buffers]


def unpack(buffers: Sequence[Any]) -> Any:
    """The value of `pack`. Numpy arrays are copied once out of the message, so that they can be written to."""
    stream, *rest = buffers
    return pickle.loads(stream, buffers=[bytearray(buffer) for buffer in rest])


def _reason(error: Exception) -> str:
    return str(error).strip().rstrip(".") or type(error).__name__


class _Pickler(cloudpickle.Pickler):
    for_rank = False

    def reducer_override(self, obj: Any) -> Any:
        mx = sys.modules.get("mlx.core")
        if mx is not None:
            if type(obj) is mx.array:
                return _array_from_buffer, _array_parts(obj)
            if type(obj) is mx.Dtype:
                return _dtype, (_dtype_name(obj),)
            if type(obj) is mx.distributed.Group:
                if self.for_rank and obj is mx.distributed.init():
                    return _own_group, ()
                raise pickle.PicklingError("a Group belongs to the process that joined the world")
            if type(obj).__name__ == "_gc_func":  # it would arrive as the function it was made of
                raise pickle.PicklingError("MLX does not tell what this transformed function was made of")
        reduced = super().reducer_override(obj)
        if self.for_rank and isinstance(obj, types.FunctionType) and obj.__globals__ is _namespace():
            _leave_globals(reduced)
        return reduced


class _Namespace:
    """Stands for the user's namespace, in a process as it is there."""

    def __reduce__(self) -> Any:
        return _namespace, ()


def _namespace() -> dict[str, Any]:
    return sys.modules["__main__"].__dict__


def _leave_globals(reduced: Any) -> None:
    """Take the global names that a function uses out of what cloudpickle (3.1) sends with it.

    They travel by themselves. Underscored ones do not, so they stay.
    """
    if isinstance(reduced, tuple) and len(reduced) > 2 and isinstance(reduced[2], tuple):
        names = reduced[2][1]["__globals__"]
        for name in [name for name in names if not name.startswith("_")]:
            del names[name]


def _own_group() -> Any:
    import mlx.core as mx

    return mx.distributed.init()  # the group this process has joined: MLX keeps it


def _dtype_name(dtype: Any) -> str:
    return str(dtype).removeprefix("mlx.core.")


def _dtype(name: str) -> Any:
    import mlx.core as mx

    return getattr(mx, name)


def _array_parts(array: Any) -> tuple[str, tuple[int, ...], pickle.PickleBuffer]:
    import mlx.core as mx
    import numpy as np

    name = _dtype_name(array.dtype)
    # numpy has no bfloat16: its bits travel as 16-bit integers.
    plain = array.view(mx.uint16) if name == "bfloat16" else array
    return name, tuple(array.shape), pickle.PickleBuffer(np.ascontiguousarray(np.array(plain, copy=False)).data)


def _array_from_buffer(name: str, shape: tuple[int, ...], buffer: Any) -> Any:
    import mlx.core as mx
    import numpy as np

    plain = np.frombuffer(buffer, dtype="uint16" if name == "bfloat16" else name).reshape(shape)
    # MLX would make float32 of numpy's float64 unless told not to.
    array = mx.array(plain, dtype=mx.float64) if name == "float64" else mx.array(plain)
    return array.view(mx.bfloat16) if name == "bfloat16" else array
