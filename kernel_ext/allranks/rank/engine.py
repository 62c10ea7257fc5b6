"""The ipyparallel engine of a rank: a full IPython kernel whose output of our cells goes through the agent.

Cells of plain ipyparallel (``%px``) keep ipyparallel's own way out.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ipykernel.iostream import OutStream
from ipyparallel.engine.app import IPEngine
from ipyparallel.engine.kernel import IPythonParallelKernel
from traitlets.config import Config

from . import bars, look
from .agent import Agent
from .config import RankConfig
from .outlet import Outlet

EXIT = os._exit
INPUT_REFUSED = (
    "input() cannot ask on a rank: it has no keyboard. Ask in the notebook and send the answer with "
    "`%distributed push NAME` (or cluster.push)."
)
EXIT_REFUSED = (
    "exit() would end this rank's process and break the world. `%distributed down` (or cluster.down()) ends all ranks."
)


class RankEngine(IPEngine):
    """An engine that tells its agent when it can take cells."""

    agent: Agent

    def open_console(self) -> str:
        """Listen on loopback like any kernel; returns the connection file (0600), which holds the key."""
        if self.curve_serverkey:
            raise RuntimeError("a console cannot be encrypted as the ranks of several hosts are")
        self.kernel_app.connection_file = str(Path(self.agent.config.directory, "console.json"))
        self.kernel_app.ip = "127.0.0.1"
        self.bind_kernel()
        return str(self.kernel_app.connection_file)

    async def complete_registration(self, *args: Any, **kwargs: Any) -> None:
        await super().complete_registration(*args, **kwargs)
        if hasattr(self.kernel, "shell_channel_thread"):
            # ipykernel 7.4 reads shell_channel_thread.parent_thread for every cell with a top-level await, and an
            # ipyparallel engine has no such thread.
            self.kernel.__class__ = _KernelWithoutSubshells
            self.kernel.shell_channel_thread = _NoShellChannelThread()
        _divert_cells(self.kernel, self.agent)
        self.agent.engine_ready(self.kernel.shell)

    def init_signal(self) -> None:
        """SIGINT is for the user's code: anywhere else KeyboardInterrupt would end the engine, and the rank with it."""

        def on_signal(_number: int, _frame: object) -> None:
            if RankStream.elsewhere:
                raise KeyboardInterrupt
            self.agent.cell.on_signal()

        signal.signal(signal.SIGINT, on_signal)


class _KernelWithoutSubshells(IPythonParallelKernel):
    _supports_kernel_subshells = False


class _NoShellChannelThread:
    parent_thread = threading.main_thread()

    def __bool__(self) -> bool:
        return False


def run(config: RankConfig) -> None:
    """Be this rank until told to stop."""
    _enter(config)
    engine = RankEngine.instance(config=_engine_config(config), ident=config.uuid, log_level=40)
    config.stop = lambda: engine.loop.stop()
    engine.connection_info_env = json.dumps(dict(config.engine))
    agent = Agent(config, call_main=engine.loop.add_callback)
    agent.open_console = engine.open_console
    engine.agent, RankStream.outlet = agent, agent.cell.outlet
    engine.user_ns = agent.user_ns
    _announce_exit(agent)
    agent.start()
    engine.initialize([])
    try:
        engine.start()
    finally:
        _leave()


def _enter(config: RankConfig) -> None:
    os.environ.update(config.env)
    # pytest's mark would switch off the capture of what C code and subprocesses print.
    os.environ.pop("PYTEST_CURRENT_TEST", None)
    # The notebook's choice of drawing backend names a front end this process does not have.
    os.environ["MPLBACKEND"] = "module://matplotlib_inline.backend_inline"
    if config.cwd and not (config.cwd_may_lack and not os.path.isdir(config.cwd)):
        os.chdir(config.cwd)
    if config.backend == "mpi":
        # mlx calls MPI_Init itself and fails if mpi4py has done so before; so mpi4py must leave it alone.
        os.environ["MPI4PY_RC_INITIALIZE"] = os.environ["MPI4PY_RC_FINALIZE"] = "0"


def _engine_config(config: RankConfig) -> Config:
    settings = Config()
    settings.IPEngine.id = config.rank  # what plain ipyparallel calls it
    settings.IPEngine.enable_nanny = False
    settings.IPEngine.timeout = 60.0
    settings.IPEngine.out_stream_factory = RankStream
    settings.ProfileDir.location = str(Path(config.directory).parent / "profile")
    settings.IPEngine.work_dir = os.getcwd()
    settings.HistoryManager.hist_file = ":memory:"
    return settings


