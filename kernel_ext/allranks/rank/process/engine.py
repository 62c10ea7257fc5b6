"""The ipyparallel engine of a rank: a full IPython kernel; the output of allranks' cells goes through the agent.

The output of plain ipyparallel cells (``%px``) goes through ipyparallel.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import zmq
from ipyparallel.engine.app import IPEngine
from ipyparallel.engine.kernel import IPythonParallelKernel
from traitlets.config import Config
from zmq.utils.monitor import recv_monitor_message

from allranks.messages.host_messages import RankConfig
from allranks.rank.agent.agent import Agent
from allranks.rank.cell.stdio import RankStream

EXIT = os._exit
CONNECTED_WITHIN = 10.0
"""Maximum seconds to wait for the engine's connections to the controller's queues, even on a busy machine."""
LOOK_EVERY = 0.005


def _without_debugpy() -> None:
    """Import ipykernel's debugger, and keep it from importing debugpy (ipykernel 7.4).

    Ranks have a debugger of their own (`rank.debug`), since an ipyparallel engine gives ipykernel's debugger no stream
    (9.2). debugpy took a third of the CPU time that a forked rank needs to start. Users can still import debugpy.
    """
    if "debugpy" not in sys.modules:
        sys.modules["debugpy"] = None  # type: ignore[assignment]
        try:
            importlib.import_module("ipykernel.debugger")
        finally:
            del sys.modules["debugpy"]


_without_debugpy()  # at import, so that a host process does this before it forks ranks


class RankEngine(IPEngine):
    """An engine that informs its agent once it can run cells."""

    agent: Agent

    def console_command(self) -> str:
        """Listen like any kernel, on Unix sockets in the rank's folder (0700), which other users cannot enter.

        On a loopback port, other users could read what the rank publishes. Returns the connection file (0600). Raises
        RuntimeError if the path of the folder is too long for sockets.
        """
        folder = Path(self.agent.config.directory)
        if len(str(folder / "console-1")) > zmq.IPC_PATH_MAX_LEN:
            raise RuntimeError(f"the path {folder} is too long for a console's sockets: start with a shorter TMPDIR")
        self.kernel_app.connection_file = str(folder / "console.json")
        self.kernel_app.transport, self.kernel_app.ip = "ipc", str(folder / "console")
        self.bind_kernel()
        return str(self.kernel_app.connection_file)

    def register_again(self) -> None:
        """Register with a new controller, so that plain ipyparallel finds this engine; the reply is not read."""
        content = {"uuid": self.ident, "id": self.id}
        self.session.send(self.registrar, "registration_request", content=content)

    async def complete_registration(self, msg: Any, connect: Callable[..., object], maybe_tunnel: Any) -> None:
        connections = _Connections(connect)
        with _ipython_folder(Path(self.agent.config.directory, "ipython")):
            await super().complete_registration(msg, connections.connect, maybe_tunnel)
        await connections.made()
        if hasattr(self.kernel, "shell_channel_thread"):
            # ipykernel 7.4 reads shell_channel_thread.parent_thread for every cell with a top-level await, and an
            # ipyparallel engine has no such thread.
            self.kernel.__class__ = _KernelWithoutSubshells
            self.kernel.shell_channel_thread = _NoShellChannelThread()
        self.agent.engine_ready(self.kernel)

    def init_signal(self) -> None:
        """Let SIGINT interrupt only the user's code: elsewhere KeyboardInterrupt would end the engine and the rank."""

        def on_signal(_number: int, _frame: object) -> None:
            if RankStream.elsewhere:
                raise KeyboardInterrupt
            self.agent.cell.interrupt.on_signal(self.agent.cell.running)

        self.agent.cell.interrupt.listen(on_signal)


