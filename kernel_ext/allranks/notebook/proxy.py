"""One widget of a rank as the page knows it: its comm, opened by this kernel, and the state of its model."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Mapping
from typing import Any

from comm import create_comm
from ipywidgets.widgets import widget as ipywidgets

from allranks.messages.events import CommKind
from allranks.messages.outbox import TARGET, CommMessage, merged


class WidgetProxy:
    """Opened when it is made; `on_said` hears what the page says, in the thread that the kernel takes for that.

    A page that is loaded again asks ipywidgets for the states of all widgets; to it, this is one of them.
    """

    def __init__(self, letter: CommMessage, on_said: Callable[[CommMessage], None]) -> None:
        self.model_id = letter.comm
        self._letter = letter
        self._lock = threading.Lock()  # the page and the rank may speak at once
        self._on_said: Callable[[CommMessage], None] | None = on_said
        self._comm: Any = create_comm(
            target_name=TARGET,
            comm_id=letter.comm,
            data=letter.data,
            metadata=letter.metadata,
            buffers=list(letter.buffers),
        )
        self._comm.on_msg(self._heard)
        self._comm.on_close(self._closed_by_page)
        ipywidgets._instances[self.model_id] = self  # private in ipywidgets 8.1, which offers no other way

    def say(self, letter: CommMessage) -> None:
        """What the rank's widget says, to the page."""
        self._know(letter)
        self._comm.send(data=letter.data, metadata=letter.metadata, buffers=list(letter.buffers))

    def end(self) -> None:
        """The rank is gone: the page keeps the widget, disabled if it can be, and nobody hears it."""
        self._on_said = None
        if "disabled" in self._state:
            state = {"method": "update", "state": {"disabled": True}, "buffer_paths": []}
            self.say(CommMessage("comm_msg", self.model_id, state, {}))

    def close(self) -> None:
        """The page loses the widget."""
        ipywidgets._instances.pop(self.model_id, None)
        self._comm.close()

    def _heard(self, message: Mapping[str, Any], kind: CommKind = "comm_msg") -> None:
        data, buffers = message["content"].get("data") or {}, message.get("buffers") or ()
        letter = CommMessage(kind, self.model_id, data, {}, [bytes(buffer) for buffer in buffers])
        self._know(letter)
        if self._on_said is not None:
            self._on_said(letter)

    def _closed_by_page(self, message: Mapping[str, Any]) -> None:
        ipywidgets._instances.pop(self.model_id, None)
        self._heard(message, "comm_close")

    def _know(self, letter: CommMessage) -> None:
        if letter.is_state:
            with self._lock:
                self._letter = merged(self._letter, letter)

    @property
    def _state(self) -> dict[str, Any]:
        return self._letter.data.get("state") or {}

    # What ipywidgets asks of a widget.

    def get_state(self, key: object = None, drop_defaults: bool = False) -> dict[str, Any]:
        letter = self._letter
        state = copy.deepcopy(self._state)
        ipywidgets._put_buffers(state, letter.data.get("buffer_paths", ()), letter.buffers)
        return state

    _get_embed_state = ipywidgets.Widget._get_embed_state

    def __getattr__(self, name: str) -> Any:
        if name in ("_model_name", "_model_module", "_model_module_version"):
            return self._state.get(name, "")
        raise AttributeError(name)
