"""Completion and ``?`` in cells for the ranks: asked of a rank's agent, so nothing is evaluated there.

It answers within milliseconds, also while the rank is busy.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from IPython.core.completer import CompletionContext, SimpleCompletion, SimpleMatcherResult, context_matcher
from IPython.utils.tokenutil import token_at_cursor

from . import auto as auto_module

if TYPE_CHECKING:
    from allranks.cluster.cluster import Cluster

FOR_RANKS = ("%%distributed", "%%rank")


def install(shell: Any, cluster: Callable[[], Cluster | None]) -> None:
    """Put a matcher before IPython's own, and ask the ranks on shift-tab."""

    @context_matcher()
    def allranks_matcher(context: CompletionContext) -> SimpleMatcherResult:
        code, cursor = _for_ranks(shell, context.full_text), context.cursor_position
        world = cluster()
        if code is None or world is None or (context.cursor_line == 0 and context.full_text.startswith(FOR_RANKS)):
            return SimpleMatcherResult(completions=[], suppress=False)
        found = world.complete(context.full_text, _offset(context.full_text, context.cursor_line, cursor))
        if not found:
            return SimpleMatcherResult(completions=[], suppress=False)
        # IPython replaces its own idea of the token, which includes the dotted path.
        head = context.token[: len(context.token) - (found["end"] - found["start"])]
        names = [SimpleCompletion(head + name, type="instance") for name in found["names"]]
        return SimpleMatcherResult(completions=names, suppress=True)

    shell.Completer.custom_matchers.insert(0, allranks_matcher)
    shell.allranks_matcher = allranks_matcher
    kernel = getattr(shell, "kernel", None)
    if kernel is not None:
        kernel.do_inspect = _inspecting(kernel.do_inspect, shell, cluster)


def remove(shell: Any) -> None:
    """Undo `install`."""
    if shell.allranks_matcher in shell.Completer.custom_matchers:
        shell.Completer.custom_matchers.remove(shell.allranks_matcher)
    kernel = getattr(shell, "kernel", None)
    if kernel is not None:
        vars(kernel).pop("do_inspect", None)


def _inspecting(
    do_inspect: Callable[..., Any], shell: Any, cluster: Callable[[], Cluster | None]
) -> Callable[..., Any]:
    def inspect(code: str, cursor_pos: int, detail_level: int = 0, omit_sections: Any = ()) -> Any:
        world = cluster()
        if world is not None and _for_ranks(shell, code) is not None:
            name = token_at_cursor(code, cursor_pos)
            found = world.inspect(name, detail_level) if name and not name.startswith("%") else None
            if found is not None:
                return {"status": "ok", "found": True, "data": found, "metadata": {}}
        return do_inspect(code, cursor_pos, detail_level, omit_sections)

    return inspect


def _for_ranks(shell: Any, code: str) -> str | None:
    """The cell's code if it is meant for the ranks."""
    text = code.lstrip()
    auto = auto_module.to_ranks in shell.input_transformers_cleanup and not text.startswith("%")
    return code if auto or text.startswith(FOR_RANKS) else None


def _offset(text: str, line: int, column: int) -> int:
    return sum(len(each) + 1 for each in text.split("\n")[:line]) + column
