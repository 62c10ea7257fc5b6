"""Runs the notebook's cells, whose output goes to the recorder, in a kernel that also runs plain ipyparallel's."""

from __future__ import annotations

import sys
import traceback
import warnings
from collections.abc import Awaitable, Callable, Mapping
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

from allranks.messages import cell_options
from allranks.messages.events import BundleKind
from allranks.messages.wire import escaped
from allranks.rank.debug.debugger import Debugger
from allranks.rank.main_thread.running_cell import RunningCell

from . import not_run, progress_bars, tracebacks
from .called_functions import CODE, CalledFunctions
from .code_names import CodeNames
from .rank_comms import Comms
from .recorder import CellRecorder
from .stdio import RankStream
from .transform_once import TransformOnce

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell

INPUT_REFUSED = (
    "input() does not work on a rank, which has no keyboard. Call it in the notebook and send the answer with "
    "`%distributed push NAME` (or cluster.push)."
)
EXIT_REFUSED = (
    "exit() would end this rank's process and break the world. `%distributed down` (or cluster.down()) stops all ranks."
)

OURS: Mapping[str, object] = {"header": {}, "parent_header": {}, "metadata": {}, "content": {}, "buffers": []}
"""The parent message of the notebook's cells, which do not arrive in a Jupyter message."""

BUNDLES: Mapping[str, BundleKind] = {
    "display_data": "display",
    "update_display_data": "update",
    "execute_result": "result",
}
"""Maps each type of Jupyter message with a MIME bundle to our kind of output."""


def divert_cells(
    kernel: Any, cell: RunningCell, recorder: CellRecorder, calls: CalledFunctions, comms: Comms, debugger: Debugger
) -> Callable[[str, Mapping[str, object]], Awaitable[None]]:
    """Hook into the kernel: the recorder is called at the start and end of each of the notebook's cells.

    The recorder also gets the output that IPython would publish. Returns the function that runs a cell, given the
    cell's code and its `CellRequest` as plain data.
    """
    handlers, shell = kernel.shell_handlers, kernel.shell
    execute, apply = handlers["execute_request"], handlers["apply_request"]
    text = TransformOnce(shell)
    last: dict[str, Any] = {}

    async def execute_request(stream: object, ident: object, parent: Mapping[str, object]) -> None:
        RankStream.elsewhere = True
        try:
            await execute(stream, ident, parent)
            sys.stdout.flush()
            sys.stderr.flush()
        finally:
            RankStream.elsewhere = False

    async def run(code: str, sent: Mapping[str, object]) -> None:
        try:
            request = cell_options.read(sent)
        except cell_options.Unreadable as error:
            not_run.refused(recorder, sent, str(error))
            return
        if recorder.is_copy(request):
            return
        last.clear()
        code = CODE[request.calls] if request.calls is not None else code
        try:
            kernel.execution_count = shell.execution_count = request.count
            kernel.set_parent([], OURS)
            if request.comms:
                comms.catch_up(request.comms)
            recorder.begin(request, shell.compile.get_code_name(code, code, request.count))
            text.begin()
            with cell.interrupt.allowed():
                await kernel.do_execute(code, silent=False)
        except BaseException as error:  # IPython or allranks failed, so the cell did not run to its end
            lines = traceback.format_exc().splitlines()
            if isinstance(error, KeyboardInterrupt):
                lines = ["KeyboardInterrupt: outside the cell's own code"]
            recorder.error({"ename": type(error).__name__, "evalue": str(error), "traceback": lines})
        finally:
            if (raised := last.pop("error", None)) is not None:
                recorder.note_error(raised)
            debugger.end_cell(raised)
            del raised
            value = last.pop("value", None)
            if (returned := calls.returned) is not None:
                value = returned[0]
            recorder.end(value, request.options.want_values)
            calls.returned = None

    def apply_request(stream: object, ident: object, parent: Mapping[str, object]) -> object:
        RankStream.elsewhere = True
        try:
            return apply(stream, ident, parent)
        finally:
            RankStream.elsewhere = False

    streams = {"stdout": sys.stdout, "stderr": sys.stderr}

    def after_cell(result: Any) -> None:
        last["value"], last["error"] = result.result, result.error_before_exec or result.error_in_exec
        getattr(shell.history_manager, "outputs", {}).clear()
        for name, stream in streams.items():
            if not _can_be_flushed(getattr(sys, name, None)):
                setattr(sys, name, stream)
                stream.write(f"sys.{name} could not be written to: it is the rank's own again.\n")

    def refuse_exit() -> None:
        __tracebackhide__ = True
        raise RuntimeError(EXIT_REFUSED)

    def refuse_input(*_: object, **__: object) -> str:
        __tracebackhide__ = True
        raise RuntimeError(INPUT_REFUSED)

    handlers["execute_request"], handlers["apply_request"] = execute_request, apply_request
    # ipykernel's hooks would restore Python's own SIGINT handling around each message.
    kernel.pre_handler_hook = kernel.post_handler_hook = lambda: None
    shell.events.register("post_run_cell", after_cell)
    shell.ask_exit = refuse_exit
    shell.compile.get_code_name = CodeNames(shell.compile).name
    _name_cells(shell)
    # From version 9, IPython keeps all output of cells for `%notebook`, which saves it with the code: a million prints
    # take 100 MB that a rank never frees, and each print takes twice as long.
    shell._tee = lambda channel: nullcontext()
    kernel.raw_input = kernel.getpass = refuse_input
    progress_bars.install(lambda: recorder.widgets)
    kernel.session.send = _diverted(kernel.session.send, recorder, comms)
    return run


