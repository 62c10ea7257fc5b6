"""Finds the constants in the code of a cell, and how many lines differ between two codes apart from them.

Code is parsed, never run: ``lr = 0.1`` in a line of its own, ``Adam(learning_rate=3e-4)``, defaults of functions, and
``mx.random.seed(0)`` as `seed`. What a cell computes, as in ``lr = 1 / 10``, is a line like any other. Strings that
may be secret, judged by their names, are removed from the code before anything else is read from it.
"""

from __future__ import annotations

import ast
import re
import symtable
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from difflib import SequenceMatcher, unified_diff
from itertools import pairwise
from textwrap import dedent
from typing import NamedTuple

Constant = int | float | str | bool

LONGEST = 100
"""Maximum characters of a string that counts as a constant."""
NOT_FOR_RUNS = ("log", "print", "mark")
"""Functions whose arguments say nothing about how a run was made."""
CONTEXT = 1
"""Lines that a diff shows around what changed."""
SECRET = re.compile(
    r"(?i)token(?!iz)|secret|passw|passphrase|\bpwd\b|credential|bearer|auth(?!ors?\b|ored\b)|"
    r"(api|access|secret|private|auth|ssh|service)_?-?keys?|key_?id$"
)
"""Names whose strings are never shown, compared or exported."""
LEFT_OUT = "…"
"""Replaces such a string, in quotes."""
_MAGIC_LINE = re.compile(r"\A# %%.*\n")
_LINES_OF_IPYTHON = (
    (re.compile(r"(?m)^([ \t]*)(?:[%!?].*|\S.*\?[ \t]*)$"), r"\1pass"),
    (re.compile(r"(?m)^([ \t]*[\w \t,]+=[ \t]*)[%!].*$"), r"\1None"),
)
_SET_TO = re.compile(
    r"""["']?\]?[ \t]*(?:=[ \t]*("[^"\n]*"|'[^'\n]*'|[^\s"']+)|:[ \t]*([^"'\n]+)|[ \t]("[^"\n]*"|'[^'\n]*'|[^\s"']+))"""
)
"""What a name is set to, if the code is not Python: ``HF_TOKEN=abc``, or ``Authorization: Bearer abc`` up to the
quote or the end of the line."""


class _Found(NamedTuple):
    """One constant in the code."""

    name: str
    owner: str
    """The function of which it is an argument; empty for a variable."""
    value: Constant
    node: ast.expr


@dataclass(frozen=True)
class Code:
    """The parsed code of a cell."""

    text: str
    """Without the line of the magic, and without strings that may be secret."""
    constants: Mapping[str, Constant]
    reads: frozenset[str]
    """Variables of earlier cells that it uses."""
    binds: frozenset[str]
    """Variables that it binds."""
    places: Mapping[str, tuple[int, int, int]]
    """Location of each constant: the line, counted from 0, and the byte offsets of its start and end there."""

    @classmethod
    def of(cls, code: str) -> Code:
        text = dedent(_MAGIC_LINE.sub("", code))
        try:
            text = _redacted(text, *_parsed(text))
            tree, python = _parsed(text)
            reads, binds = _names(tree, python)
        except Exception:  # usually SyntaxError; no code may prevent its cell from being shown
            return cls(_redacted_words(text), {}, frozenset(), frozenset(), {})
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
        """Return its lines that are not blank, with the values of these constants replaced by their names."""
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


def _redacted(text: str, tree: ast.Module, python: str) -> str:
    """Return the code without strings that may be secret."""
    lines = [
        (line if line == other else _redacted_words(line)).encode()
        for line, other in zip(text.split("\n"), python.split("\n"))
    ]
    found = sorted(
        (each.lineno - 1, each.col_offset, (each.end_lineno or each.lineno) - 1, each.end_col_offset or 0)
        for each in _secrets(tree)
    )
    places = list[tuple[int, int, int, int]]()
    for place in found:  # without locations inside another one
        if not places or place[:2] >= places[-1][2:]:
            places.append(place)
    for line, first, last_line, end in reversed(places):
        left_out = lines[line][:first] + f"'{LEFT_OUT}'".encode() + lines[last_line][end:]
        lines[line : last_line + 1] = [left_out]
    return b"\n".join(lines).decode()


def _secrets(tree: ast.Module) -> Iterator[ast.expr]:
    """Yield strings that may be secret, judged by the name of the variable, argument or key that they are for."""
    for node in ast.walk(tree):
        given = list[tuple[str, ast.expr | None]]()
        match node:
            case ast.Assign(targets=targets, value=value):
                given = [(_set_name(target), value) for target in targets]
                for target in targets:
                    if isinstance(target, ast.Tuple | ast.List) and isinstance(value, ast.Tuple | ast.List):
                        given += [(_set_name(one), other) for one, other in zip(target.elts, value.elts)]
            case (
                ast.AnnAssign(target=target, value=value)
                | ast.NamedExpr(target=target, value=value)
                | ast.AugAssign(target=target, value=value)
            ):
                given = [(_set_name(target), value)]
            case ast.keyword(arg=str() as name, value=value):
                given = [(name, value)]
            case ast.Dict(keys=keys, values=others):
                given = [(_text(key), value) for key, value in zip(keys, others)]
            case ast.Call(args=[_, *_] as values):  # setdefault("HF_TOKEN", "abc"), setattr(api, "token", "abc")
                given = [(_text(name), value) for name, value in pairwise(values)]
            case ast.arguments():
                given = list(_defaults(node))
        for name, value in given:
            if value is not None and SECRET.search(name):
                for part in ast.walk(value):
                    text = isinstance(part, ast.Constant) and isinstance(part.value, (str, bytes))
                    if isinstance(part, ast.expr) and (text or isinstance(part, ast.JoinedStr)):
                        yield part


def _set_name(target: ast.expr) -> str:
    match target:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
        case ast.Subscript(slice=key):
            return _text(key)
    return ""


def _text(key: ast.expr | None) -> str:
    return key.value if isinstance(key, ast.Constant) and isinstance(key.value, str) else ""


def _redacted_words(text: str) -> str:
    """Return text that is not Python without values that may be secret."""
    parts, end = list[str](), 0
    for name in re.finditer(r"[\w-]+", text):
        if name.start() >= end and SECRET.search(name[0]) and (value := _SET_TO.match(text, name.end())):
            group = value.lastindex or 0
            parts += [text[end : value.start(group)], f"'{LEFT_OUT}'"]
            end = value.end(group)
    return "".join(parts) + text[end:]


def lines_changed(before: Code, now: Code, without: Collection[str]) -> int:
    """Count the lines that differ apart from these constants; a line that replaces another counts once."""
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
                for name, default in _defaults(arguments):
                    if default is not None and (found := _value(default)) is not None:
                        yield _Found(name, owner, found, default)


def _defaults(arguments: ast.arguments) -> Iterator[tuple[str, ast.expr | None]]:
    with_default = [*arguments.posonlyargs, *arguments.args][-len(arguments.defaults) :]
    pairs = [*zip(with_default, arguments.defaults), *zip(arguments.kwonlyargs, arguments.kw_defaults)]
    yield from ((argument.arg, default) for argument, default in pairs)


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
    """Return the constants by name. If a name is used twice, arguments get their function's: ``Adam.lr``.

    Arguments whose full name is used twice are left out.
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

    A variable that is bound once, after it was read (``lr = lr / 2``), is both.
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
    """Yield each use of the cell's variables in a node, in the order of execution, without the bodies of functions."""
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