class RankStream(OutStream):
    """``sys.stdout`` and ``sys.stderr`` of a rank; also fed by what the process writes to its descriptors 1 and 2."""

    outlet: Outlet
    elsewhere = False
    """True while a cell of plain ipyparallel runs."""

    def write(self, string: str) -> int:
        if RankStream.elsewhere:
            return int(super().write(string) or len(string))
        if not isinstance(string, str):
            raise TypeError(f"write() argument must be str, not {type(string).__name__}")
        RankStream.outlet.write(self.name, string)
        return len(string)

    @property
    def buffer(self) -> io.RawIOBase:
        """For code that writes bytes; what is no UTF-8 is shown as replacement characters."""
        return _Bytes(self)


class _Bytes(io.RawIOBase):
    def __init__(self, stream: RankStream) -> None:
        self._stream = stream

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self._stream.write(bytes(data).decode("utf-8", "replace"))
        return len(data)


def _divert_cells(kernel: Any, agent: Agent) -> None:
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
    _look_without_evaluating(shell, agent)
    _end_tracebacks_at_the_user(shell)
    agent.debugger.install(shell)
    bars.install(lambda: cell.widgets)
    kernel.session.send = _diverted(kernel.session.send, kernel, agent)


def _file_name(raw_code: str, _code: str, _number: int) -> str:
    """What the cell is called in warnings: the same on every rank, so that these fold (ipykernel's has the pid)."""
    return f"<cell {hashlib.sha1(raw_code.encode(errors='backslashreplace')).hexdigest()[:8]}>"


def _look_without_evaluating(shell: Any, agent: Agent) -> None:
    """``x?`` and the pager print, and never call ``repr``: that would evaluate a pending collective on this rank."""

    def pinfo(line: str, detail: int = 0) -> None:
        found = look.inspect(agent.user_ns, line.strip(), detail)
        print(found["text/plain"] if found else f"Object `{line.strip()}` not found on rank {agent.config.rank}.")

    def page(_shell: Any, text: Any, *_: Any, **__: Any) -> None:
        print(text["text/plain"] if isinstance(text, dict) else text)

    shell.register_magic_function(pinfo, "line", "pinfo")
    shell.register_magic_function(lambda line: pinfo(line, 1), "line", "pinfo2")
    shell.set_hook("show_in_pager", page, 0)


def _end_tracebacks_at_the_user(shell: Any) -> None:
    """Leave our own frames out below the user's: IPython hides marked frames, but never the innermost."""
    structured = shell.InteractiveTB.structured_traceback

    def structured_traceback(etype: Any, error: Any, traceback: Any, *args: Any, **kwargs: Any) -> Any:
        _trim(traceback)
        chained, seen = error, set[int]()
        while isinstance(chained, BaseException) and id(chained) not in seen:
            seen.add(id(chained))
            _trim(chained.__traceback__)
            chained = chained.__cause__ or chained.__context__
        return structured(etype, error, traceback, *args, **kwargs)

    shell.InteractiveTB.structured_traceback = structured_traceback


def _trim(traceback: Any) -> None:
    """Cut a traceback behind its last frame that is not ours; below this module's (a print, say) none is the user's."""
    last = at = traceback
    while at is not None and (name := str(at.tb_frame.f_globals.get("__name__"))) != __name__:
        if not name.startswith("allranks."):
            last = at
        at = at.tb_next
    if last is not None:
        last.tb_next = None


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
            agent.cell.error(content, *_error_place(agent))
        elif kind == "stream":
            outlet.write(content["name"], content["text"])
        elif kind not in ("status", "execute_input") or not _is_ours(kernel):
            return send(stream, message, content, *args, **kwargs)
        return None

    return divert


def _is_ours(kernel: Any) -> bool:
    return "allranks" in kernel.get_parent("shell").get("metadata", {})


def _error_place(agent: Agent) -> tuple[int | None, str]:
    """Line of the cell that raised (its innermost frame in the traceback, or where the syntax broke), and a message.

    The message is only given for syntax errors, whose own text names a file the user has never seen.
    """
    error = sys.exc_info()[1] or getattr(sys, "last_value", None)
    if isinstance(error, SyntaxError):
        return error.lineno, error.msg
    line = None
    at = error.__traceback__ if error is not None else None
    while at is not None:
        if at.tb_frame.f_code.co_filename == agent.cell.file:
            line = at.tb_lineno
        at = at.tb_next
    return line, ""


def _announce_exit(agent: Agent) -> None:
    """Have ``os._exit`` first hand over what was printed and the line that called it.

    It ends the process without any clean-up, so this is the only chance to say what the rank last did.
    """
    owner = os.getpid()

    def exit_process(code: int) -> None:
        if os.getpid() == owner and agent.lifeline.connected:
            agent.last_words(f"os._exit({code})")
            time.sleep(0.02)
        EXIT(code)

    os._exit = exit_process  # type: ignore[assignment]


def _leave() -> None:
    """End the process: flush, but do not wait for threads of the user's."""
    import atexit

    atexit._run_exitfuncs()
    EXIT(0)
