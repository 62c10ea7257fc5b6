"""The notebook kernel's proxy of one rank's widget: a comm that this kernel opens, and the state of the model."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Mapping
from typing import Any

from comm import create_comm
from ipywidgets.widgets import widget as ipywidgets

from allranks.lifeline.outbox import TARGET, CommMessage, merged
from allranks.messages.events import CommKind


class WidgetProxy:
    """The proxy of one widget. Opens the comm when constructed; `on_message` gets the page's messages.

    `on_message` runs in the thread in which the kernel handles comms. A page that is reloaded asks ipywidgets for the
    states of all widgets, so the proxy registers itself there as a widget.
    """

    def __init__(self, message: CommMessage, on_message: Callable[[CommMessage], None]) -> None:
        self.model_id = message.comm
        self._message = message
        self._lock = threading.Lock()  # the page and the rank may send state at the same time
        self._on_message: Callable[[CommMessage], None] | None = on_message
        self._comm = create_comm(
            target_name=TARGET,
            comm_id=message.comm,
            data=message.data,
            metadata=message.metadata,
            buffers=list(message.buffers),
        )
        self._comm.on_msg(self._receive)
        self._comm.on_close(self._closed_by_page)
        ipywidgets._instances[self.model_id] = self  # private; ipywidgets 8.1 has no public way

    def say(self, message: CommMessage) -> None:
        """Send a message of the rank's widget to the page."""
        self._know(message)
        self._comm.send(data=message.data, metadata=message.metadata, buffers=list(message.buffers))

    def end(self) -> None:
        """Disconnect the widget, since its rank is gone: the page keeps it, disabled if possible, without effect."""
        self._on_message = None
        if "disabled" in self._state:
            state = {"method": "update", "state": {"disabled": True}, "buffer_paths": []}
            self.say(CommMessage("comm_msg", self.model_id, state, {}))

    def close(self) -> None:
        """Remove the widget from the page."""
        ipywidgets._instances.pop(self.model_id, None)
        self._comm.close()

    def _receive(self, message: Mapping[str, Any], kind: CommKind = "comm_msg") -> None:
        data, buffers = message["content"].get("data") or {}, message.get("buffers") or ()
        sent = CommMessage(kind, self.model_id, data, {}, [bytes(buffer) for buffer in buffers])
        self._know(sent)
        if self._on_message is not None:
            self._on_message(sent)

    def _closed_by_page(self, message: Mapping[str, object]) -> None:
        ipywidgets._instances.pop(self.model_id, None)
        self._receive(message, "comm_close")

    def _know(self, message: CommMessage) -> None:
        if message.is_state:
            with self._lock:
                self._message = merged(self._message, message)

    @property
    def _state(self) -> dict[str, object]:
        return self._message.data.get("state") or {}

    # The interface of a widget that ipywidgets uses.

    def get_state(self, key: object = None, drop_defaults: bool = False) -> dict[str, object]:
        message = self._message
        state = copy.deepcopy(self._state)
        ipywidgets._put_buffers(state, message.data.get("buffer_paths", ()), message.buffers)
        return state

    _get_embed_state = ipywidgets.Widget._get_embed_state

    def __getattr__(self, name: str) -> Any:
        if name in ("_model_name", "_model_module", "_model_module_version"):
            return self._state.get(name, "")
        raise AttributeError(name)