class _Connections:
    """Waits for the connections that carry plain ipyparallel's requests: the controller drops requests sent earlier."""

    def __init__(self, connect: Callable[..., object]) -> None:
        self._connect = connect
        self._monitors: dict[Any, Any] = {}
        """The monitor of each socket."""
        self._left = 0

    def connect(self, socket: Any, address: str, **how: object) -> object:
        if socket.type == zmq.ROUTER:
            if socket not in self._monitors:
                self._monitors[socket] = socket.get_monitor_socket(zmq.EVENT_HANDSHAKE_SUCCEEDED)
            self._left += 1
        return self._connect(socket, address, **how)

    async def made(self) -> None:
        """Wait for the handshakes, with a timeout, since allranks' own requests do not need these connections."""
        deadline = time.monotonic() + CONNECTED_WITHIN
        try:
            while self._left and time.monotonic() < deadline:
                for monitor in self._monitors.values():
                    while self._left and monitor.poll(0):
                        recv_monitor_message(monitor)
                        self._left -= 1
                if self._left:
                    await asyncio.sleep(LOOK_EVERY)
        finally:
            for socket in self._monitors:
                socket.disable_monitor()


@contextmanager
def _ipython_folder(folder: Path) -> Iterator[None]:
    """Set IPYTHONDIR, so that IPython 9.18 does not create a default profile in the user's home folder."""
    before = os.environ.get("IPYTHONDIR")
    os.environ["IPYTHONDIR"] = str(folder)
    try:
        yield
    finally:
        os.environ.pop("IPYTHONDIR")
        if before is not None:
            os.environ["IPYTHONDIR"] = before


class _KernelWithoutSubshells(IPythonParallelKernel):
    _supports_kernel_subshells = False


class _NoShellChannelThread:
    parent_thread = threading.main_thread()

    def __bool__(self) -> bool:
        return False


def run(config: RankConfig) -> None:
    """Run as this rank until the engine stops, then end the process."""
    _enter(config)
    engine = RankEngine.instance(config=_engine_config(config), ident=config.uuid, log_level=40)
    engine.connection_info_env = json.dumps(dict(config.engine))
    engine.agent = agent = Agent(config, engine)
    engine.user_ns = agent.user_ns
    agent.start()
    engine.initialize([])
    code = 1
    try:
        engine.start()
        code = 0
    except Exception:
        traceback.print_exc()
    finally:
        agent.world.release()
        _leave(code)


def _enter(config: RankConfig) -> None:
    os.environ.update(config.env)
    # This variable of pytest's would disable the capture of output from C code and subprocesses.
    os.environ.pop("PYTEST_CURRENT_TEST", None)
    # The notebook's Matplotlib backend may need a front end that this process does not have.
    os.environ["MPLBACKEND"] = "module://matplotlib_inline.backend_inline"
    folder = os.path.expanduser(config.cwd or "")
    if folder and not (config.cwd_may_lack and not os.path.isdir(folder)):
        try:
            os.chdir(folder)
        except OSError as error:
            raise type(error)(
                f"{config.host} has no working folder {folder} ({error.strerror}): make it, or name another: --cwd"
            ) from None


def _engine_config(config: RankConfig) -> Config:
    settings = Config()
    settings.IPEngine.id = config.rank  # the engine id in plain ipyparallel
    settings.IPEngine.enable_nanny = False
    settings.IPEngine.timeout = 60.0
    settings.IPEngine.max_heartbeat_misses = 0  # otherwise the engine ends 75 s after the last sign of the controller
    settings.IPEngine.out_stream_factory = RankStream
    settings.ProfileDir.location = str(Path(config.directory).parent / "profile")
    settings.IPEngine.work_dir = os.getcwd()
    settings.HistoryManager.hist_file = ":memory:"
    settings.HistoryManager.db_cache_size = 100  # otherwise each cell wakes a thread that writes the history
    return settings


def _leave(code: int) -> None:
    """End the process: run the exit functions, but do not wait for the user's threads."""
    import atexit

    atexit._run_exitfuncs()
    EXIT(code)
