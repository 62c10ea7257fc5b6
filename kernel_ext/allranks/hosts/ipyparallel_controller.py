"""ipyparallel's controller as one process, with its schedulers and heartbeat on threads, instead of nine processes.

Reads its settings as one JSON line from standard input and exits when standard input closes, so it never outlives the
host process that started it.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import threading
import traceback
from typing import Any

# Of the scheduler's schemes, only the weighted scheme needs numpy (ipyparallel 9.2). This controller uses another
# scheme, and importing numpy would take a third of its start-up time.
sys.modules.setdefault("numpy", None)  # type: ignore[arg-type]

from allranks.machine.deferred_packages import defer  # noqa: E402

defer("ipyparallel")

from ipyparallel.controller import app as controller_app  # noqa: E402
from ipyparallel.controller.app import IPController  # noqa: E402
from traitlets.config import Config  # noqa: E402


class Controller(IPController):
    """An IPController whose ports were chosen by the notebook, so that no process waits for a connection file."""

    def init_hub(self) -> None:
        super().init_hub()
        process: Any = self.heartmonitor_process
        # At a lower level it would log one line per second for each unreachable engine.
        settings = {**process._kwargs, "log_level": logging.ERROR}
        self.heartmonitor_process: threading.Thread = threading.Thread(
            target=process._target, kwargs=settings, daemon=True
        )

    def init_schedulers(self) -> None:
        self.mq_class = "allranks.hosts.engine_relay.Relay"
        super().init_schedulers()

    def construct_url(self, kind: str, channel: str, index: int | None = None) -> str:
        """Return the URL at which a channel listens, with a colon before the port also for Unix sockets.

        Engines and clients connect to the path with the colon, but ipyparallel 9.2 binds the path with a dash.
        """
        info = {"engine": self.engine_info, "client": self.client_info, "internal": self.internal_info}[kind]
        return f"{info['interface']}:{info[channel] if index is None else info[channel][index]}"

    def terminate_children(self) -> None:
        """Do nothing, since everything runs on threads of this process."""

    def handle(self) -> None:
        """Unregister the engines that the host process names on standard input, one per line; exit at its end."""
        for line in sys.stdin.buffer:
            self.loop.add_callback(self._forget, line.strip())
        os._exit(0)

    def _forget(self, ident: bytes) -> None:
        """Unregister a dead engine, which cannot do so itself; otherwise requests to all engines would never return."""
        registering = {engine.ident: engine.id for engine in self.hub.incoming_registrations.values()}
        if (number := self.hub.by_ident.get(ident, registering.get(ident))) is not None:
            self.hub.unregister_engine(ident, {"content": {"id": number}})


def main() -> None:
    settings: dict[str, Any] = json.loads(sys.stdin.buffer.readline())
    # init_hub sleeps 0.25 s "to connect the db" (ipyparallel 9.2); this controller has no db.
    controller_app.time = _NoSleep
    controller = Controller(config=_config(settings), log_level=40)
    controller.engine_info, controller.client_info = settings["engine_info"], settings["client_info"]
    controller.write_connection_files = False
    try:
        controller.initialize([])
        threading.Thread(target=controller.handle, daemon=True).start()
        controller.start()
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)  # a normal exit would wait for the thread that reads standard input


class _NoSleep:
    @staticmethod
    def sleep(_seconds: float) -> None:
        pass


def _config(settings: dict[str, Any]) -> Config:
    config = Config()
    config.Session.key = settings["key"].encode()
    config.ProfileDir.location = settings["profile"]
    config.IPController.use_threads = True
    config.IPController.db_class = "ipyparallel.controller.dictdb.NoDB"
    config.IPController.broadcast_scheduler_depth = 0
    for side, interface in (
        ("engine", settings["engine_info"]["interface"]),
        ("client", settings["client_info"]["interface"]),
        ("monitor", settings["client_info"]["interface"]),
    ):
        transport, _, address = interface.partition("://")
        config.IPController.update({f"{side}_transport": transport, f"{side}_ip": address})
    config.IPController.enable_curve = settings["curve"] is not None
    if settings["curve"] is not None:
        config.IPController.curve_publickey, config.IPController.curve_secretkey = (
            key.encode() for key in settings["curve"]
        )
    config.HeartMonitor.period = settings["heartbeat_ms"]
    # A missed heartbeat does not mean a dead engine: its rank may be stopped, or its host out of reach. The host
    # process names the engines that end (see `handle`).
    config.HeartMonitor.max_heartmonitor_misses = 1 << 40
    return config


if __name__ == "__main__":
    main()
