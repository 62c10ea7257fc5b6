"""Load a pickle as far as possible: if an object cannot be made, continue, and report the values that hold it.

`TolerantUnpickler` is Python's unpickler in pure Python, with guards around the operations that run other code. It is
some 30 times slower than the unpickler in C, so it is used only for streams that the latter could not load.
"""

from __future__ import annotations

import gc
import pickle
import sys
import types
from collections.abc import Callable, Iterable, Mapping
from typing import IO, Any, ClassVar

from allranks.messages.value_types import Namespace

SURVIVED = (Exception, SystemExit)
REASON_LENGTH = 200
_PLAIN = frozenset({int, float, complex, bool, str, bytes, bytearray, type(None)})
"""Types whose objects hold no other objects."""


class Missing:
    """Replaces an object that could not be made."""

    __slots__ = ("reason", "target")

    def __init__(self, reason: str, target: object = None) -> None:
        self.reason = reason
        self.target = target
        """The first argument of the call that failed."""


Load = Callable[["TolerantUnpickler"], None]


def _making(load: Callable[[Any], object], operands: int, on_top: bool) -> Load:
    """Guard an operation that makes an object: on failure, Missing replaces the topmost object or is pushed on top."""

    def guarded(self: TolerantUnpickler) -> None:
        given = self.stack[-operands:] if operands else []
        try:
            load(self)
        except SURVIVED as error:
            missing = _missing(error, given)
            self.mark(missing, missing.reason)
            if on_top:
                self.stack[-1] = missing
            else:
                self.append(missing)

    return guarded


def _filling(load: Callable[[Any], object]) -> Load:
    """Guard an operation that fills the topmost object: on failure, that object is marked."""

    def guarded(self: TolerantUnpickler) -> None:
        try:
            load(self)
        except SURVIVED as error:
            self.mark(self.stack[-1], _said(error))

    return guarded


class TolerantUnpickler(pickle._Unpickler):
    stack: list[Any]
    append: Callable[[object], None]
    dispatch: ClassVar[dict[int, Callable[[Any], None]]] = {
        **pickle._Unpickler.dispatch,
        pickle.REDUCE[0]: _making(pickle._Unpickler.load_reduce, 2, on_top=True),  # type: ignore[attr-defined]
        pickle.NEWOBJ[0]: _making(pickle._Unpickler.load_newobj, 2, on_top=False),  # type: ignore[attr-defined]
        pickle.NEWOBJ_EX[0]: _making(pickle._Unpickler.load_newobj_ex, 3, on_top=False),  # type: ignore[attr-defined]
        pickle.FROZENSET[0]: _making(pickle._Unpickler.load_frozenset, 0, on_top=False),  # type: ignore[attr-defined]
        **{
            code[0]: _filling(pickle._Unpickler.dispatch[code[0]])
            for code in (
                *(pickle.BUILD, pickle.APPEND, pickle.APPENDS, pickle.SETITEM, pickle.SETITEMS, pickle.ADDITEMS),
            )
        },
    }

    def __init__(self, file: IO[bytes], *, buffers: Iterable[object]) -> None:
        super().__init__(file, buffers=buffers)
        self._broken: dict[int, tuple[object, str]] = {}
        """The broken objects and the reasons, by ``id``."""

    def mark(self, obj: object, reason: str) -> None:
        """Record that `obj` is broken; the first reason counts."""
        self._broken.setdefault(id(obj), (obj, reason))

    def find_class(self, module: str, name: str) -> object:
        try:
            return super().find_class(module, name)
        except SURVIVED as error:
            missing = _missing(error, [])
            self.mark(missing, missing.reason)
            return missing

    def _load_pop(self) -> None:
        """Drop the topmost object. If it is Missing for a call that was to set an object's state, mark that object."""
        if self.stack and isinstance(self.stack[-1], Missing) and self.stack[-1].target is not None:
            self.mark(self.stack[-1].target, self.stack[-1].reason)
        pickle._Unpickler.load_pop(self)  # type: ignore[attr-defined]

    dispatch[pickle.POP[0]] = _load_pop

    def broken(self, values: Mapping[str, object], namespace: Namespace) -> dict[str, str]:
        """The names of the `values` that are, or hold, a broken object, and why.

        Objects that functions look up in the `namespace` or in modules do not count as held, except objects with
        underscored names in the `namespace`: they are saved with the functions.
        """
        if not self._broken:
            return {}
        stop = {id(vars(module)) for module in list(sys.modules.values()) if isinstance(module, types.ModuleType)}
        stop.add(id(namespace))
        holders: dict[int, list[int]] = {}
        waiting, seen = list(values.values()), set[int]()
        while waiting:
            each = waiting.pop()
            if id(each) in seen or id(each) in stop or _is_imported(each):
                continue
            seen.add(id(each))
            for held in _held_by(each, namespace):
                if type(held) not in _PLAIN:
                    holders.setdefault(id(held), []).append(id(each))
                    waiting.append(held)
        reasons = {number: reason for number, (_, reason) in self._broken.items()}
        spreading = list(reasons)
        while spreading:
            number = spreading.pop()
            for holder in holders.get(number, ()):
                if holder not in reasons:
                    reasons[holder] = reasons[number]
                    spreading.append(holder)
        return {name: reasons[id(value)] for name, value in values.items() if id(value) in reasons}


def _held_by(each: Any, namespace: Namespace) -> list[object]:
    held = gc.get_referents(each)
    if type(each) is types.FunctionType and each.__globals__ is namespace:
        held += [namespace.get(name) for name in each.__code__.co_names if name.startswith("_")]
    if type(each).__name__ == "ndarray" and each.dtype.hasobject:  # numpy hides the elements from the collector
        held += each.ravel().tolist()
    return held


def _is_imported(each: object) -> bool:
    """Whether the object is a module, or a class that was not defined in a cell."""
    kind = type(each)
    return issubclass(kind, types.ModuleType) or (issubclass(kind, type) and each.__module__ != "__main__")


def _missing(error: BaseException, operands: list[object]) -> Missing:
    """A Missing with the error as its reason, or with the reason of an operand that is Missing itself."""
    args = operands[1] if len(operands) > 1 and isinstance(operands[1], tuple) else ()
    reason = next((each.reason for each in (*operands, *args) if isinstance(each, Missing)), "") or _said(error)
    return Missing(reason, args[0] if args else None)


def _said(error: BaseException) -> str:
    first = (str(error).strip().splitlines() or [""])[0][:REASON_LENGTH]
    return f"{type(error).__name__}: {first}" if first else type(error).__name__
