"""Encodes values that the notebook and the ranks send each other: arrays as raw buffers, the rest with pickle.

Both ends are ours and the channel between them is authenticated and encrypted (see `lifeline`), which makes pickle
acceptable here. Arrays, also inside lists, dicts and objects, are sent as pickle protocol 5 out-of-band buffers: their
bytes are never turned into text.
"""

from __future__ import annotations

import dis
import functools
import inspect
import io
import math
import pickle
import sys
import types
import typing
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import cloudpickle

from . import checkpoint_reducers
from .cell_lines import CellLines, file_for, lines_of
from .reducers import ClosureCell, Reduced, keep_slots, reduced

if TYPE_CHECKING:
    from mlx.core import array as Array
    from mlx.core.distributed import Group

    from allranks.messages.value_types import Namespace
    from allranks.messages.wire import Buffer

Stored = Callable[[object], str | None]
"""Returns the key of an object that is stored elsewhere, None for other objects."""


class NotPicklable(ValueError):
    """A value that cannot be sent to another process; the message says why, and which values can be sent."""

    reason = ""
    """The cause, in a few words."""


def pack(value: object, *, for_rank: bool = False) -> list[Buffer]:
    """Turn a value into buffers that `unpack` restores.

    With `for_rank`, the world's Group in the value becomes the receiving rank's own, and the user's functions look up
    their global names in the receiving rank's namespace. Otherwise a Group cannot be sent, since a notebook has none.
    Returns the pickle stream followed by the out-of-band buffers. Evaluates MLX arrays, so an array that depends
    on a pending collective must be packed by every rank. Raises NotPicklable.
    """
    return _packed(lambda _: [value], for_rank)


def unpack(buffers: Sequence[Buffer], *, take: bool = False) -> Any:
    """Restore a value from the buffers of `pack`. Copies numpy arrays out of the message, to make them writable.

    With `take`, an array that arrived in its own ``bytearray``, as large arrays do, uses that memory without a copy.
    The buffers can then be unpacked only once.
    """
    stream, *rest = buffers
    return pickle.loads(stream, buffers=_writable(rest, take))


def pack_call(value: object, without: Container[str]) -> tuple[list[Buffer], set[str]]:
    """Like `pack` for a rank, but also packs the code that functions in the value use from the user's namespace.

    Code means functions, classes and modules, and the code that these use in turn. Data, names in `without`, and code
    that cannot be sent are left out. `unpack_call` restores both. Also returns the files that define the packed
    functions. Raises NotPicklable.
    """
    files: set[str] = set()

    def each(pickler: _Pickler) -> Iterator[object]:
        yield value
        left, seen = pickler.left, set[str]()
        while new := [name for name in left if name not in seen]:
            seen.update(new)
            for name in new:
                if name not in without and is_code(left[name]) and can_travel(left[name]):
                    yield name, left[name]
        files.update(pickler.files)

    return _packed(each, for_rank=True), files


def unpack_call(buffers: Sequence[Buffer]) -> tuple[Any, Namespace]:
    """Return the value that `pack_call` packed, and the code that its functions use, by name.

    The buffers can be unpacked only once.
    """
    stream, *rest = buffers
    unpickler = pickle.Unpickler(io.BytesIO(stream), buffers=_writable(rest, take=True))
    value, names = unpickler.load(), dict[str, Any]()
    while True:
        try:
            name, code = unpickler.load()
        except EOFError:
            return value, names
        names[name] = code


def can_travel(value: object, *, for_rank: bool = True, look_at: float = math.inf) -> bool:
    """Whether `pack` could pack the value, judged by its first `look_at` bytes; evaluates no MLX array."""
    try:
        _packed(lambda _: [value], for_rank, dry=True, most=look_at)
    except NotPicklable:
        return False
    except _LargeEnough:
        pass
    return True


class _LargeEnough(BaseException):
    """Enough bytes were packed. Not an `Exception`, since every `Exception` means that a value cannot be sent."""


class _Stream(io.BytesIO):
    most = math.inf
    """Bytes beyond which `_LargeEnough` is raised."""

    def write(self, data: Any) -> int:
        if self.tell() + len(data) > self.most:
            raise _LargeEnough
        return super().write(data)


