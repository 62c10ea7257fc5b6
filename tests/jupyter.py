"""A real IPython kernel, driven as a notebook does: cells in, the outputs that a notebook would save out."""

from __future__ import annotations

import contextlib
import queue
import re
import time
import uuid
from collections.abc import Callable, Mapping
from typing import Any

from jupyter_client.blocking.client import BlockingKernelClient
from jupyter_client.manager import KernelManager, start_new_kernel

from allranks_backends.views import AT_REST

WITHIN = 120.0
"""Seconds a cell may take unless the test says otherwise."""
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
ALL_AT_REST = f"all(rank.state in {sorted(AT_REST)} for rank in now.ranks)"
"""For `Notebook.comes_true`."""
OUTPUTS = ("stream", "display_data", "update_display_data", "execute_result", "error", "clear_output")


def uncoloured(text: str) -> str:
    """Without the escape sequences that colour it."""
    return _COLOURS.sub("", text)


class CellOutputs:
    """What is below one cell now; it may grow after the cell's end, as a notebook's does."""

    def __init__(self, source: str) -> None:
        self.source = source
        self.outputs: list[dict[str, Any]] = []
        self.idle = False
        """The kernel has finished the cell."""
        self.seconds = 0.0
        """From when it was sent to when it finished."""
        self._began = time.monotonic()
        self._clear_next = False

    @property
    def text(self) -> str:
        """All streams, in order, without colours."""
        return self._streams("stdout", "stderr")

    @property
    def stdout(self) -> str:
        return self._streams("stdout")

    @property
    def stderr(self) -> str:
        return self._streams("stderr")

    @property
    def by_rank(self) -> dict[int, str]:
        """What each rank said on stdout, folded or not (a machine under load may be too slow to fold)."""
        said: dict[int, str] = {}
        ranks: list[int] = []
        for line in self.stdout.splitlines(keepends=True):
            label, _, text = line.partition("│ ")
            spans = [span.partition("-") for span in label.removeprefix("rank").removeprefix("s").split(",")]
            if label.strip():
                ranks = [rank for first, _, last in spans for rank in range(int(first), int(last or first) + 1)]
            for rank in ranks:
                said[rank] = said.get(rank, "") + text
        return said

    @property
    def error(self) -> str:
        """``Name: message`` of the exception the cell ended with, or nothing."""
        for output in self.outputs:
            if output["type"] == "error":
                return f"{output['ename']}: {uncoloured(output['evalue'])}"
        return ""

    @property
    def traceback(self) -> str:
        """What is shown of that exception, without colours."""
        return "\n".join(uncoloured("\n".join(o["traceback"])) for o in self.outputs if o["type"] == "error")

    @property
    def all(self) -> str:
        """Everything a reader sees as text."""
        parts = []
        for output in self.outputs:
            match output["type"]:
                case "stream":
                    parts.append(output["text"])
                case "error":
                    parts.append("\n".join(output["traceback"]))
                case _:
                    parts.append(str(output["data"].get("text/plain", "")))
        return uncoloured("\n".join(parts))

    def mime(self, kind: str) -> list[Any]:
        """What displays and results carry of this MIME type, in order."""
        return [output["data"][kind] for output in self.outputs if kind in output.get("data", ())]

    def take(self, kind: str, content: Mapping[str, Any]) -> None:
        """One message of the kernel, treated as JupyterLab treats it."""
        if kind == "clear_output":
            if content.get("wait"):
                self._clear_next = True
            else:
                self.outputs.clear()
            return
        if self._clear_next:
            self.outputs.clear()
            self._clear_next = False
        last = self.outputs[-1] if self.outputs else {}
        if kind == "stream" and last.get("type") == "stream" and last["name"] == content["name"]:
            last["text"] += content["text"]
        else:
            self.outputs.append({**content, "type": kind})

    def finished(self) -> None:
        self.idle, self.seconds = True, time.monotonic() - self._began

    def _streams(self, *names: str) -> str:
        texts = [o["text"] for o in self.outputs if o["type"] == "stream" and o["name"] in names]
        return uncoloured("".join(texts))


