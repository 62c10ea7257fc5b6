"""Tab and shift-tab in a real kernel: names come from the ranks, at any time, and nothing is evaluated for them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.jupyter import Notebook

DEFINED = """%%distributed
learning_rate = 0.1
class Model:
    \"\"\"A small model.\"\"\"
    hidden_size = 64
    def forward_pass(self, x, scale=2):
        "Run it."
        return x * scale
model = Model()
matrix = mx.ones((3, 5), mx.bfloat16)
"""


@pytest.fixture
def defined(notebook: Notebook) -> Notebook:
    notebook.ok("%distributed auto off")
    notebook.ok(DEFINED)
    return notebook


@pytest.mark.parametrize("magic", ["%%distributed", "%%distributed -r 0,2", "%%rank 1"])
def test_names_of_the_ranks_are_completed(magic: str, defined: Notebook) -> None:
    assert defined.complete(f"{magic}\nlearn") == ["learning_rate"]
    assert defined.complete(f"{magic}\nx = 1\ny = model.forw") == ["model.forward_pass"]
    assert defined.complete(f"{magic}\nmx.distributed.all_s") == ["mx.distributed.all_sum"]
    assert "rank" in defined.complete(f"{magic}\nprint(ran")


def test_the_cursor_may_stand_within_the_cell(defined: Notebook) -> None:
    code = "%%distributed\nmodel.hid\nprint(1)"
    assert defined.complete(code, code.index("hid") + 3) == ["model.hidden_size"]


def test_other_cells_are_completed_by_the_notebook(defined: Notebook) -> None:
    defined.ok("learner_of_the_notebook = 1")
    assert defined.complete("learn") == ["learner_of_the_notebook"]
    assert "learner_of_the_notebook" not in defined.complete("%%distributed\nlearn")


def test_with_auto_on_plain_cells_are_completed_by_the_ranks(defined: Notebook) -> None:
    defined.ok("%distributed auto on")
    assert defined.complete("model.hid") == ["model.hidden_size"]
    defined.ok("%distributed auto off")


def test_shift_tab_describes_what_the_ranks_hold(defined: Notebook) -> None:
    said = defined.inspect("%%distributed\nmatrix")
    assert "Shape:     (3, 5)" in said and "Dtype:     bfloat16" in said
    said = defined.inspect("%%distributed\nmodel.forward_pass")
    assert "forward_pass(self, x, scale=2)" in said and "Run it." in said


def test_shift_tab_elsewhere_is_the_notebooks(defined: Notebook) -> None:
    defined.ok("def here():\n    'Of the notebook.'")
    assert "Of the notebook." in defined.inspect("here")
    assert "Of the notebook." in defined.inspect("%%distributed\nhere"), "the ranks do not know the name"


@pytest.fixture
def pending(defined: Notebook) -> Iterator[Notebook]:
    """Rank 0 holds a collective that no other rank has entered: evaluating it would block the rank for ever."""
    defined.ok("%%rank 0\npending = mx.distributed.all_sum(mx.ones((7, 2)))\nheld = {'pending': pending}")
    yield defined
    # Rank 0 has one collective more under way than the others: they join it now.
    defined.ok("%%distributed\nif rank != 0:\n    pending = mx.distributed.all_sum(mx.ones((7, 2)))\nmx.eval(pending)")


def test_looking_at_a_pending_collective_never_evaluates_it(pending: Notebook) -> None:
    assert "pending" in pending.complete("%%rank 0\npend")
    assert "pending.shape" in pending.complete("%%rank 0\npending.sha")
    assert pending.complete("%%rank 0\nheld.pop")
    said = pending.inspect("%%rank 0\npending")
    assert "Shape:     (7, 2)" in said and "Dtype:     float32" in said
    assert "Shape:     (7, 2)" in pending.ok("%%rank 0\npending?").stdout
    assert "Length:    1" in pending.ok("%%rank 0\nheld?").stdout
    assert pending.ok("%%rank 0\n'not blocked'").stdout.startswith("rank 0 │ 'not blocked'\n")


def test_a_question_mark_on_the_ranks_describes(defined: Notebook) -> None:
    cell = defined.ok("%%distributed\nmodel?")
    assert "ranks 0-3 │ Type:      Model" in cell.stdout and "A small model." in cell.stdout
    assert "return x * scale" in defined.ok("%%distributed\nmodel.forward_pass??").stdout
    assert "`nothing_there` not found" in defined.ok("%%distributed\nnothing_there?").stdout


def test_it_works_while_the_ranks_are_busy(defined: Notebook, tmp_path: Path) -> None:
    go = tmp_path / "go"
    running = defined.ok(
        "%%distributed --no-wait\n"
        "import pathlib\n"
        "defined_meanwhile = 1\n"
        "print('on my way')\n"
        f"while not pathlib.Path({str(go)!r}).exists():\n"
        "    pass"
    )
    defined.shows(running, "on my way")
    assert defined.complete("%%distributed\ndefined_m") == ["defined_meanwhile"]
    assert "Shape:     (3, 5)" in defined.inspect("%%distributed\nmatrix")
    go.touch()


def test_it_works_while_a_rank_waits_in_a_collective(defined: Notebook, tmp_path: Path) -> None:
    go = tmp_path / "go"
    running = defined.ok(
        "%%distributed --no-wait\n"
        "import pathlib, time\n"
        "print('on my way')\n"
        "if rank == 3:\n"
        f"    while not pathlib.Path({str(go)!r}).exists():\n"
        "        time.sleep(0.02)\n"
        "mx.eval(mx.distributed.all_sum(mx.ones(2)))\n"
        "print('through')"
    )
    defined.comes_true("now.ranks[0].state == 'waiting'")
    assert defined.complete("%%distributed\nlearn") == ["learning_rate"]
    assert "Shape:     (3, 5)" in defined.inspect("%%distributed\nmatrix")
    go.touch()
    defined.shows(running, "│ through")


def test_before_up_and_after_down_the_notebook_answers(kernel: Notebook) -> None:
    kernel.run("%distributed down")
    kernel.ok("learner_of_the_notebook = 1")
    assert kernel.complete("%%distributed\nlearner") == ["learner_of_the_notebook"]
    assert kernel.complete("import o") != []


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("%distributed sta", ["status"]),
        ("%distributed up --back", ["--backend"]),
        ("%distributed up --backend ", ["auto", "ring", "jaccl", "jaccl-ring", "mpi", "nccl"]),
        ("%distributed rewire --backend ", ["ring", "jaccl", "jaccl-ring", "mpi", "nccl"]),
        ("%distributed up --check w", ["warn"]),
        ("%distributed auto o", ["on", "off"]),
        ("%distributed bench --ops all_sum,all_g", ["all_gather"]),
        ("%distributed up --hosts localh", ["localhost"]),
        ("%distributed heal --kill ", ["0", "1", "2", "3"]),
        ("%distributed pull learn", ["learning_rate"]),
        ("%distributed push of_the_note", ["of_the_notebook"]),
        ("%%distributed --time", ["--timeout", "--timeline"]),
        ("%%rank 0 --check st", ["strict"]),
    ],
)
def test_verbs_options_and_their_values_are_completed(line: str, expected: list[str], defined: Notebook) -> None:
    defined.ok("of_the_notebook = 1")
    assert sorted(defined.complete(line)) == sorted(expected)


def test_verbs_come_first_and_old_names_never(defined: Notebook) -> None:
    verbs = defined.complete("%distributed ")
    assert {"up", "status", "heal", "abort", "down"} <= set(verbs) and "break" not in verbs and "if" not in verbs
    assert "--profile" not in defined.complete("%%distributed --p")


def test_help_lists_every_verb(defined: Notebook) -> None:
    text = defined.inspect("%distributed")
    assert all(verb in text for verb in defined.complete("%distributed "))