def pack_names(variables: Mapping[str, object], stored: Stored | None = None) -> list[Buffer]:
    """Like `pack` for a rank, but for several variables, which `unpack_names` restores one by one.

    Objects that variables share stay shared. Modules come first and callables second, since methods that restore
    objects look up names, too. Objects that are `stored` elsewhere are left out: the ``persistent_load`` of the
    unpickler must return them by their keys.
    """
    names = sorted(variables, key=lambda name: _turn(variables[name]))
    return _packed(lambda _: [names, *(variables[name] for name in names)], for_rank=True, to_keep=True, stored=stored)


def pack_to_compare(value: object, stored: Stored) -> list[Buffer]:
    """Return buffers to compare values of two processes, without the objects that are `stored` elsewhere.

    Equal buffers mean equal values. Equal values may still have different buffers, since the order of a set differs
    between processes. The buffers cannot be unpacked.
    """
    return _packed(lambda _: [value], for_rank=True, to_keep=True, stored=stored, to_compare=True)


def arrays_to_pack(value: object) -> list[Array]:
    """The MLX arrays that `pack_names` would pack for the value. Evaluates none. Raises NotPicklable."""
    arrays: list[Array] = []

    def each(pickler: _Pickler) -> Iterator[object]:
        pickler.arrays = arrays
        yield value

    _packed(each, for_rank=True, to_keep=True, dry=True)
    return arrays