class Notebook:
    """One kernel. `run` waits for a cell's end; `begin`, `until` and `interrupt` are for what happens meanwhile."""

    def __init__(self, env: Mapping[str, str]) -> None:
        self.manager: KernelManager
        self.client: BlockingKernelClient
        self.manager, self.client = start_new_kernel(startup_timeout=WITHIN, kernel_name="python3", env=dict(env))
        self.hangs = False
        """Whether what was waited for did not come: the kernel may be blocked for good."""
        self.page = False
        """Whether cells are sent as a page with widgets sends them, JupyterLab for one."""
        self.comms: list[Mapping[str, Any]] = []
        """What the kernel's comms have said."""
        self._cells: dict[str, CellOutputs] = {}
        self._shown: dict[str, list[dict[str, Any]]] = {}

    def run(self, source: str, within: float = WITHIN) -> CellOutputs:
        """Run a cell to its end."""
        return self.finish(self.begin(source), within)

    def ok(self, source: str, within: float = WITHIN) -> CellOutputs:
        """Run a cell that must not raise."""
        cell = self.run(source, within)
        assert not cell.error, f"{source}\n{cell.all}"
        return cell

    def begin(self, source: str, *, typing: bool = False) -> CellOutputs:
        """Send a cell and come back at once; `typing` says that its questions will be answered."""
        cell = CellOutputs(source)
        content = {"code": source, "silent": False, "store_history": True, "user_expressions": {}}
        content |= {"allow_stdin": typing, "stop_on_error": True}
        metadata = {"cellId": uuid.uuid4().hex} if self.page else {}
        message = self.client.session.msg("execute_request", content, metadata=metadata)
        self._cells[message["header"]["msg_id"]] = cell
        self.client.shell_channel.send(message)
        return cell

    def move(self, comm: str, **state: Any) -> None:
        """What a page sends when the user has moved a widget."""
        data = {"method": "update", "state": state, "buffer_paths": []}
        self.client.shell_channel.send(self.client.session.msg("comm_msg", {"comm_id": comm, "data": data}))

    def finish(self, cell: CellOutputs, within: float = WITHIN) -> CellOutputs:
        """Wait for the cell's end."""
        self.until(lambda: cell.idle, within, lambda: f"the cell did not end: {cell.source}\n{cell.all}")
        return cell

    def shows(self, cell: CellOutputs, text: str, within: float = WITHIN) -> None:
        """Wait until the cell shows `text`."""
        self.until(lambda: text in cell.all, within, lambda: f"{text!r} was not shown:\n{cell.all}")

    def until(self, condition: Callable[[], bool], within: float, complaint: Callable[[], str] = str) -> None:
        """Take what the kernel says until `condition` holds."""
        deadline = time.monotonic() + within
        while not condition():
            assert self.manager.is_alive(), "the kernel died"
            left = deadline - time.monotonic()
            self.hangs = left <= 0
            assert not self.hangs, complaint()
            self.take_one(min(left, 5.0))

    def take_one(self, within: float) -> None:
        """Take the next thing the kernel says, if it says anything in so many seconds."""
        with contextlib.suppress(queue.Empty):
            self._take(self.client.get_iopub_msg(timeout=within))

    def with_ranks(self, backend: str, size: int) -> Notebook:
        """Hold this world, whole and idle: start one unless it is there already."""
        asked = self.run(
            "import allranks\n"
            "cluster = allranks.current()\n"
            f"assert (cluster.backend, cluster.size, cluster.state) == ({backend!r}, {size}, 'whole')\n"
            f"now = cluster.snapshot\nassert {ALL_AT_REST}"
        )
        if asked.error:
            self.run("%distributed down")
            self.ok(f"%distributed up -n {size} --backend {backend}", within=180)  # its own limit is shorter
        return self

    def comes_true(self, condition: str) -> None:
        """Wait until this holds of ``now``, the snapshot of the notebook's cluster."""
        self.ok(
            "world = allranks.current()\nmonitor = world._live.ranks.monitor\n"
            f"assert monitor.wait(lambda: (lambda now: {condition})(world.snapshot), 60), world.status()"
        )

    def interrupt(self) -> None:
        """The stop button."""
        self.manager.interrupt_kernel()

    def complete(self, code: str, at: int | None = None) -> list[str]:
        """Tab at the end of `code`, or at `at`."""
        content = self.client.complete(code, at, reply=True, timeout=WITHIN)["content"]
        return list(content["matches"])

    def inspect(self, code: str, at: int | None = None) -> str:
        """Shift-tab; empty where nothing is found."""
        content = self.client.inspect(code, at, reply=True, timeout=WITHIN)["content"]
        return uncoloured(content["data"].get("text/plain", ""))

    def close(self) -> None:
        self.client.stop_channels()
        self.manager.shutdown_kernel(now=False)
        self.manager.cleanup_resources()

    def _take(self, message: Mapping[str, Any]) -> None:
        cell = self._cells.get(message["parent_header"].get("msg_id", ""))
        kind, content = message["msg_type"], message["content"]
        display_id = (content.get("transient") or {}).get("display_id")
        if kind.startswith("comm_"):
            self.comms.append(message)
        elif kind == "update_display_data":
            for shown in self._shown.get(str(display_id), ()):
                shown.update(data=content["data"], metadata=content["metadata"])
        elif cell is not None and kind in OUTPUTS:
            cell.take(kind, content)
            if display_id is not None:
                self._shown.setdefault(display_id, []).append(cell.outputs[-1])
        elif cell is not None and kind == "status" and content["execution_state"] == "idle":
            cell.finished()
