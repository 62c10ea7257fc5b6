"""Removes strings that may be secret from code: they are never shown, compared or exported."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from itertools import pairwise

SECRET = re.compile(
    r"(?i)token(?!iz)|secret|passw|passphrase|\bpwd\b|credential|bearer|auth(?!ors?\b|ored\b)|"
    r"(api|access|secret|private|auth|ssh|service)_?-?keys?|key_?id$"
)
"""Matches the names of variables, arguments and keys whose strings may be secret."""
LEFT_OUT = "…"
"""Replaces a string that may be secret, in quotes."""
_SET_TO = re.compile(
    r"""["']?\]?[ \t]*(?:=[ \t]*("[^"\n]*"|'[^'\n]*'|[^\s"']+)|:[ \t]*([^"'\n]+)|[ \t]("[^"\n]*"|'[^'\n]*'|[^\s"']+))"""
)
"""Matches what follows a name in text that is not Python; its group is the value: ``abc`` in ``HF_TOKEN=abc``. A value
after a colon, as in ``Authorization: Bearer abc``, ends at a quote or at the end of the line."""


def redacted(text: str, tree: ast.Module, python: str) -> str:
    """Return the code `text` without strings that may be secret.

    `python` is `text` with the lines that are not Python replaced; `tree` is `python`, parsed.
    """
    lines = [
        (line if line == other else redacted_words(line)).encode()
        for line, other in zip(text.split("\n"), python.split("\n"))
    ]
    found = sorted(
        (each.lineno - 1, each.col_offset, (each.end_lineno or each.lineno) - 1, each.end_col_offset or 0)
        for each in _secrets(tree)
    )
    places = list[tuple[int, int, int, int]]()
    for place in found:  # without locations inside another location
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
                given = list(defaults_of(node))
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


def redacted_words(text: str) -> str:
    """Return `text`, which need not be Python, without values that may be secret."""
    parts, end = list[str](), 0
    for name in re.finditer(r"[\w-]+", text):
        if name.start() >= end and SECRET.search(name[0]) and (value := _SET_TO.match(text, name.end())):
            group = value.lastindex or 0
            parts += [text[end : value.start(group)], f"'{LEFT_OUT}'"]
            end = value.end(group)
    return "".join(parts) + text[end:]


def defaults_of(arguments: ast.arguments) -> Iterator[tuple[str, ast.expr | None]]:
    with_default = [*arguments.posonlyargs, *arguments.args][-len(arguments.defaults) :]
    pairs = [*zip(with_default, arguments.defaults), *zip(arguments.kwonlyargs, arguments.kw_defaults)]
    yield from ((argument.arg, default) for argument, default in pairs)
