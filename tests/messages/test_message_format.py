"""Whoever changes a message decides whether ranks of the previous release can still be attached."""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Iterator
from pathlib import Path

import allranks.messages
from allranks.messages.wire import MESSAGE_FORMAT

STORED = (1, "b237511aae1041bb")
"""`MESSAGE_FORMAT`, and the hash of all message fields."""


def fields() -> Iterator[str]:
    """Every class in ``messages/`` with its bases, and its fields with their types and whether they have a default."""
    folder = Path(next(iter(allranks.messages.__path__)))
    for path in sorted(folder.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.ClassDef):
                continue
            yield " ".join(["class", node.name, *map(ast.unparse, node.bases), *map(ast.unparse, node.keywords)])
            for each in node.body:
                if isinstance(each, ast.AnnAssign):
                    default = "" if each.value is None else " = ..."
                    yield f"{ast.unparse(each.target)}: {ast.unparse(each.annotation)}{default}"


def test_a_changed_message_is_noticed() -> None:
    now = hashlib.sha256("\n".join(fields()).encode()).hexdigest()[:16]
    assert (MESSAGE_FORMAT, now) == STORED, (
        "The fields of a message in allranks/messages have changed. Raise MESSAGE_FORMAT if the previous release "
        f"cannot read the new messages, then store the new value: STORED = ({MESSAGE_FORMAT}, {now!r})"
    )
