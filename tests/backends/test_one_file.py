"""A backend is one file: what differs between two is a property of theirs, and nothing else asks which one it is."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from allranks_backends.registry import BACKENDS

ROOT = Path(__file__).parents[2]
RUNTIMES = ROOT / "backends" / "allranks_backends" / "runtimes"
PRODUCT = [
    path
    for root in ("kernel_ext/allranks", "widgets/allranks_widgets", "backends/allranks_backends")
    for path in sorted((ROOT / root).rglob("*.py"))
    if RUNTIMES not in path.parents
]


def names_in(node: ast.AST) -> bool:
    """Whether a backend's name stands in this expression: by itself, or in a tuple, list or set of its."""
    parts = node.elts if isinstance(node, (ast.Tuple, ast.List, ast.Set)) else [node]
    return any(isinstance(each, ast.Constant) and each.value in BACKENDS for each in parts)


def asks_which(code: str) -> Iterator[int]:
    """Lines that compare something with the name of a backend."""
    for node in ast.walk(ast.parse(code)):
        match node:
            case ast.Compare():
                compared = [node.left, *node.comparators]
            case ast.Call(func=ast.Attribute(attr="startswith" | "endswith")):
                compared = node.args
            case ast.MatchValue():
                compared = [node.value]
            case _:
                continue
        yield from (each.lineno for each in compared if names_in(each))


@pytest.mark.parametrize(
    "code",
    [
        "b == 'ring'",
        "'mpi' != b",
        "b in ('ring', 'jaccl-ring')",
        "'ring' not in b",
        "b.startswith('jaccl')",
        "match b:\n    case 'nccl': pass",
    ],
)
def test_a_comparison_is_found(code: str) -> None:
    assert list(asks_which(code))


@pytest.mark.parametrize("code", ["init(backend='ring')", "b == 'auto'", "facts['nccl']", "{'nccl': True}"])
def test_naming_one_is_no_comparison(code: str) -> None:
    assert not list(asks_which(code))


def test_nothing_outside_the_runtimes_asks_which_backend_it_is() -> None:
    found = [f"{path.relative_to(ROOT)}:{line}" for path in PRODUCT for line in asks_which(path.read_text("utf-8"))]
    assert not found, "make what differs a property of Backend (allranks_backends/protocol.py)"
