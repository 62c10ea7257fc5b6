"""pdb on one rank: it reads and prints in the notebook, and computes nothing that would wait for other ranks."""

from __future__ import annotations

import ast
import contextlib
import io
import linecache
import pdb
import sys
import sysconfig
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

from allranks.messages.value_types import Namespace
from allranks.rank.arrays.pending_arrays import waits
from allranks.rank.collectives.ledger import Ledger

from . import introspection

NEVER_STOP_IN = ["allranks", "asyncio", "ipykernel", "ipyparallel", "IPython", "tornado", "traitlets", "zmq"]
"""Modules in which stepping never stops: they run a cell or record its collectives."""
HARMLESS = {"shape", "dtype", "ndim", "size", "nbytes", "itemsize"}
"""Attributes of an array that are known without evaluating the array."""
KNOW_BY_TYPE = {"type", "id", "len", "isinstance"}
MOST_TEXT = 100_000
"""Maximum number of characters in one answer."""
ALONE = (
    "a collective called in the debugger of one rank would block, waiting for the others. "
    "Let the cell go on (c), or run a cell on all ranks"
)


class RankPdb(pdb.Pdb):
    """`read(printed)` sends the output and returns the next command; `went_on(stepping)` reports that code goes on."""

    def __init__(
        self,
        user_ns: Namespace,
        ledger: Ledger,
        read: Callable[[str], str],
        went_on: Callable[[bool], None],
    ) -> None:
        skip = [pattern for name in NEVER_STOP_IN for pattern in (name, f"{name}.*")]
        self._printed = io.StringIO()
        commands: Any = _Commands(lambda: read(self.take()))
        # The user's .pdbrc is meant for a terminal, and the engine handles SIGINT.
        super().__init__(stdin=commands, stdout=self._printed, skip=skip, nosigint=True, readrc=False)
        self.use_rawinput, self.prompt = False, ""
        self._user_ns, self._ledger, self._went_on = user_ns, ledger, went_on

    def take(self) -> str:
        """The text that was printed since the last call, cut after `MOST_TEXT` characters."""
        text = self._printed.getvalue()
        self._printed.seek(0)
        self._printed.truncate()
        return text if len(text) <= MOST_TEXT else f"{text[:MOST_TEXT]}\n… {len(text) - MOST_TEXT:,} characters more\n"

    @property
    def stepping(self) -> bool:
        """Whether the code, as it goes on, may stop at a prompt again: not after `q`, or `c` without breakpoints."""
        return not self.quitting and (self.stoplineno != -1 or bool(self.get_all_breaks()))

    # The stack, and where pdb stops.

    def get_stack(self, f: FrameType | None, t: TracebackType | None) -> tuple[list[tuple[FrameType, int]], int]:
        """The frames from the cell's frame inwards, without allranks' own, and the index of the frame to start in.

        A look back starts in the innermost frame that is not in a library.
        """
        stack, at = super().get_stack(f, t)
        here = stack[at][0] if stack else None
        first = next((n for n, (frame, _) in enumerate(stack) if frame.f_globals is self._user_ns), 0)
        stack = [(frame, line) for frame, line in stack[first:] if not _ours(frame)]
        if f is None:
            at = max((n for n, (frame, _) in enumerate(stack) if not _library(frame)), default=len(stack) - 1)
        else:
            at = next((n for n, (frame, _) in enumerate(stack) if frame is here), len(stack) - 1)
        return stack, at

    def interaction(self, frame: FrameType | None, tb_or_exc: Any, *_: object) -> None:
        done = False
        try:
            super().interaction(frame, tb_or_exc)
            done = True
        finally:
            self._went_on(done and frame is not None and self.stepping)

    def _cmdloop(self) -> None:
        self.cmdloop()  # pdb's own would go on after a KeyboardInterrupt, which must end pdb here

    def stop_here(self, frame: FrameType) -> bool:
        """Stop only in the user's code and what it calls: between a cell's statements, IPython's code runs."""
        return bool(super().stop_here(frame)) and self._of_user(frame)

    def _of_user(self, frame: FrameType | None) -> bool:
        while frame is not None and frame.f_globals is not self._user_ns:
            frame = frame.f_back
        return frame is not None

    def user_call(self, frame: FrameType, argument_list: Any) -> None:
        if self._of_user(frame.f_back):  # otherwise the cell's next statement begins, and pdb stops at its first line
            super().user_call(frame, argument_list)

    def user_return(self, frame: FrameType, return_value: object) -> None:
        if not self._of_user(frame.f_back) and _more_follows(frame):
            self.set_step()  # to the next statement of the cell
            return
        super().user_return(frame, _Words(_told(return_value)) if waits(return_value) else return_value)

    def user_exception(self, frame: FrameType, exc_info: Any) -> None:
        # bdb calls this wherever a coroutine ends.
        if not self.is_skipped_module(str(frame.f_globals.get("__name__"))):
            super().user_exception(frame, exc_info)

    # Evaluation and display.

    def onecmd(self, line: str) -> bool:
        with self._alone():
            try:
                return bool(super().onecmd(line))
            except Exception as error:  # the error must not be raised in the user's code
                self.error(f"{type(error).__name__}: {error}")
                return False

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """Context for a command on this rank only: its output is part of the answer, and it enters no collective."""
        self._ledger.refuse = self._ledger.refuse or ALONE
        try:
            with contextlib.redirect_stdout(self._printed):
                yield
        finally:
            if self._ledger.refuse is ALONE:  # otherwise the world broke meanwhile, and collectives stay refused
                self._ledger.refuse = None

    def default(self, line: str) -> None:
        if not self._refused(line.removeprefix("!")):
            super().default(line)

    def displayhook(self, obj: object) -> None:
        if obj is not None:
            self.message(self._safe_repr(obj, ""))

    def _getval(self, arg: str) -> object:
        if self._refused(arg):
            raise ValueError
        return super()._getval(arg)

    def _getval_except(self, arg: str, frame: FrameType | None = None) -> object:
        if names := would_wait(arg, self._names()):
            return _Words(_refusal(names))
        value = super()._getval_except(arg, frame)
        return _Words(_told(value)) if waits(value) else value

    def _msg_val_func(self, arg: str, func: Callable[[object], str]) -> None:
        super()._msg_val_func(arg, lambda value: _told(value) if waits(value) else func(value))  # type: ignore[misc]

    def _safe_repr(self, obj: object, expr: str) -> str:
        return _told(obj) if waits(obj) else str(super()._safe_repr(obj, expr))  # type: ignore[misc]

    def do_clear(self, arg: str) -> None:
        """clear [breakpoints]: without any, clear all."""
        if arg:
            super().do_clear(arg)
        else:  # pdb would ask for confirmation
            self.clear_all_breaks()
            self.message("All breakpoints cleared.")

    do_cl = do_clear

    def do_interact(self, arg: str) -> None:
        """Statements can be typed at the prompt as they are."""
        self.error("There is no interactive interpreter here: type statements at this prompt.")

    def _refused(self, code: str) -> bool:
        names = would_wait(code, self._names())
        if names:
            self.error(_refusal(names))
        return bool(names)

    def _names(self) -> Namespace:
        frame = self.curframe
        return {**frame.f_globals, **self.curframe_locals} if frame is not None else self._user_ns