def unpack_names(unpickler: pickle.Unpickler | pickle._Unpickler) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Yield each name of `pack_names` with the function that loads its value; call it before taking the next name."""
    for name in unpickler.load():
        yield name, unpickler.load


def python_function(value: object) -> types.FunctionType | None:
    """The function written in Python that a call of `value` finally runs; None if there is none."""
    while not isinstance(value, types.FunctionType) or hasattr(value, "__wrapped__"):
        if isinstance(value, functools.partial):
            value = value.func
        elif isinstance(value, types.MethodType):
            value = value.__func__
        elif hasattr(value, "__wrapped__"):
            value = value.__wrapped__
        elif isinstance(called := _called(value), types.FunctionType):
            value = called
        else:
            return None
    return value


def is_code(value: object) -> bool:
    """Whether the value is a module, function or class, as opposed to data."""
    return isinstance(value, types.ModuleType) or (callable(value) and hasattr(value, "__qualname__"))


def global_names(code: types.CodeType, operations: Collection[str] = ("LOAD_GLOBAL", "LOAD_NAME")) -> Iterator[str]:
    """The global names that the code of a function, and of functions inside it, uses with the bytecode `operations`."""
    for instruction in dis.get_instructions(code):
        if instruction.opname in operations:
            yield str(instruction.argval)
    for inner in code.co_consts:
        if isinstance(inner, types.CodeType):
            yield from global_names(inner, operations)


def _writable(buffers: Sequence[Buffer], take: bool) -> list[bytearray]:
    return [each if take and isinstance(each, bytearray) else bytearray(each) for each in buffers]


def _called(value: object) -> object:
    """The method that a call of `value` runs: ``__init__`` of a class, ``__call__`` of an object."""
    made = isinstance(value, type)
    return inspect.getattr_static(value if made else type(value), "__init__" if made else "__call__", None)


def _turn(value: object) -> int:
    return 0 if isinstance(value, types.ModuleType) else 1 if callable(value) else 2


def _packed(
    each: Callable[[_Pickler], Iterable[object]],
    for_rank: bool,
    to_keep: bool = False,
    dry: bool = False,
    most: float = math.inf,
    stored: Stored | None = None,
    to_compare: bool = False,
) -> list[Buffer]:
    """Return one stream of several pickles, which share common objects, followed by the out-of-band buffers.

    `each` yields the values; it is called with the pickler, which knows the names that the functions packed so far
    use. `to_keep` also applies `checkpoint_reducers`. `dry` leaves out the content of arrays. Raises NotPicklable, and
    _LargeEnough beyond `most` bytes.
    """
    buffers: list[Buffer] = []
    stream = _Stream()
    stream.most = most
    value = None
    try:
        kind = _Pickler if stored is None else _PicklerBesideStored
        pickler = kind(stream, protocol=5, buffer_callback=lambda buffer: buffers.append(buffer.raw()))
        pickler.to_keep, pickler.dry, pickler.stored, pickler.to_compare = to_keep, dry, stored, to_compare
        if for_rank:
            pickler.for_rank = True
            pickler.globals_ref[id(_namespace())] = _Namespace()
        for value in each(pickler):
            pickler.dump(value)
    except (Exception, SystemExit) as error:  # an object's own __reduce__ may raise anything
        type_name = type(value).__name__
        cannot = NotPicklable(
            f"cannot send {'an' if type_name[:1] in 'aeiouAEIOU' else 'a'} {type_name} to another process "
            f"({_reason(error)}). Arrays, numbers, strings, and lists, dicts and dataclasses of them can be sent."
        )
        cannot.reason = _reason(error)
        raise cannot from None
    return [stream.getvalue(), *buffers]


def _reason(error: BaseException) -> str:
    return str(error).strip().rstrip(".") or type(error).__name__


class _Pickler(cloudpickle.Pickler):
    for_rank = to_keep = dry = to_compare = False
    stored: Stored | None = None

    def __init__(self, *args: object, **kwargs: object) -> None:
        super().__init__(*args, **kwargs)
        self.arrays: list[Array] = []
        """The MLX arrays packed so far."""
        self.left: Namespace = {}
        """The objects that functions use from the user's namespace, by name; they were left out of the pickle."""
        self.files: set[str] = set()
        """The files that define the packed functions: functions of cells, and of modules that are sent by value."""
        self._cells: dict[int, tuple[types.CellType, ClosureCell]] = {}

    def reducer_override(self, obj: Any) -> object:
        mx = sys.modules.get("mlx.core")
        if mx is not None:
            if type(obj) is mx.array:
                self.arrays.append(obj)
                return (list, ()) if self.dry else (array_from_buffer, array_parts(obj))
            if type(obj) is mx.Dtype:
                return _dtype, (_dtype_name(obj),)
            if type(obj) is mx.distributed.Group:
                if self.for_rank and obj is mx.distributed.init():
                    return _own_group, ()
                raise pickle.PicklingError("a Group belongs to the process that joined the world")
        if (own := reduced(obj)) is not None:
            return own
        if self.to_keep and (own := checkpoint_reducers.reduced(obj)) is not None:
            return own
        if type(obj) is types.CodeType:
            file: str | tuple[Any, ...] = (
                "" if self.to_compare else obj.co_filename
            )  # IPython's file name of a cell contains the pid
            if self.stored is not None and not self.to_compare and (lines := lines_of(obj)) is not None:
                file = tuple(lines)
            return _code, (sys.version_info[:2], file, *self.dispatch_table[types.CodeType](obj)[1])
        if type(obj).__name__ == "_gc_func":  # would arrive as the function that was transformed
            raise pickle.PicklingError("MLX does not expose the function that was transformed")
        if self.stored is not None and type(obj) is typing.TypeVar:
            make, args = self.dispatch_table[typing.TypeVar](obj)
            return make, (*args[:-1], None) if make.__name__ == "_make_typevar" else args
        cloudpickled = super().reducer_override(obj)
        if self.for_rank and isinstance(obj, types.FunctionType):
            if obj.__globals__ is _namespace():
                self.left |= _leave_globals(cloudpickled)
                self.files.add(obj.__code__.co_filename)
            elif _sent_by_value(obj.__module__):
                self.files.add(obj.__code__.co_filename)
        if isinstance(obj, type) and isinstance(cloudpickled, tuple):
            keep_slots(cloudpickled, obj)
            if self.stored is not None and cloudpickled[0].__name__ in ("_make_skeleton_class", "_make_skeleton_enum"):
                # By this id, cloudpickle (3.1) finds the class in the process that pickled it, and changes that class.
                *args, _id, extra = cloudpickled[1]
                return (cloudpickled[0], (*args, None, extra), *cloudpickled[2:])
        return cloudpickled

    def _function_getnewargs(self, function: types.FunctionType) -> tuple[object, ...]:
        """Use one closure cell for all functions that share it: cloudpickle (3.1) gives each function its own."""
        *others, closure = super()._function_getnewargs(function)
        cells = function.__closure__ or ()
        shared = tuple(self._cells.setdefault(id(cell), (cell, ClosureCell()))[1] for cell in cells)
        return (*others, None if closure is None else shared)


