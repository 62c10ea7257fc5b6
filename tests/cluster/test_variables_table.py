"""Scatter, gather, and the table of variables."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

import mlx.core as mx
import numpy as np
import pytest

from allranks.cluster.variables_table import Variables
from allranks.errors import UsageError

if TYPE_CHECKING:
    from allranks import Cluster
    from tests.jupyter import Notebook


def row(table: Variables, name: str) -> tuple[str, str, str]:
    found = next(each for each in table.rows if each.name == name)
    return found.type, found.shape, found.said


@pytest.mark.parametrize("length", [8, 7, 1, 0])
@pytest.mark.parametrize("kind", ["mlx", "numpy", "list"])
def test_what_is_scattered_can_be_gathered(ring2: Cluster, kind: str, length: int) -> None:
    plain = np.arange(length * 3, dtype="float32").reshape(length, 3)
    whole = {"mlx": mx.array(plain), "numpy": plain, "list": list(map(tuple, plain.tolist()))}[kind]
    ring2.scatter({"part": whole})
    assert ring2.run("len(part)").check()[0].value == (length + 1) // 2
    back = ring2.gather("part")
    if kind == "list":
        assert back == whole
    else:
        assert type(back) is type(whole)
        assert np.array_equal(np.array(back), plain)


def test_what_cannot_be_cut_or_joined_is_refused(ring2: Cluster) -> None:
    for value in (3, "text", {"a": 1}, {"a": 1}.keys(), {1, 2}, deque([1, 2]), mx.array(1.0)):
        with pytest.raises(UsageError, match=r"part is a .*: only arrays, lists and tuples can be scattered"):
            ring2.scatter({"part": value})
    ring2.run("part = 3 if rank else [1]").check()
    with pytest.raises(UsageError, match="cannot join part: it is int and list, neither arrays nor lists"):
        ring2.gather("part")


def test_the_table_says_who_agrees_and_evaluates_nothing(ring2: Cluster) -> None:
    ring2.run(
        "import mlx.nn as nn\n"
        "import numpy as np\n"
        "mx.random.seed(1)\n"
        "model = nn.Linear(4, 2); mx.eval(model)\n"
        "own = mx.full((3,), rank); mx.eval(own)\n"
        "alike = np.ones((2, 5))\n"
        "shapes = mx.zeros((rank + 1,)); mx.eval(shapes)\n"
        "half = mx.ones(4, dtype=mx.bfloat16); mx.eval(half)\n"
        "number = 3\n"
        "opaque = object()\n"
        "scalar = np.mean(alike)\n"
        "endless = []; endless.append(endless)\n"
        "if rank == 1: only = 1\n"
        "waiting = mx.distributed.all_sum(mx.ones(3))"
    ).check()
    table = ring2.vars()
    assert row(table, "model") == ("Linear", "", "identical")
    assert row(table, "own") == ("array", "i32[3]", "differ: 0 | 1")
    assert row(table, "alike") == ("ndarray", "f64[2,5]", "identical")
    assert row(table, "shapes") == ("array", "f32[1] / f32[2]", "differ")
    assert row(table, "half") == ("array", "bf16[4]", "identical")
    assert row(table, "number") == ("int", "", "identical")
    assert row(table, "opaque") == ("object", "", "not compared")
    assert row(table, "scalar")[2] == "identical"
    assert row(table, "endless") == ("list", "", "not compared")
    assert row(table, "only") == ("int", "", "only on rank 1")
    assert row(table, "waiting") == ("array", "f32[3]", "not evaluated on ranks 0-1")
    sizes = {each.name: each.nbytes for each in table.rows}
    assert (
        sizes["model"] == {0: 40, 1: 40} and sizes["shapes"] == {0: 4, 1: 8} and sizes["number"] == {0: None, 1: None}
    )
    assert not {"np", "nn", "mx", "rank"} & sizes.keys()
    assert "f32[1] / f32[2]" in str(table) and "<table" in table._repr_html_()
    assert ring2.run("waiting.tolist()").check()[0].value == [2.0] * 3
    assert [each.name for each in ring2.vars("own", "number").rows] == ["number", "own"]
    with pytest.raises(UsageError, match="no rank has a variable nothing"):
        ring2.vars("nothing")


@pytest.mark.slow
def test_in_a_notebook(notebook: Notebook) -> None:
    notebook.with_ranks("ring", 2)
    notebook.ok("import numpy as np\ndata = np.arange(10)\n%distributed scatter data")
    assert notebook.ok("%%distributed\ndata.sum().item()").by_rank == {0: "10\n", 1: "35\n"}
    notebook.ok("%%distributed\ndata = data * 2")
    notebook.ok("%distributed gather data")
    assert notebook.ok("data.tolist()").mime("text/plain") == ["[0, 2, 4, 6, 8, 10, 12, 14, 16, 18]"]
    assert "differ: 0 | 1" in notebook.ok("%distributed vars data").all
    assert "rank 1 against rank 0: up to 10" in notebook.ok("%distributed diff data").stdout