def _more_follows(frame: FrameType) -> bool:
    """Whether the cell has another statement after the one that `frame` has run to its end."""
    try:
        tree = ast.parse("".join(linecache.getlines(frame.f_code.co_filename)))
    except SyntaxError:
        return False
    return any(statement.lineno > frame.f_lineno for statement in tree.body)


class _Commands:
    """Standard input for pdb, one command at a time."""

    def __init__(self, read: Callable[[], str]) -> None:
        self.readline = read


class _Words(str):
    """A string that is shown without quotes."""

    def __repr__(self) -> str:
        return str(self)


def would_wait(code: str, names: Namespace) -> list[str]:
    """The names in `code` that wait for a collective.

    Returns [] if `code` is not valid Python, or only does arithmetic, which evaluates nothing.
    """
    try:
        tree = ast.parse(code.strip())
    except SyntaxError:
        return []
    paths = _Paths()
    paths.visit(tree)
    if not paths.computes:
        return []
    return [path for path in dict.fromkeys(paths.found) if waits(introspection.find(names, path))]


class _Paths(ast.NodeVisitor):
    """Collects the names and dotted names that code uses, and whether the code does more than MLX does lazily."""

    def __init__(self) -> None:
        self.found: list[str] = []
        self.computes = False

    def visit(self, node: ast.AST) -> None:
        lazy_not = isinstance(node, ast.UnaryOp) and not isinstance(node.op, ast.Not)
        if isinstance(node, ast.Compare):
            self.computes |= len(node.ops) > 1 or isinstance(node.ops[0], (ast.In, ast.NotIn))
        elif isinstance(node, (ast.JoinedStr, ast.BoolOp, ast.UnaryOp, ast.If, ast.While, ast.IfExp, ast.Assert)):
            self.computes |= not lazy_not
        elif isinstance(node, ast.Call):
            if isinstance(node.func, ast.Name) and node.func.id in KNOW_BY_TYPE:
                return
            self.computes = True
        if isinstance(node, ast.Attribute) and node.attr in HARMLESS:
            return
        if isinstance(node, (ast.Attribute, ast.Name)) and (path := _dotted(node)):
            parts = path.split(".")
            self.found += [".".join(parts[: n + 1]) for n in range(len(parts))]
            return
        self.generic_visit(node)


def _dotted(node: ast.AST) -> str:
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute) and (owner := _dotted(node.value)):
        return f"{owner}.{node.attr}"
    return ""


def _refusal(names: list[str]) -> str:
    waits_for = f"{', '.join(names)} {'waits' if len(names) == 1 else 'wait'} for a collective"
    return f"{waits_for}, which all ranks must enter: computing it on this rank alone would block. Type c to continue."


def _told(value: object) -> str:
    """Describe a value that must not be printed, since its arrays wait for a collective."""
    mx = sys.modules["mlx.core"]
    what = f"a {type(value).__name__} with arrays"
    if isinstance(value, mx.array):
        what = f"an array of shape {tuple(value.shape)}, {str(value.dtype).removeprefix('mlx.core.')},"
    return f"<{what} not evaluated yet: it needs a collective, which all ranks must enter>"


def _ours(frame: FrameType) -> bool:
    return str(frame.f_globals.get("__name__")).startswith("allranks.")


_LIBRARIES = tuple({str(Path(sysconfig.get_path(name))) for name in ("stdlib", "purelib", "platlib")})


def _library(frame: FrameType) -> bool:
    return frame.f_code.co_filename.startswith((*_LIBRARIES, "<frozen"))
