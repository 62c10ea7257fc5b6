"""Our cells among those of plain ipyparallel: begun and ended in the agent, and what they put out given to it."""

from __future__ import annotations

import sys
import traceback
import warnings
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from allranks.messages import cell_options
from allranks.messages.events import BundleKind
from allranks.messages.wire import escaped
from allranks.rank.debug import introspection

from . import bars, not_run, tracebacks
from .code_names import CodeNames
from .stdio import RankStream

if TYPE_CHECKING:
    from allranks.rank.agent.agent import Agent

INPUT_REFUSED = (
    "input() does not work on a rank, which has no keyboard. Call it in the notebook and send the answer with "
    "`%distributed push NAME` (or cluster.push)."
)
EXIT_REFUSED = (
    "exit() would end this rank's process and break the world. `%distributed down` (or cluster.down()) stops all ranks."
)

BUNDLES: Mapping[str, BundleKind] = {
    "display_data": "display",
    "update_display_data": "update",
    "execute_result": "result",
}
"""What Jupyter calls the messages that have MIME bundles."""


def divert_cells(kernel: Any, agent: Agent) -> None:
    """Hook our cells: begin and end are told to the agent, and what IPython would publish goes to its output."""
    handlers, shell, cell = kernel.shell_handlers, kernel.shell, agent.cell
    execute, apply = handlers["execute_request"], handlers["apply_request"]
    last: dict[str, Any] = {}

    async def execute_request(stream: Any, ident: Any, parent: dict[str, Any]) -> None:
        sent = parent.get("metadata", {}).get("allranks")
        if sent is None:
            RankStream.elsewhere = True
            try:
                await execute(stream, ident, parent)
                sys.stdout.flush()
                sys.stderr.flush()
            finally:
                RankStream.elsewhere = False
            return
        try:
            request = cell_options.read(sent)
        except cell_options.Unreadable as error:
            not_run.refused(cell, sent, str(error))
            request = None
        if request is None or cell.is_copy(request):
            kernel.session.send(stream, "execute_reply", {"status": "aborted"}, parent, ident=ident)
            return
        last.clear()
        try:
            code = parent["content"]["code"]
            kernel.execution_count = request.count - 1
            shell.execution_count = request.count
            if request.comms:
                agent.comms.catch_up(request.comms)
            cell.begin(request, shell.compile.get_code_name(code, code, request.count))
            with cell.interrupt.allowed():
                await execute(stream, ident, parent)
        except BaseException as error:  # the machinery failed, IPython's or ours: the cell did not run to its end
            lines = traceback.format_exc().splitlines()
            if isinstance(error, KeyboardInterrupt):
                lines = ["KeyboardInterrupt: outside the cell's own code"]
            cell.error({"ename": type(error).__name__, "evalue": str(error), "traceback": lines}, None)
        finally:
            if (raised := last.pop("error", None)) is not None:
                cell.note_error(raised)
            agent.debugger.end_cell(raised)
            del raised
            value = last.pop("value", None)
            if (returned := agent.calls.returned) is not None:
                value = returned[0]
            cell.end(value, request.options.want_values)
            agent.calls.returned = None

    def apply_request(stream: Any, ident: Any, parent: dict[str, Any]) -> Any:
        RankStream.elsewhere = True
        try:
            return apply(stream, ident, parent)
        finally:
            RankStream.elsewhere = False

    streams = {"stdout": sys.stdout, "stderr": sys.stderr}

    def after_cell(result: Any) -> None:
        last["value"], last["error"] = result.result, result.error_before_exec or result.error_in_exec
        for name, stream in streams.items():
            if not _can_be_flushed(getattr(sys, name, None)):
                setattr(sys, name, stream)
                stream.write(f"sys.{name} could not be written to: it is the rank's own again.\n")

    def refuse_exit() -> None:
        __tracebackhide__ = True
        raise RuntimeError(EXIT_REFUSED)

    def refuse_input(*_: Any, **__: Any) -> str:
        __tracebackhide__ = True
        raise RuntimeError(INPUT_REFUSED)

    handlers["execute_request"], handlers["apply_request"] = execute_request, apply_request
    # ipykernel's would put Python's own SIGINT handling back around each message.
    kernel.pre_handler_hook = kernel.post_handler_hook = lambda: None
    shell.events.register("post_run_cell", after_cell)
    shell.ask_exit = refuse_exit
    shell.compile.get_code_name = CodeNames(shell.compile).name
    _name_cells(shell)
    kernel.raw_input = kernel.getpass = refuse_input
    introspection.install(shell, agent)
    tracebacks.end_at_the_user(shell, agent.reserve.lent)
    agent.debugger.install(shell)
    bars.install(lambda: cell.widgets)
    kernel.session.send = _diverted(kernel.session.send, kernel, agent)


def _can_be_flushed(stream: Any) -> bool:
    """As IPython and ipykernel do after each cell: a cell may have put None, or a file that it closed, in its place."""
    try:
        stream.flush()
    except Exception:
        return False
    return True


def _name_cells(shell: Any) -> None:
    """Have warnings name a cell as tracebacks do, in place of the name of its code."""
    format_warning = warnings.formatwarning

    def formatwarning(message: Any, category: Any, filename: str, lineno: int, line: str | None = None) -> str:
        text = format_warning(message, category, filename, lineno, line)
        if (name := shell.compile.format_code_name(filename)) is None:
            return text
        return text.replace(f"{filename}:{lineno}:", f"{' '.join(name)}, line {lineno}:", 1)

    warnings.formatwarning = formatwarning


def _diverted(send: Callable[..., Any], kernel: Any, agent: Agent) -> Callable[..., Any]:
    """`Session.send`, with what a cell of ours publishes given to the agent instead of to ipyparallel."""
    output = agent.cell.output

    def divert(stream: Any, kind: Any, content: Any = None, *args: Any, **kwargs: Any) -> Any:
        if isinstance(kind, str) and kind.startswith("comm_"):
            metadata, buffers = kwargs.get("metadata") or {}, kwargs.get("buffers") or ()
            if agent.comms.publish(kind, content, metadata, buffers, ours=not RankStream.elsewhere):
                return None
        if RankStream.elsewhere:
            return send(stream, kind, content, *args, **kwargs)
        message = kind
        if isinstance(message, dict):  # IPython's display hooks hand over a whole message
            kind, content = message["header"]["msg_type"], message["content"]
        if kind in BUNDLES:
            transient = content.get("transient") or {}
            bundle = {"data": content["data"], "metadata": content.get("metadata") or {}}
            output.rich(BUNDLES[kind], {**bundle, "display_id": transient.get("display_id")})
        elif kind == "clear_output":
            output.clear(bool(content.get("wait")))
        elif kind == "error":
            error = tracebacks.raised()
            agent.cell.error(content, *tracebacks.place_of_error(error, agent.cell.file), error)
        elif kind == "stream":
            output.write(content["name"], content["text"])
        elif kind == "execute_reply":
            return send(stream, message, escaped(content), *args, **kwargs)  # an error's text may be no Unicode
        elif kind not in ("status", "execute_input") or not _is_ours(kernel):
            return send(stream, message, content, *args, **kwargs)
        return None

    return divert


def _is_ours(kernel: Any) -> bool:
    return "allranks" in kernel.get_parent("shell").get("metadata", {})