def _can_be_flushed(stream: Any) -> bool:
    """Whether IPython and ipykernel can flush `stream`. A cell may have replaced it by None or a closed file."""
    try:
        stream.flush()
    except Exception:
        return False
    return True


def _name_cells(shell: InteractiveShell) -> None:
    """Make warnings name a cell as tracebacks do, instead of by the file name of its code."""
    format_warning = warnings.formatwarning

    def formatwarning(
        message: Warning | str, category: type[Warning], filename: str, lineno: int, line: str | None = None
    ) -> str:
        text = format_warning(message, category, filename, lineno, line)
        if (name := shell.compile.format_code_name(filename)) is None:
            return text
        return text.replace(f"{filename}:{lineno}:", f"{' '.join(name)}, line {lineno}:", 1)

    warnings.formatwarning = formatwarning


def _diverted(send: Callable[..., object], recorder: CellRecorder, comms: Comms) -> Callable[..., object]:
    """Wrap `Session.send`: output of the notebook's cells goes to the recorder, and their comm messages go to `comms`.

    Other messages, and messages of plain ipyparallel, are sent as before.
    """
    output = recorder.output

    def divert(stream: object, kind: Any, content: Any = None, *args: Any, **kwargs: Any) -> object:
        if isinstance(kind, str) and kind.startswith("comm_"):
            metadata, buffers = kwargs.get("metadata") or {}, kwargs.get("buffers") or ()
            if comms.publish(kind, content, metadata, buffers, ours=not RankStream.elsewhere):
                return None
        if RankStream.elsewhere:
            return send(stream, kind, content, *args, **kwargs)
        message = kind
        if isinstance(message, dict):  # IPython's display hooks hand over a whole message
            kind, content = message["header"]["msg_type"], message["content"]
        if kind in BUNDLES:
            transient = content.get("transient") or {}
            bundle = {"data": content["data"], "metadata": content.get("metadata") or {}}
            if kind == "display_data" and (bar := progress_bars.drawn_by_rich(content["data"])) is not None:
                output.bar(bar)
                return None
            output.rich(BUNDLES[kind], {**bundle, "display_id": transient.get("display_id")})
        elif kind == "clear_output":
            output.clear(bool(content.get("wait")))
        elif kind == "error":
            recorder.error(content, tracebacks.raised())
        elif kind == "stream":
            output.write(content["name"], content["text"])
        elif kind == "execute_reply":
            return send(stream, message, escaped(content), *args, **kwargs)  # an error's text may have lone surrogates
        else:
            return send(stream, message, content, *args, **kwargs)
        return None

    return divert
