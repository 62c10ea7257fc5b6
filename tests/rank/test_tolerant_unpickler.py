"""What can be made of a pickle is made, shared as it was; values that hold what could not be made are told apart."""

from __future__ import annotations

import io
import pickle
import sys
import types
from collections import OrderedDict, deque
from typing import Any

import cloudpickle
import numpy as np
import pytest

from allranks.rank.values.tolerant_unpickler import TolerantUnpickler

SHARED = [1, 2]


class NotSet:
    """Its state cannot be restored."""

    def __init__(self, held: Any = None) -> None:
        self.held = held

    def __setstate__(self, state: Any) -> None:
        raise ValueError("not\nset")


class NotMade:
    """It cannot be made."""

    def __init__(self, held: Any) -> None:
        self.held = held

    def __reduce__(self) -> Any:
        return NotMade, (), {"held": self.held}


class NotNew:
    def __new__(cls, *, held: Any) -> NotNew:
        if held == "raise":
            raise KeyError("new")
        return super().__new__(cls)

    def __getnewargs_ex__(self) -> Any:
        return (), {"held": "raise"}


class NotAdded(list):  # type: ignore[type-arg]
    def extend(self, _items: Any) -> None:
        raise TypeError("full")


class Leaves:
    def __setstate__(self, _state: Any) -> None:
        sys.exit("gone")


def loaded(*values: Any) -> tuple[list[Any], list[str | None]]:
    """The values of one stream, and why each is not what it should be."""
    unpickler = TolerantUnpickler(io.BytesIO(cloudpickle.dumps(list(values))), buffers=())
    back = unpickler.load()
    return back, why_not(unpickler, back)


def why_not(unpickler: TolerantUnpickler, back: list[Any]) -> list[str | None]:
    broken = unpickler.broken({str(number): each for number, each in enumerate(back)}, {})
    return [broken.get(str(number)) for number in range(len(back))]


@pytest.mark.parametrize(
    ("broken", "reason"),
    [
        (NotSet(SHARED), "ValueError: not"),
        (NotMade(SHARED), "TypeError: NotMade.__init__() missing"),
        (NotNew(held=""), "KeyError: 'new'"),
        (NotAdded([SHARED, SHARED]), "TypeError: full"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_value_is_left_out_with_all_that_holds_it_and_the_others_stay_shared(broken: Any, reason: str) -> None:
    class Holder:
        def __init__(self, held: Any) -> None:
            self.held = held

    function = lambda: broken  # noqa: E731
    in_numpy = np.empty(2, dtype=object)
    in_numpy[1] = broken
    holders = [
        *([broken], (1, broken), {"x": broken}, {3: [broken]}),
        *(deque([broken]), OrderedDict(x=broken), Holder([broken]), function, in_numpy),
    ]
    back, why = loaded(broken, *holders, SHARED, {"shared": SHARED}, Holder)
    assert all(each is not None and each.startswith(reason) for each in why[: len(holders) + 1]), why
    assert why[len(holders) + 1 :] == [None, None, None]
    assert back[-3] == SHARED and back[-2]["shared"] is back[-3]


def test_what_a_broken_object_was_made_of_is_whole() -> None:
    model = [1]
    back, why = loaded(NotMade(model), [model, NotSet(model)], model)
    assert why[2] is None and back[2] == [1]
    assert why[0] is not None and why[1] is not None


def test_a_class_that_is_missing_and_what_is_made_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.ModuleType("gone_tomorrow")
    exec("class Thing:\n    pass\ndef make(x):\n    return x", module.__dict__)
    monkeypatch.setitem(sys.modules, "gone_tomorrow", module)
    data = pickle.dumps([module.Thing, module.Thing(), module.make, SHARED])
    monkeypatch.delitem(sys.modules, "gone_tomorrow")
    unpickler = TolerantUnpickler(io.BytesIO(data), buffers=())
    back = unpickler.load()
    said = "ModuleNotFoundError: No module named 'gone_tomorrow'"
    assert why_not(unpickler, back) == [said, said, said, None]


def test_a_class_whose_attributes_cannot_be_set_is_broken_itself() -> None:
    class Meta(type):
        def __setattr__(cls, name: str, value: Any) -> None:
            if name == "rate":
                raise AttributeError("not this one")
            super().__setattr__(name, value)

    class Tuned(metaclass=Meta):
        rate = 3

    # By value, as a class of a cell travels; cloudpickle would find this one again.
    data = cloudpickle.dumps([Tuned, Tuned(), SHARED])
    unpickler = TolerantUnpickler(io.BytesIO(data), buffers=())
    back = unpickler.load()
    why = why_not(unpickler, back)
    assert why == ["AttributeError: not this one"] * 2 + [None]


def test_an_object_that_ends_the_program_does_not() -> None:
    leaves = Leaves()
    leaves.__dict__["x"] = 1
    assert loaded(leaves, 3)[1] == ["SystemExit: gone", None]


def test_two_that_hold_each_other_are_broken_together() -> None:
    one, two = [NotSet(1)], [SHARED]
    one.append(two)  # type: ignore[arg-type]
    two.append(one)  # type: ignore[arg-type]
    assert loaded(two, one, SHARED)[1] == ["ValueError: not", "ValueError: not", None]


def test_a_damaged_stream_is_an_error() -> None:
    with pytest.raises(EOFError):
        TolerantUnpickler(io.BytesIO(pickle.dumps([SHARED] * 3)[:-9]), buffers=()).load()
