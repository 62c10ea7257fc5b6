"""Finds the constants in a cell's code, and counts the lines that differ between two cells apart from constants.

Code is parsed, never run. Constants are values such as ``lr = 0.1`` outside of functions and blocks,
``Adam(learning_rate=3e-4)``, the defaults of functions, and ``mx.random.seed(0)`` as `seed`. A value that the cell
computes, as in ``lr = 1 / 10``, is not a constant. Strings that may be secret are removed from the code before anything
else is read from it (see `hide_secrets`).
"""

from __future__ import annotations

import ast
import re
import symtable
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from difflib import SequenceMatcher, unified_diff
from textwrap import dedent
from typing import NamedTuple

from .hide_secrets import defaults_of, redacted, redacted_words

Constant = int | float | str | bool

LONGEST = 100
"""Maximum characters of a string that counts as a constant."""
NOT_FOR_RUNS = ("log", "print", "mark")
"""Functions whose arguments say nothing about how a run was made."""
CONTEXT = 1
"""Number of unchanged lines that a diff shows before and after each change."""
_MAGIC_LINE = re.compile(r"\A# %%.*\n")
_LINES_OF_IPYTHON = (
    (re.compile(r"(?m)^([ \t]*)(?:[%!?].*|\S.*\?[ \t]*)$"), r"\1pass"),
    (re.compile(r"(?m)^([ \t]*[\w \t,]+=[ \t]*)[%!].*$"), r"\1None"),
)


class _Found(NamedTuple):
    """One constant in the code."""

    name: str
    owner: str
    """The function that the constant is an argument of; empty for a variable."""
    value: Constant
    node: ast.expr


@dataclass(frozen=True)
class Code:
    """The parsed code of a cell."""

    text: str
    """The code without the magic's line, and without strings that may be secret."""
    constants: Mapping[str, Constant]
    reads: frozenset[str]
    """Variables of earlier cells that the code uses."""
    binds: frozenset[str]
    """Variables that the code binds."""
    places: Mapping[str, tuple[int, int, int]]
    """Location of each constant: the line, counted from 0, and the byte offsets of its start and end there."""

    @classmethod
    def of(cls, code: str) -> Code:
        text = dedent(_MAGIC_LINE.sub("", code))
        try:
            text = redacted(text, *_parsed(text))
            tree, python = _parsed(text)
            reads, binds = _names(tree, python)
        except Exception:  # usually SyntaxError; no code may prevent its cell from being shown
            return cls(redacted_words(text), {}, frozenset(), frozenset(), {})
        named = _named(list(_constants(tree)))
        return cls(
            text,
            {name: each.value for name, each in named.items()},
            reads,
            binds,
            {
                name: (each.node.lineno - 1, each.node.col_offset, each.node.end_col_offset or 0)
                for name, each in named.items()
            },
        )

    def lines(self, without: Collection[str] = ()) -> list[str]:
        """Return the lines that are not blank, with the values of constants in `without` replaced by their names."""
        lines = [line.encode() for line in self.text.split("\n")]
        for name, (line, first, end) in sorted(self.places.items(), key=lambda each: each[1], reverse=True):
            if name in without:
                lines[line] = lines[line][:first] + f"<{name}>".encode() + lines[line][end:]
        return [text for line in lines if (text := line.decode().rstrip())]


FLAGS = ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT


def _parsed(text: str) -> tuple[ast.Module, str]:
    """Return the parsed code, and its text as valid Python: IPython's own lines are replaced by lines without effect.

    All other lines stay where they are, since locations refer to them. Raises SyntaxError and ValueError.
    """
    try:
        return compile(text, "", "exec", FLAGS), text
    except SyntaxError:
        for lines, others in _LINES_OF_IPYTHON:
            text = lines.sub(others, text)
        return compile(text, "", "exec", FLAGS), text


