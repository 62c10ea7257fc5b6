"""The way to the ipyparallel engines, on which cells go: through the controller, as its own clients send them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
import zmq
from jupyter_client.session import Session

from .cell_options import CellRequest


class Engines:
    """One DEALER to the controller; for the lifeline's thread."""

    def __init__(self, context: zmq.Context[Any], info: Mapping[str, Any]) -> None:
        """`info` is the controller's client connection info."""
        from ipyparallel.util import _disable_session_extract_dates

        _disable_session_extract_dates()
        self._session = Session(key=info["key"].encode(), signature_scheme=info["signature_scheme"])
        self.socket = context.socket(zmq.DEALER)
        self.socket.setsockopt(zmq.LINGER, 200)
        if info.get("curve_serverkey"):
            self.socket.curve_serverkey = info["curve_serverkey"].encode()
            self.socket.curve_publickey, self.socket.curve_secretkey = zmq.curve_keypair()
        self.socket.connect(f"{info['interface']}:{info['mux']}")

    def frames(self, uuid: str, code: str, request: CellRequest) -> list[Any]:
        """A cell for one engine: an ordinary ``execute_request``, marked as ours in its metadata."""
        content = {
            "code": code,
            "silent": False,
            "store_history": True,
            "user_expressions": {},
            "allow_stdin": False,
            "stop_on_error": False,
        }
        metadata = {"allranks": msgspec.to_builtins(request)}
        message = self._session.msg("execute_request", content=content, metadata=metadata)
        return list(self._session.serialize(message, ident=uuid.encode()))
