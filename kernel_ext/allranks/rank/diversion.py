"""Our cells among those of plain ipyparallel: begun and ended in the agent, and what they put out given to it."""

from __future__ import annotations

import hashlib
import sys
import traceback
from collections.abc import Callable
from typing import Any

from . import bars, look, tracebacks
from .agent import Agent
from .stdio import RankStream

INPUT_REFUSED = (
    "input() cannot ask on a rank: it has no keyboard. Ask in the notebook and send the answer with "
    "`%distributed push NAME` (or cluster.push)."
)
EXIT_REFUSED = (
    "exit() would end this rank's process and break the world. `%distributed down` (or cluster.down()) ends all ranks."
)


def divert_cells(kernel: Any, agent: Agent) -> None:
    """Hook our cells: begin and end are told to the agent, and what IPython would publish goes to its outlet."""
    handlers, shell, cell = kernel.shell_handlers, kernel.shell, agent.cell
    execute, apply = handlers["execute_request"], handlers["apply_request"]
    last: dict[str, Any] = {}

    async def execute_request(stream: Any, ident: Any, parent: dict[str, Any]) -> None:
        ours = parent.get("metadata", {}).get("allranks")
        if ours is None:
            RankStream.elsewhere = True
            try:
                await execute(stream, ident, parent)
                sys.stdout.flush()
                sys.stderr.flush()
            finally:
                RankStream.elsewhere = False
            return
        last.clear()
        try:
            code = parent["content"]["code"]
            kernel.execution_count = ours["count"] - 1
            shell.execution_count = ours["count"]
            if said := ours.get("comms"):
                agent.comms.catch_up(said)
            cell.begin(ours, shell.compile.get_code_name(code, code, ours["count"]))
            with cell.interrupted_here():
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
            cell.end(last.pop("value", None), ours.get("value", False))

    def apply_request(stream: Any, ident: Any, parent: dict[str, Any]) -> Any:
        RankStream.elsewhere = True
        try:
            return apply(stream, ident, parent)
        finally:
            RankStream.elsewhere = False

    def keep_value(result: Any) -> None:
        last["value"], last["error"] = result.result, result.error_before_exec or result.error_in_exec

    def refuse_exit() -> None:
        __tracebackhide__ = True
        raise RuntimeError(EXIT_REFUSED)

    def refuse_input(*_: Any, **__: Any) -> str:
        __tracebackhide__ = True
        raise RuntimeError(INPUT_REFUSED)

    handlers["execute_request"], handlers["apply_request"] = execute_request, apply_request
    # ipykernel's would put Python's own SIGINT handling back around each message.
    kernel.pre_handler_hook = kernel.post_handler_hook = lambda: None
    shell.events.register("post_run_cell", keep_value)
    shell.ask_exit = refuse_exit
    shell.compile.get_code_name = _file_name
    kernel.raw_input = kernel.getpass = refuse_input
    look.install(shell, agent)
    tracebacks.end_at_the_user(shell)
    agent.debugger.install(shell)
    bars.install(lambda: cell.widgets)
    kernel.session.send = _diverted(kernel.session.send, kernel, agent)


def _file_name(raw_code: str, _code: str, _number: int) -> str:
    """What the cell is called in warnings: the same on every rank, so that these fold (ipykernel's has the pid)."""
    return f"<cell {hashlib.sha1(raw_code.encode(errors='backslashreplace')).hexdigest()[:8]}>"


def _diverted(send: Callable[..., Any], kernel: Any, agent: Agent) -> Callable[..., Any]:
    """`Session.send`, with what a cell of ours publishes given to the agent instead of to ipyparallel."""
    outlet = agent.cell.outlet

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
        if kind in ("display_data", "update_display_data", "execute_result"):
            name = {"display_data": "display", "update_display_data": "update", "execute_result": "result"}[kind]
            transient = content.get("transient") or {}
            bundle = {"data": content["data"], "metadata": content.get("metadata") or {}}
            outlet.rich(name, {**bundle, "display_id": transient.get("display_id")})
        elif kind == "clear_output":
            outlet.clear(bool(content.get("wait")))
        elif kind == "error":
            agent.cell.error(content, *tracebacks.place_of_error(agent.cell.file))
        elif kind == "stream":
            outlet.write(content["name"], content["text"])
        elif kind not in ("status", "execute_input") or not _is_ours(kernel):
            return send(stream, message, content, *args, **kwargs)
        return None

    return divert


def _is_ours(kernel: Any) -> bool:
    return "allranks" in kernel.get_parent("shell").get("metadata", {})
