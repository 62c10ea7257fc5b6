"""Constants that code names, and how many lines differ beside them."""

from __future__ import annotations

import pytest

from allranks.head.state.cell_run import CellRun
from allranks.head.state.code_constants import Code, diff

TRAIN = "lr = {lr}\nmx.random.seed({seed})\noptimizer = Adam(learning_rate=lr, eps=1e-8)\n"


@pytest.mark.parametrize(
    ("code", "constants"),
    [
        ("lr = 0.1; name = 'a'; flag = True; low = -1", {"lr": 0.1, "name": "a", "flag": True, "low": -1}),
        ("a, b = 1, 2\nc: int = 3\nd = e = 4", {"a": 1, "b": 2, "c": 3, "d": 4, "e": 4}),
        ("lr = 0.1\nlr = 0.2", {"lr": 0.2}),
        ("mx.random.seed(7)\nlog(loss=1, step=3)\nprint('x', end='')", {"seed": 7}),
        ("mx.random.seed(7)\nnp.random.seed(8)", {"mx.random.seed.seed": 7, "np.random.seed.seed": 8}),
        ("Adam(lr=0.1)\nLinear(2, 3, bias=False)", {"lr": 0.1, "bias": False}),
        ("Adam(lr=0.1)\nSGD(lr=0.2)", {"Adam.lr": 0.1, "SGD.lr": 0.2}),
        ("lr = 1\nAdam(lr=0.1)", {"lr": 1, "Adam.lr": 0.1}),
        ("Linear(bias=True)\nLinear(bias=False)", {}),
        ("def train(x, lr=0.1, *, steps=10, rest=None): ...", {"lr": 0.1, "steps": 10}),
        ("for step in range(3):\n    x = 1", {}),
        ("x = f()\ny = x + 1\nz = 'a' * 3", {}),
        ("# %%distributed -r 0\n%time f()\n!ls\nlr = 0.1\nawait f()", {"lr": 0.1}),
        ("files = !ls\nt = %time f()\nf?\n?f\nlr = 0.1", {"lr": 0.1}),
        ("options['adam'](lr=0.1)\nlr = 1", {"options['adam'].lr": 0.1, "lr": 1}),
        ("no python here", {}),
        ("", {}),
    ],
)
def test_constants(code: str, constants: dict[str, object]) -> None:
    assert Code.of(code).constants == constants


@pytest.mark.parametrize(
    ("code", "reads"),
    [
        ("import os\nfrom a import b as c\nx = y\nfor i in z: pass\ndef f(p): return p + q", {"y", "z", "q"}),
        ("def f(lr): return lr\ny = f(lr)", {"lr"}),
        ("def f(): return lr\nlr = 0.1\ny = f()", set()),
        ("lr = lr / 2", {"lr"}),
        ("for i in n: total = total + i\nstep += 1; step += 1", {"n"}),
        ("x = [a * b for a in c if a]; y = lambda a: a + d", {"b", "c", "d"}),
        ("with a as b: pass\ntry: pass\nexcept E as e: e\nclass C(D):\n    e = f\n    g = e", {"a", "E", "D", "f"}),
        ("def f():\n    global n\n    n = m\n", {"m"}),
        ("await f(x)\nmatch y:\n    case [z, *w]: z", {"f", "x", "y"}),
    ],
)
def test_what_a_cell_reads_of_earlier_cells(code: str, reads: set[str]) -> None:
    assert Code.of(code).reads == reads


@pytest.mark.parametrize(
    "code",
    [
        "hf_token = 'abc'",
        "a, api_key = 1, 'abc'",
        "self.password: str = f'abc{x}'",
        "os.environ['HF_TOKEN'] = 'abc'; os.environ.setdefault('AWS_KEY_ID', 'abc')",
        "login(token='abc')\nclient = Client(**{'auth': b'abc'})",
        'secret = """abc\nabc"""\nx = 1',
        "def f(x, *, credentials='abc'): ...",
        "%env WANDB_API_KEY=abc\n!curl -H 'token: abc'\nx = 1",
        "no python: TOKEN=abc",
        "requests.get(url, headers={'Authorization': 'Bearer abc'})\n!curl -H 'Authorization: Bearer abc' url",
        "token = 'abc' + x; token = os.environ.get('X', 'abc'); token += 'abc'; setattr(o, 'token', 'abc')",
        "[user, password] = ['a', 'abc']; token = f\"{login(token='abc')}\"; x = 1",
        "print('x')\rtoken = 'abc'",
    ],
)
def test_text_that_may_be_secret_is_left_out_of_the_code(code: str) -> None:
    read = Code.of(code)
    assert "abc" not in read.text and "abc" not in str(read.lines()) and "abc" not in str(read.constants)
    assert read.lines() == Code.of(code.replace("abc", "defg")).lines()
    assert read.text.count("\n") <= code.count("\n") and ("x = 1" in read.text) == ("x = 1" in code)


def test_text_that_is_not_secret_stays() -> None:
    code = "tokenizer = 'a'; author = 'b'; tokens = 3; é = 'ü'; monkey_see = 'c'; sort(key='loss'); primary_key = 'd'"
    assert Code.of(code).text == code


def changes(before: str, now: str, *, ranks: tuple[int, int] = (2, 2)) -> str:
    old, new = (CellRun(1, code, range(n), "ring") for code, n in zip((before, now), ranks))
    return new.changes_text(old)


@pytest.mark.parametrize(
    ("before", "now", "said"),
    [
        (TRAIN.format(lr=0.1, seed=0), TRAIN.format(lr=0.01, seed=0), "lr 0.1 → 0.01"),
        (TRAIN.format(lr=0.1, seed=0), TRAIN.format(lr=3e-4, seed=1), "lr 0.1 → 0.0003, seed 0 → 1"),
        (TRAIN.format(lr=0.1, seed=0), TRAIN.format(lr=0.2, seed=0) + "f()", "lr 0.1 → 0.2, 1 more line changed"),
        ("lr = 0.1; f()", "lr = 0.2; g()", "lr 0.1 → 0.2, 1 more line changed"),
        ("é = 'ü'; lr = 0.1; f()", "é = 'ü'; lr = 0.2; f()", "lr 0.1 → 0.2"),
        ("f()", "g()\nh()", "2 lines changed"),
        ("f()\n\ng()  ", "f()\ng()", "same code"),
        ("a = 1; b = 1; c = 1; d = 1", "a = 2; b = 2; c = 2; d = 2", "a 1 → 2, b 1 → 2, c 1 → 2, 1 more value"),
        ("# %%distributed\nf()", "# %%distributed --timing\nf()", "same code"),
        ("lr = 1", "lr = 1.0", "1 line changed"),
        ("token = 'a'", "token = 'b'", "same code"),
        ("", "f()", "code not known"),
    ],
)
def test_what_is_said_of_two_codes(before: str, now: str, said: str) -> None:
    assert changes(before, now) == said


def test_another_world_is_a_difference() -> None:
    assert changes("f()", "f()", ranks=(2, 4)) == "ranks 2 → 4"


def test_beside_another_run_a_run_is_called_by_its_own_values() -> None:
    first, second = (CellRun(1, f"lr = {lr}", (0,), "ring") for lr in (0.1, 0.2))
    first.name = "run 1"
    assert first.beside(second) == "run 1: lr 0.1"


def test_a_diff_is_short() -> None:
    before, now = (Code.of("\n".join([*"abcdef", last, "g"])) for last in ("x", "y"))
    assert diff(before, now) == ["@@ -6,3 +6,3 @@", " f", "-x", "+y", " g"]