class _PicklerBesideStored(_Pickler):
    """Leaves out stored objects. A class of its own, since a `persistent_id` method slows down all pickling."""

    def persistent_id(self, obj: object) -> str | None:
        return self.stored(obj) if self.stored is not None else None


class _Namespace:
    """Stands for the user's namespace: unpickled, it is the namespace of the receiving process."""

    def __reduce__(self) -> Reduced:
        return _namespace, ()


def _namespace() -> Namespace:
    return sys.modules["__main__"].__dict__


def _leave_globals(reduced: object) -> Namespace:
    """Remove the global variables of a function from its pickle by cloudpickle (3.1), and return them by name.

    They are sent separately. Variables whose names begin with an underscore stay in the pickle.
    """
    if not (isinstance(reduced, tuple) and len(reduced) > 2 and isinstance(reduced[2], tuple)):
        return {}
    names = reduced[2][1]["__globals__"]
    return {name: names.pop(name) for name in list(names) if not name.startswith("_")}


def _code(python: tuple[int, int], file: str | tuple[Any, ...], *args: Any) -> types.CodeType:
    """Restore code with its file name, needed to show its lines: cloudpickle 3.1.3 sends ``<dynamic-code>`` instead.

    Raises RuntimeError if another version of Python compiled it, since running it could crash the process.
    """
    if python != sys.version_info[:2]:
        here = ".".join(map(str, sys.version_info[:2]))
        raise RuntimeError(f"Python {'.'.join(map(str, python))} compiled its functions, and this is Python {here}")
    return types.CodeType(*args).replace(co_filename=file if isinstance(file, str) else file_for(CellLines(*file)))


def _sent_by_value(module: str | None) -> bool:
    """Whether the user told cloudpickle to send this module's code, as for a module that ranks cannot import."""
    registered = cloudpickle.list_registry_pickle_by_value()
    return any(module == name or (module or "").startswith(f"{name}.") for name in registered)


def _own_group() -> Group:
    import mlx.core as mx

    return mx.distributed.init()  # MLX returns the group that this process has joined


def _dtype_name(dtype: object) -> str:
    return str(dtype).removeprefix("mlx.core.")


def _dtype(name: str) -> object:
    import mlx.core as mx

    return getattr(mx, "bool_" if name == "bool" else name)


def array_parts(array: Array) -> tuple[str, tuple[int, ...], pickle.PickleBuffer]:
    """The dtype, the shape and the bytes of an MLX array, which is evaluated."""
    import mlx.core as mx
    import numpy as np

    name = _dtype_name(array.dtype)
    # numpy has no bfloat16, so its bits are sent as 16-bit integers.
    plain = array.view(mx.uint16) if name == "bfloat16" else array
    return name, tuple(array.shape), pickle.PickleBuffer(np.ascontiguousarray(np.array(plain, copy=False)).data)


def array_from_buffer(name: str, shape: Sequence[int], buffer: Buffer) -> Array:
    """Restore the MLX array from its `array_parts`."""
    import mlx.core as mx
    import numpy as np

    plain = np.frombuffer(buffer, dtype="uint16" if name == "bfloat16" else name).reshape(shape)
    # By default, MLX would convert numpy's float64 to float32.
    array = mx.array(plain, dtype=mx.float64) if name == "float64" else mx.array(plain)
    if isinstance(buffer, bytearray):  # MLX has copied it, and the unpickler would keep it until everything is loaded
        del plain
        buffer.clear()
    return array.view(mx.bfloat16) if name == "bfloat16" else array
