"""Pickling of a rank's variables for files and for other ranks: views are restored with the objects that they view.

Single values and calls are pickled without these reducers, so that a view of an array is sent without the rest.
"""

from __future__ import annotations

import gc
import io
import mmap
import pickle
import sys
import types
import weakref
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

from .reducers import Reduced

_VIEWED: Sequence[dict[object, object]] = ({}, OrderedDict())
_DICT_VIEWS = {type(getattr(of, name)()): name for of in _VIEWED for name in ("keys", "values", "items")}


def reduced(obj: Any) -> Reduced | None:
    """Return the reduced value of an object; None if it needs no reducer of this module.

    Raises PicklingError for an object that cannot be restored as it is.

    cloudpickle (3.1) turns an open file into a string, and a memoryview into bytes.
    """
    kind = type(obj)
    if kind in _DICT_VIEWS:
        return _view_of_dict, (gc.get_referents(obj)[0], _DICT_VIEWS[kind])
    if kind is types.MappingProxyType:
        return types.MappingProxyType, (gc.get_referents(obj)[0],)
    if kind is memoryview:
        return _reduced_memoryview(obj)
    if kind is weakref.ref and obj.__callback__ is None and (referent := obj()) is not None:
        return weakref.ref, (referent,)
    if kind in (io.TextIOWrapper, weakref.finalize, *weakref.ProxyTypes):
        raise pickle.PicklingError(f"a {kind.__name__} belongs to its process")
    numpy = sys.modules.get("numpy")
    return _reduced_numpy(numpy, obj) if numpy is not None and kind in (numpy.ndarray, numpy.memmap) else None


def _view_of_dict(of: object, name: str) -> object:
    return getattr(of, name)()


def _reduced_memoryview(view: memoryview) -> Reduced:
    whole = memoryview(view.obj)
    if any(
        getattr(view, each) != getattr(whole, each) for each in ("nbytes", "format", "shape", "strides", "readonly")
    ):
        raise pickle.PicklingError("a memoryview of a part")
    return memoryview, (view.obj,)


def _reduced_numpy(numpy: types.ModuleType, array: Any) -> Reduced | None:
    base = array.base
    if isinstance(base, mmap.mmap) and type(array) is numpy.memmap:
        if array.filename is None or array.mode == "c":
            raise pickle.PicklingError("memory that is mapped, and not from a file")
        order = "C" if array.flags.c_contiguous else "F"
        mode = "r+" if array.mode == "w+" else array.mode
        return _mapped_again, (str(array.filename), array.dtype, mode, array.offset, array.shape, order)
    contiguous = isinstance(base, numpy.ndarray) and (base.flags.c_contiguous or base.flags.f_contiguous)
    if not contiguous or array.dtype.hasobject or base.dtype.hasobject or not array.size:
        return None
    start, offset = (each.__array_interface__["data"][0] for each in (base, array))
    layout = (array.dtype, array.shape, array.strides, offset - start, array.flags.writeable)
    return _view_of_array, (base, type(array), *layout)


def _mapped_again(filename: str, dtype: Any, mode: Any, offset: int, shape: tuple[int, ...], order: Any) -> object:
    import numpy

    return numpy.memmap(filename, dtype, mode, offset, shape, order)


def _view_of_array(
    base: Any, kind: Any, dtype: Any, shape: tuple[int, ...], strides: tuple[int, ...], offset: int, writeable: bool
) -> object:
    import numpy

    buffer = base if base.flags.c_contiguous else base.T
    array = numpy.ndarray(shape, dtype, buffer, offset, strides).view(kind)
    array.flags.writeable = writeable and base.flags.writeable
    return array
