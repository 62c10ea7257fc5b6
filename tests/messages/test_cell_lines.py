"""The lines of saved functions, where they are loaded."""

from __future__ import annotations

import inspect
import io
import linecache
import pickle
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from allranks.pickling import pickle_values

FUNCTION = "def fails(by):\n    inner = lambda: 1 / by\n    return inner()\n"


@pytest.fixture(autouse=True)
def no_cells() -> Iterator[None]:
    before = dict(linecache.cache)
    yield
    linecache.cache.clear()
    linecache.cache.update(before)


def cell(number: int, text: str) -> dict[str, Any]:
    """Run a cell, as IPython does."""
    name, found = f"<In[{number}]>", dict[str, Any]()
    linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
    exec(compile(text, name, "exec"), found)
    return found


def stored(function: Callable[..., Any]) -> list[Any]:
    return pickle_values.pack_names({"it": function}, lambda _: None)


def loaded(buffers: list[Any]) -> Callable[..., Any]:
    ((_, value),) = (
        (name, made()) for name, made in pickle_values.unpack_names(pickle.Unpickler(io.BytesIO(buffers[0])))
    )
    function: Callable[..., Any] = value
    return function


def said(function: Callable[..., Any]) -> str:
    with pytest.raises(ZeroDivisionError) as error:
        function(0)
    return "".join(traceback.format_exception(error.value))


def test_a_traceback_shows_the_lines_that_were_saved() -> None:
    saved = stored(cell(2, f"\n{FUNCTION}secret = 'not in it'\n")["fails"])
    assert b"not in it" not in saved[0]
    linecache.cache.clear()
    cell(2, "other = 1\n" * 9)
    function = loaded(saved)
    text = said(function)
    assert 'File "<In[2] (loaded)>", line 4, in fails\n    return inner()' in text
    assert 'File "<In[2] (loaded)>", line 3, in <lambda>\n    inner = lambda: 1 / by' in text
    assert "other" not in text and inspect.getsource(function) == FUNCTION
    again = loaded(stored(function))
    assert again.__code__.co_filename == "<In[2] (loaded)>"


def test_in_the_kernel_that_saved_it_the_name_stays() -> None:
    assert loaded(stored(cell(2, FUNCTION)["fails"])).__code__.co_filename == "<In[2]>"


def test_functions_of_other_cells_with_this_number_get_a_file_of_their_own() -> None:
    one = stored(cell(2, FUNCTION)["fails"])
    two = stored(cell(2, FUNCTION.replace("inner", "other"))["fails"])
    below = stored(cell(2, "\n" * 9 + FUNCTION)["fails"])
    linecache.cache.clear()
    assert [loaded(each).__code__.co_filename for each in (one, two, below, one)] == [
        "<In[2] (loaded)>",
        "<In[2] (loaded 2)>",
        "<In[2] (loaded)>",
        "<In[2] (loaded)>",
    ]
    assert "return inner()" in said(loaded(one)) and "return other()" in said(loaded(two))


def test_functions_whose_lines_are_not_known_show_none() -> None:
    known = stored(cell(2, FUNCTION.replace("inner", "known"))["fails"])
    function = cell(2, FUNCTION)["fails"]
    linecache.cache.clear()
    saved = stored(function)
    cell(2, "other = 1\n" * 9)
    assert "known()" in said(loaded(known))
    text = said(loaded(saved))
    assert "<In[2] (loaded, lines unknown)>" in text
    assert not any(each in text for each in ("other", "inner()", "known()"))


def test_the_lines_of_a_function_are_whole() -> None:
    """Those on which no instruction begins, too: closing brackets, and the rest of a docstring."""
    multi = "def most(by):\n    return max(\n        1,\n        by,\n    )\n"
    said_only = 'def documented():\n    """One line.\n\n    And another.\n    """\n'
    alone = "double = lambda x: (\n    x * 2\n)\n"
    for number, (name, text) in enumerate({"most": multi, "documented": said_only, "double": alone}.items(), 2):
        saved = stored(cell(number, f"before = 1\n{text}after = 2\n")[name])
        linecache.cache.clear()
        cell(number, "other = 1\n" * 9)
        assert inspect.getsource(loaded(saved)) == text


def test_a_line_between_functions_belongs_to_none() -> None:
    """A blank line of one function is not taken by another whose line it was in a later run of the cell."""
    gap = "def gap(by):\n    a = 1\n\n    return a / by\n"
    filled = "def filled(by):\n    a = 1\n    b = 2\n    return b / by\n"
    saved = [stored(cell(2, text)[name]) for name, text in (("gap", gap), ("filled", filled))]
    linecache.cache.clear()
    functions = [loaded(each) for each in saved]
    assert [inspect.getsource(each) for each in functions] == [gap, filled]


def test_functions_of_files_keep_their_file() -> None:
    function = loaded(stored(cell.__globals__["said"]))
    assert function.__code__.co_filename == __file__
