"""The text of a cell is transformed once, and what the cell's own code transforms each time."""

from __future__ import annotations

import inspect
import random
from collections.abc import Iterator
from typing import Any

import pytest
from IPython.core.inputtransformer2 import TransformerManager
from IPython.core.interactiveshell import InteractiveShell

from allranks import Cluster
from allranks.rank.cell.transform_once import TransformOnce, is_plain

WITHIN = 60.0
COUNT = "def counted(lines):\n    seen.append(''.join(lines))\n    return lines\nseen = []\n"
INSTALL = COUNT + "get_ipython().input_transformers_post.append(counted)"
REMOVE = "get_ipython().input_transformers_post.clear(); del seen, counted"


@pytest.fixture
def shell() -> Iterator[Any]:
    made: Any = InteractiveShell()
    yield made
    made.history_manager.end_session()


@pytest.fixture
def seen(shell: Any) -> list[str]:
    texts: list[str] = []

    def note(lines: list[str]) -> list[str]:
        texts.append("".join(lines))
        return lines

    shell.input_transformers_post.append(note)
    return texts


def as_ipykernel_does(shell: Any, code: str) -> Any:
    """What `do_execute` of ipykernel 7.4 does with a cell that does not await."""
    assert not shell.should_run_async(code, transformed_cell=shell.transform_cell(code), preprocessing_exc_tuple=None)
    return shell.run_cell(code)


def test_a_cell_is_transformed_once(shell: Any, seen: list[str]) -> None:
    once = TransformOnce(shell)
    for code in ("x = 1", "x", "x", "%pwd"):
        seen.clear()
        once.begin()
        as_ipykernel_does(shell, code).raise_error()
        assert len(seen) == 1


def test_what_a_cell_runs_itself_is_transformed_anew(shell: Any) -> None:
    """The same text is a call of a magic only once the magic is there."""
    once = TransformOnce(shell)
    once.begin()
    code = (
        "ip = get_ipython()\n"
        "before = ip.transform_cell('shout')\n"
        "ip.register_magic_function(lambda line: 'loud', magic_name='shout')\n"
        "after = ip.transform_cell('shout')"
    )
    as_ipykernel_does(shell, code).raise_error()
    assert shell.user_ns["before"] == "shout\n" and "run_line_magic('shout'" in shell.user_ns["after"]


def test_text_that_cannot_be_transformed_fails_as_ever(shell: Any) -> None:
    once, code = TransformOnce(shell), "a = 'x"
    once.begin()
    assert isinstance(as_ipykernel_does(shell, code).error_before_exec, SyntaxError)


def test_a_cell_that_awaits_is_still_found(shell: Any) -> None:
    once = TransformOnce(shell)
    once.begin()
    for _ in range(2):
        assert shell.should_run_async("await f()", transformed_cell="await f()\n")
        assert not shell.should_run_async("await f()", transformed_cell="f()\n")


def test_the_signature_is_worked_out_once(shell: Any) -> None:
    TransformOnce(shell)
    once, again = inspect.signature(type(shell).run_cell_async), inspect.signature(type(shell).run_cell_async)
    assert once is again and [*once.parameters][:3] == ["self", "raw_cell", "store_history"]
    assert [*inspect.signature(shell.run_cell_async).parameters][:2] == ["raw_cell", "store_history"]


def test_ranks_transform_a_cell_once(ring2: Cluster) -> None:
    ring2.run(INSTALL, timeout=WITHIN).check()
    try:
        ring2.run("x = 1\ny = 2", timeout=WITHIN).check()
        ring2.run("import asyncio\nawait asyncio.sleep(0)", timeout=WITHIN).check()
        seen = ring2.run("seen", timeout=WITHIN).check()[0].value
    finally:
        ring2.run(REMOVE, timeout=WITHIN).check()
    assert seen == ["x = 1\ny = 2\n", "import asyncio\nawait asyncio.sleep(0)\n", "seen\n"]


LINES = [
    *("x = 1", "x %= 3", "x != y", "loss = step(model)", "for i in range(3):", "    print(f'{i} %')", "x = 6 / 2"),
    *("'a'", "import os", "await x", "@f", "class A:", "    def f(self): ...", "1 +", "lambda: !x", "    y = 2;"),
    *("%time x", "!ls", "x = !ls", "x: int = !ls", "x = %pwd", "x = y = %pwd", "x=%pwd", "f?", "?f", "# what?"),
    *(", f a", "/f a", ";f a", "%%time", "x = \\", "\\", "%", "!", "=", "x ==% y", "x == !y", "x = # c", "\t!ls"),
    *(">>> x = 1", "In [3]: x", "...: y", "[ins] In [1]: x", "'''", '"""', "(", ")", "x = (", "x = ( %pwd", "", "    "),
    *("if x: %ls", "x = 5 # = %pwd", "'a' = !ls", "x = \\\n\n%ls", "x = y, !ls", "a\r%ls", "a\x0c!ls", "  %ls", "$ x"),
    *("\xa0>>> x", "\u3000...: y", "\x1f>>> x", "\xa0", "\u3000 x"),
]


@pytest.mark.filterwarnings("ignore::SyntaxWarning")
@pytest.mark.parametrize("seed", range(10))
def test_plain_text_is_what_ipython_leaves_as_it_is(seed: int) -> None:
    dice, ipython, plain = random.Random(seed), TransformerManager(), 0
    for _ in range(1000):
        text = "\n".join(dice.choices(LINES, k=dice.randint(1, 4)))
        if not is_plain(text):
            continue
        plain += 1
        ended = text if text.endswith("\n") else text + "\n"
        try:
            assert ipython.transform_cell(text) == ended, repr(text)
        except SyntaxError:  # IPython splits it into tokens, and finds that it is not valid Python
            with pytest.raises(SyntaxError):
                compile(ended, "cell", "exec")
    assert plain > 50


def test_a_transformer_of_the_users_own_gets_plain_text_too(shell: Any, seen: list[str]) -> None:
    once = TransformOnce(shell)
    once.begin()
    as_ipykernel_does(shell, "x = 1").raise_error()
    assert seen == ["x = 1\n"]
    shell.input_transformers_post.clear()
    shell.input_transformers_cleanup.append(lambda lines: [line.replace("one", "1") for line in lines])
    once.begin()
    as_ipykernel_does(shell, "y = one").raise_error()
    assert shell.user_ns["y"] == 1
