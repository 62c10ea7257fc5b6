"""The constants that the code of a cell names, and how many lines differ between two codes beside them.

Code is read, never run: ``lr = 0.1`` in a line of its own, ``Adam(learning_rate=3e-4)``, defaults of functions, and
``mx.random.seed(0)`` as `seed`. What a cell computes, as in ``lr = 1 / 10``, is a line like any other.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from difflib import SequenceMatcher, unified_diff
from textwrap import dedent
from typing import NamedTuple

Constant = int | float | str | bool

LONGEST = 100
"""Characters of a string that counts as a constant."""
NOT_FOR_RUNS = ("log", "print", "mark")
"""Functions whose arguments say nothing about how a run was made."""
CONTEXT = 1
"""Lines that a diff shows around what changed."""
_MAGIC_LINE = re.compile(r"\A# %%.*\n")
_NOT_PYTHON = re.compile(r"(?m)^([ \t]*)[%!].*")


class _Found(NamedTuple):
    """One constant in the code."""

    name: str
    owner: str
    """The function that it is an argument of; empty for a variable."""
    value: Constant
    node: ast.expr


@dataclass(frozen=True)
class Code:
    """The code of a cell, read."""

    text: str
    """Without the line of the magic."""
    constants: Mapping[str, Constant]
    reads: frozenset[str]
    """Variables that it uses and does not bind."""
    binds: frozenset[str]
    places: Mapping[str, tuple[int, int, int]]
    """Where each constant stands: the line, from 0, and its first and last byte there."""

    @classmethod
    def of(cls, code: str) -> Code:
        text = dedent(_MAGIC_LINE.sub("", code))
        try:
            # Lines of IPython's own keep their place, since positions in all others are counted from there.
            tree = compile(_NOT_PYTHON.sub(r"\1pass", text), "", "exec", FLAGS)
        except (SyntaxError, ValueError):
            return cls(text, {}, frozenset(), frozenset(), {})
        named, (loaded, bound) = _named(list(_constants(tree))), _names(tree)
        return cls(
            text,
            {name: each.value for name, each in named.items()},
            loaded - bound,
            bound,
            {
                name: (each.node.lineno - 1, each.node.col_offset, each.node.end_col_offset or 0)
                for name, each in named.items()
            },
        )

    def lines(self, without: Collection[str] = ()) -> list[str]:
        """Its lines that are not blank, with the names of these constants in place of their values."""
        lines = [line.encode() for line in self.text.split("\n")]
        for name, (line, first, end) in sorted(self.places.items(), key=lambda each: each[1], reverse=True):
            if name in without:
                lines[line] = lines[line][:first] + f"<{name}>".encode() + lines[line][end:]
        return [text for line in lines if (text := line.decode().rstrip())]


FLAGS = ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT


def lines_changed(before: Code, now: Code, without: Collection[str]) -> int:
    """Lines that differ, apart from these constants: a line in place of another counts once."""
    matcher = SequenceMatcher(None, before.lines(without), now.lines(without), autojunk=False)
    return sum(max(a2 - a1, b2 - b1) for kind, a1, a2, b1, b2 in matcher.get_opcodes() if kind != "equal")


def diff(before: Code, now: Code) -> list[str]:
    """A unified diff without its two lines of file names."""
    return list(unified_diff(before.lines(), now.lines(), lineterm="", n=CONTEXT))[2:]


def _constants(tree: ast.Module) -> Iterator[_Found]:
    for statement in tree.body:
        match statement:
            case ast.Assign(targets=[ast.Tuple() as names], value=ast.Tuple() as values):
                if len(names.elts) == len(values.elts):
                    for target, value in zip(names.elts, values.elts):
                        yield from _one(target, value)
            case ast.Assign(targets=targets, value=value):
                for target in targets:
                    yield from _one(target, value)
            case ast.AnnAssign(target=target, value=ast.expr() as value):
                yield from _one(target, value)
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=called) if (owner := _last_name(called)) not in NOT_FOR_RUNS:
                for keyword in node.keywords:
                    if keyword.arg and (found := _value(keyword.value)) is not None:
                        yield _Found(keyword.arg, owner, found, keyword.value)
                if owner == "seed" and len(node.args) == 1 and (found := _value(node.args[0])) is not None:
                    yield _Found("seed", ast.unparse(called), found, node.args[0])
            case ast.FunctionDef(name=owner, args=arguments) | ast.AsyncFunctionDef(name=owner, args=arguments):
                with_default = [*arguments.posonlyargs, *arguments.args][-len(arguments.defaults) :]
                pairs = [*zip(with_default, arguments.defaults), *zip(arguments.kwonlyargs, arguments.kw_defaults)]
                for argument, default in pairs:
                    if default is not None and (found := _value(default)) is not None:
                        yield _Found(argument.arg, owner, found, default)


def _one(target: ast.expr, value: ast.expr) -> Iterator[_Found]:
    if isinstance(target, ast.Name) and (found := _value(value)) is not None:
        yield _Found(target.id, "", found, value)


def _value(node: ast.expr) -> Constant | None:
    match node:
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() as number)):
            return -number
        case ast.Constant(value=bool() | int() | float() as number):
            return number
        case ast.Constant(value=str() as text) if len(text) <= LONGEST and node.lineno == node.end_lineno:
            return text
    return None


def _last_name(called: ast.expr) -> str:
    match called:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
    return ""


def _named(found: list[_Found]) -> dict[str, _Found]:
    """Each constant under its name; with its function where the name is used twice, and not at all where that is."""
    last = {each.name: each for each in found if not each.owner}  # a variable has the value that it got last
    found = [each for each in found if each.owner] + list(last.values())
    named = dict[str, _Found]()
    short = Counter(each.name for each in found)
    full = Counter((each.owner, each.name) for each in found)
    for each in found:
        if short[each.name] == 1 or not each.owner:
            named[each.name] = each
        elif full[each.owner, each.name] == 1:
            named[f"{each.owner}.{each.name}"] = each
    return dict(sorted(named.items(), key=lambda item: (item[1].node.lineno, item[1].node.col_offset)))


def _names(tree: ast.Module) -> tuple[frozenset[str], frozenset[str]]:
    """Those that are used, and those that are bound."""
    loaded, bound = set[str](), set[str]()
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name, ctx=ast.Load()):
                loaded.add(name)
            case ast.Name(id=name):
                bound.add(name)
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                bound.add(name)
            case ast.arg(arg=name):
                bound.add(name)
            case ast.alias(name=name, asname=other):
                bound.add((other or name).partition(".")[0])
    return frozenset(loaded), frozenset(bound)
