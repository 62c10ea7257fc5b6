"""Objects whose own pickling is lost in another process come back: cached functions, exceptions, MLX's random state."""

from __future__ import annotations

import functools
import sys
import tokenize
import types
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from allranks.pickling.pickle_values import NotPicklable, pack, pack_names, unpack
from allranks.rank.values import checkpoint


@pytest.fixture
def user_ns(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Stands for the namespace of cells, which is that of ``__main__`` in a rank."""
    main = types.ModuleType("__main__")
    monkeypatch.setitem(sys.modules, "__main__", main)
    return main.__dict__


def carried(user_ns: dict[str, Any], code: str, file: Path) -> None:
    """Run a cell, and bring what it made to a namespace that is as empty as a new process's."""
    exec(code, user_ns)
    assert checkpoint.save(file, checkpoint.user_variables(user_ns, {})).left == []
    user_ns.clear()
    assert checkpoint.load(file, user_ns).failed == {}


def test_a_cached_function_of_a_cell_finds_itself_and_its_cache_is_empty(
    user_ns: dict[str, Any], tmp_path: Path
) -> None:
    code = """import functools
@functools.lru_cache(maxsize=7, typed=True)
def fib(n):
    "The nth."
    return n if n < 2 else fib(n - 1) + fib(n - 2)
fib.unit = "rabbits"
fib(3)
class Model:
    scale = 3
    @functools.cache
    def scaled(self, x):
        return x * self.scale
model = Model()"""
    carried(user_ns, code, tmp_path / "0")
    fib = user_ns["fib"]
    assert fib.cache_info() == (0, 0, 7, 0) and fib.cache_parameters() == {"maxsize": 7, "typed": True}
    assert fib(30) == 832040 and (fib.unit, fib.__doc__) == ("rabbits", "The nth.")
    assert user_ns["model"].scaled(5) == 15


def test_a_cached_function_that_was_made_in_another_one() -> None:
    def make() -> Any:
        @functools.cache
        def fib(n: int) -> int:
            return n if n < 2 else fib(n - 1) + fib(n - 2)

        return fib

    assert unpack(pack(make()))(30) == 832040


def test_a_cached_function_of_a_module_is_the_modules() -> None:
    assert unpack(pack(tokenize._compile)) is tokenize._compile  # type: ignore[attr-defined]


class TwoArguments(Exception):
    def __init__(self, where: str, why: int) -> None:
        super().__init__(f"{where}: {why}")
        self.where, self.why = where, why


class Undecodable(UnicodeDecodeError):
    def __init__(self, text: bytes) -> None:
        super().__init__("ascii", text, 0, 1, "not ours")


class NoDisk(OSError):
    def __init__(self, *, path: str) -> None:
        super().__init__(28, "no room", path)


class Several(ExceptionGroup):
    def __init__(self, message: str, excs: list[Exception]) -> None:
        self.first = excs[0]


class OwnWay(Exception):
    def __init__(self, number: int) -> None:
        super().__init__("a number")
        self.number = number

    def __reduce__(self) -> Any:
        return OwnWay, (self.number + 1,)


def test_an_exception_whose_init_takes_other_arguments_keeps_its_message_and_attributes() -> None:
    error = TwoArguments("here", 3)
    error.add_note("look twice")
    back = unpack(pack([error, error]))
    assert back[0] is back[1] and type(back[0]) is TwoArguments
    assert (str(back[0]), back[0].args, vars(back[0])) == (str(error), error.args, vars(error))


def test_exceptions_of_builtin_kinds_keep_what_these_know() -> None:
    undecodable = unpack(pack(Undecodable(b"\xff")))
    assert (undecodable.object, undecodable.reason, str(undecodable)) == (
        b"\xff",
        "not ours",
        str(Undecodable(b"\xff")),
    )
    full = unpack(pack(NoDisk(path="/x")))
    assert (full.errno, full.filename, str(full)) == (28, "/x", str(NoDisk(path="/x")))
    several = unpack(pack(Several("both", [ValueError(1), KeyError(2)])))
    assert several.first is several.exceptions[0] and len(several.exceptions) == 2


def test_an_exception_that_has_a_way_of_its_own_goes_that_way() -> None:
    assert unpack(pack(OwnWay(3))).number == 4


def test_the_random_state_becomes_that_of_the_process_it_comes_to() -> None:
    assert unpack(pack({"state": [mx.random.state]}))["state"][0] is mx.random.state


def test_functions_share_the_variables_that_they_were_made_with() -> None:
    def make() -> Any:
        count = 0

        def up() -> int:
            nonlocal count
            count += 1
            return count

        return up, lambda: (count, up)

    up, get = unpack(pack(make()))
    up()
    assert up() == 2 and get() == (2, up)


def test_a_class_has_its_slots() -> None:
    class Point:
        __slots__ = ("x", "y")
        x: int

    point = Point()
    point.x = 3
    back = unpack(pack([point]))[0]
    assert back.x == 3 and not hasattr(back, "y") and not hasattr(back, "__dict__")


def test_an_exception_knows_what_it_came_from() -> None:
    try:
        try:
            raise KeyError("first")
        except KeyError as error:
            raise TwoArguments("here", 3) from error
    except TwoArguments as error:
        back = unpack(pack(error))
    assert repr(back.__cause__) == repr(back.__context__) == "KeyError('first')" and back.__suppress_context__
    assert unpack(pack(ValueError(3))).args == (3,)


def test_arrays_that_are_kept_share_memory_as_they_did(user_ns: dict[str, Any], tmp_path: Path) -> None:
    code = """import numpy as np
whole = np.asfortranarray(np.arange(12.0).reshape(3, 4))
part = whole[::-2, 1:]
fixed = whole[0]
fixed.flags.writeable = False
mapped = np.memmap(FILE, dtype="int16", mode="w+", shape=(2, 3), offset=2)
mapped[1] = 7
row, text = mapped[1], memoryview(bytearray(b"text"))
letters = {"a": 1}
keys = letters.keys()"""
    carried(user_ns, code.replace("FILE", repr(str(tmp_path / "mapped"))), tmp_path / "0")
    user_ns["whole"][2, 1] = 100
    assert user_ns["part"].tolist() == [[100, 10, 11], [1, 2, 3]] and not user_ns["fixed"].flags.writeable
    user_ns["row"][0] = 9
    assert np.fromfile(tmp_path / "mapped", "int16", offset=2).tolist() == [0, 0, 0, 9, 7, 7]
    user_ns["letters"]["b"] = 2
    assert list(user_ns["keys"]) == ["a", "b"] and bytes(user_ns["text"]) == b"text"


def test_a_part_that_is_sent_is_that_part_alone() -> None:
    assert sum(memoryview(buffer).nbytes for buffer in pack(np.ones(10_000)[:2])) < 1000


def test_what_would_come_back_as_something_else_cannot_be_kept(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("text")
    with open(tmp_path / "file") as file:
        for each in (file, memoryview(b"text")[1:]):
            with pytest.raises(NotPicklable):
                pack_names({"each": each})


def test_what_ends_the_process_when_it_is_saved_cannot_be_kept() -> None:
    class Rude:
        def __reduce__(self) -> Any:
            raise SystemExit("no")

    with pytest.raises(NotPicklable, match="no"):
        pack(Rude())
