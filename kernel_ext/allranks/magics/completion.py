"""Completion after the magics of allranks, and completion and shift-tab for names in cells for the ranks.

A rank's agent is asked about names, so nothing is evaluated. It answers within milliseconds, even while the rank is
busy.
"""

from __future__ import annotations

import builtins
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from IPython.core.completer import CompletionContext, SimpleCompletion, SimpleMatcherResult, context_matcher
from IPython.utils.tokenutil import token_at_cursor

from allranks.cluster.run_history import RUNS
from allranks.head.world.detached_cluster_file import left_behind
from allranks.hosts.ssh.config import configured_hosts

from . import auto as auto_module
from .completion_words import words

if TYPE_CHECKING:
    from argparse import ArgumentParser

    from IPython.core.interactiveshell import InteractiveShell

    from allranks.cluster.cluster import Cluster

FOR_RANKS = ("%%distributed", "%%rank")


def install(shell: Any, cluster: Callable[[], Cluster | None], parsers: Mapping[str, ArgumentParser]) -> None:
    """Put a matcher before IPython's own, and have shift-tab ask a rank about a name.

    `parsers` maps each magic to its parser.
    """

    @context_matcher()
    def allranks_matcher(context: CompletionContext) -> SimpleMatcherResult:
        if (found_words := _words(shell, context, cluster(), parsers)) is not None:
            return SimpleMatcherResult(
                completions=[SimpleCompletion(word, type="magic") for word in found_words], suppress=True
            )
        code, cursor = _for_ranks(shell, context.full_text), context.cursor_position
        world = cluster()
        if code is None or world is None or (context.cursor_line == 0 and context.full_text.startswith(FOR_RANKS)):
            return SimpleMatcherResult(completions=[], suppress=False)
        found = world.complete(context.full_text, _offset(context.full_text, context.cursor_line, cursor))
        if not found:
            return SimpleMatcherResult(completions=[], suppress=False)
        # IPython replaces the token as it sees it, which includes the dotted path.
        head = context.token[: len(context.token) - (found["end"] - found["start"])]
        names = [SimpleCompletion(head + name, type="instance") for name in found["names"]]
        return SimpleMatcherResult(completions=names, suppress=True)

    shell.Completer.custom_matchers.insert(0, allranks_matcher)
    shell.allranks_matcher = allranks_matcher
    kernel = getattr(shell, "kernel", None)
    if kernel is not None:
        kernel.do_inspect = _inspecting(kernel.do_inspect, shell, cluster)


def _words(
    shell: InteractiveShell, context: CompletionContext, world: Cluster | None, parsers: Mapping[str, ArgumentParser]
) -> list[str] | None:
    """Completions of the word at the cursor after a magic of allranks; None elsewhere, and for files."""
    line = context.full_text.split("\n")[context.cursor_line][: context.cursor_position]
    magic, space, typed = line.lstrip().partition(" ")
    if not space or magic not in parsers or (magic.startswith("%%") and context.cursor_line):
        return None
    *before, word = typed.split(" ")
    found = words(
        parsers[magic],
        [each for each in before if each],
        word,
        user_ns=shell.user_ns,
        ranks=range(world.size if world is not None else 0),
        on_ranks=lambda begins: _variables(world, begins),
        hosts=lambda: _hosts(world),
        clusters=lambda: sorted(name for name, kept in left_behind().items() if not kept.why_not),
        runs=lambda: [run.name.removeprefix("run ") for run in RUNS if " " not in run.name.removeprefix("run ")],
    )
    if found is None:
        return None
    # IPython replaces the token as it sees it, which may be only the end of the word.
    return [each[len(word) - len(context.token) :] for each in found] if word.endswith(context.token) else found


def _hosts(world: Cluster | None) -> list[str]:
    """localhost, the hosts of the cluster, and the hosts that ~/.ssh/config names."""
    known = [view.name for view in world.snapshot.hosts] if world is not None else []
    return list(dict.fromkeys(["localhost", *known, *configured_hosts()]))


def _variables(world: Cluster | None, begins: str) -> list[str]:
    found = world.complete(begins, len(begins)) if world is not None else None
    return [name for name in (found or {}).get("names", ()) if not hasattr(builtins, name)]


def remove(shell: Any) -> None:
    """Undo `install`."""
    if shell.allranks_matcher in shell.Completer.custom_matchers:
        shell.Completer.custom_matchers.remove(shell.allranks_matcher)
    kernel = getattr(shell, "kernel", None)
    if kernel is not None:
        vars(kernel).pop("do_inspect", None)


def _inspecting(
    do_inspect: Callable[..., object], shell: InteractiveShell, cluster: Callable[[], Cluster | None]
) -> Callable[..., object]:
    def inspect(code: str, cursor_pos: int, detail_level: int = 0, omit_sections: object = ()) -> object:
        world = cluster()
        if world is not None and _for_ranks(shell, code) is not None:
            name = token_at_cursor(code, cursor_pos)
            found = world.inspect(name, detail_level) if name and not name.startswith("%") else None
            if found is not None:
                return {"status": "ok", "found": True, "data": found, "metadata": {}}
        return do_inspect(code, cursor_pos, detail_level, omit_sections)

    return inspect


def _for_ranks(shell: InteractiveShell, code: str) -> str | None:
    """The cell's code if it is meant for the ranks; otherwise None."""
    text = code.lstrip()
    auto = auto_module.to_ranks in shell.input_transformers_cleanup and not text.startswith("%")
    return code if auto or text.startswith(FOR_RANKS) else None


def _offset(text: str, line: int, column: int) -> int:
    return sum(len(each) + 1 for each in text.split("\n")[:line]) + column