def lines_changed(before: Code, now: Code, without: Collection[str]) -> int:
    """Count the lines that differ apart from the constants in `without`; a line that replaces another counts once."""
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
                for name, default in defaults_of(arguments):
                    if default is not None and (found := _value(default)) is not None:
                        yield _Found(name, owner, found, default)


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
    return ast.unparse(called)


def _named(found: list[_Found]) -> dict[str, _Found]:
    """Return the constants by name. If a name is used twice, arguments get their function's name, too: ``Adam.lr``.

    Arguments for which this longer name is used twice are left out.
    """
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


def _names(tree: ast.Module, python: str) -> tuple[frozenset[str], frozenset[str]]:
    """Return the variables of earlier cells that the cell reads, and the variables that it binds.

    A variable that is read and then bound once (``lr = lr / 2``) belongs to both.
    """
    module = symtable.symtable(python, "", "exec")
    own = {each.get_name() for each in module.get_symbols() if each.is_assigned() or each.is_imported()}
    inside = set[str]()
    for table in _inner(module):
        for each in table.get_symbols():
            if each.is_declared_global() and each.is_assigned():
                own.add(each.get_name())
            elif each.is_global() and each.is_referenced():
                inside.add(each.get_name())
    uses = list(_uses(tree, False))
    first: dict[str, _Use] = {}
    for use in uses:
        first.setdefault(use.name, use)
    again = Counter(use.name for use in uses if use.binds)
    again.update(use.name for use in uses if use.binds and use.in_loop)
    early = {name for name, use in first.items() if not use.binds and again[name] <= 1}
    return frozenset((inside - own) | early), frozenset(own)


def _inner(table: symtable.SymbolTable) -> Iterator[symtable.SymbolTable]:
    for each in table.get_children():
        yield each
        yield from _inner(each)


class _Use(NamedTuple):
    name: str
    binds: bool
    in_loop: bool


def _uses(node: ast.AST, in_loop: bool) -> Iterator[_Use]:
    """Yield uses of the cell's variables in a node, in order of execution.

    Uses in the bodies of functions and classes, and in comprehensions apart from their first iterable, are left out.
    """
    parts: list[ast.AST | None] = list(ast.iter_child_nodes(node))
    match node:
        case ast.Name(id=name, ctx=context):
            yield _Use(name, not isinstance(context, ast.Load), in_loop)
        case ast.Assign(targets=targets, value=value):
            parts = [value, *targets]
        case ast.AnnAssign(target=target, value=value):
            parts = [value, target] if value is not None else []
        case ast.AugAssign(target=target, value=value):
            if isinstance(target, ast.Name):
                yield _Use(target.id, False, in_loop)
            parts = [value, target]
        case ast.NamedExpr(target=target, value=value):
            parts = [value, target]
        case ast.For() | ast.AsyncFor():
            yield from _uses(node.iter, in_loop)
            parts, in_loop = [node.target, *node.body, *node.orelse], True
        case ast.While():
            in_loop = True
        case ast.ExceptHandler(type=caught, name=name, body=body):
            yield from _uses(caught, in_loop) if caught is not None else ()
            yield from [_Use(name, True, in_loop)] if name is not None else []
            parts = list(body)
        case ast.FunctionDef() | ast.AsyncFunctionDef():
            parts = [*node.decorator_list, *node.args.defaults, *node.args.kw_defaults]
        case ast.ClassDef():
            parts = [*node.decorator_list, *node.bases, *node.keywords]
        case ast.Lambda():
            parts = [*node.args.defaults, *node.args.kw_defaults]
        case ast.ListComp() | ast.SetComp() | ast.DictComp() | ast.GeneratorExp():
            parts = [node.generators[0].iter]
    for part in parts:
        if part is not None:
            yield from _uses(part, in_loop)
    match node:
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            yield _Use(name, True, in_loop)
        case ast.alias(name=name, asname=other):
            yield _Use((other or name).partition(".")[0], True, in_loop)
        case ast.MatchAs(name=str() as name) | ast.MatchStar(name=str() as name):
            yield _Use(name, True, in_loop)
