"""What Python's own messages call the code of a cell."""

from __future__ import annotations

import linecache
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from IPython.core.compilerop import CachingCompiler

from allranks.rank.cell.code_names import KEPT_OF_SAME, CodeNames

if TYPE_CHECKING:
    from allranks import Cluster


@pytest.fixture
def compiler() -> Iterator[CachingCompiler]:
    compiler = CachingCompiler()
    compiler.get_code_name = CodeNames(compiler).name  # type: ignore[assignment, method-assign]
    yield compiler
    for name in compiler._filename_map:
        linecache.cache.pop(name, None)


def test_other_code_of_the_same_number_has_a_name_of_its_own(compiler: CachingCompiler) -> None:
    names = [compiler.cache(code, number) for code, number in (("a", 3), ("a", 3), ("b", 3), ("a", 4), ("c", 3))]
    assert names == ["<In[3]>", "<In[3]>", "<In[3].2>", "<In[4]>", "<In[3].3>"]
    assert [linecache.getline(name, 1).strip() for name in names] == ["a", "a", "b", "a", "c"]


def test_a_cell_that_is_run_again_and_again_does_not_fill_the_cache_of_lines(compiler: CachingCompiler) -> None:
    names = [compiler.cache("again", number) for number in range(10 * KEPT_OF_SAME)]
    kept = [name for name in names if name in linecache.cache]
    assert kept == names[-KEPT_OF_SAME:] and list(compiler._filename_map) == kept


PRINTED = """import logging, traceback, warnings
def fails():
    warnings.warn('old')
    1 / 0
try:
    fails()
except ZeroDivisionError:
    print(traceback.format_exc())"""


def test_printed_tracebacks_and_warnings_name_the_cell(ring2: Cluster) -> None:
    result = ring2.run(PRINTED, timeout=60).check()
    for rank in result.values():
        said = rank.stdout + rank.stderr
        assert f'File "<In[{result.cell}]>", line 4, in fails\n    1 / 0' in rank.stdout
        assert f"Cell In[{result.cell}], line 3: UserWarning: old" in rank.stderr
        assert "<cell" not in said and "ipykernel_" not in said
