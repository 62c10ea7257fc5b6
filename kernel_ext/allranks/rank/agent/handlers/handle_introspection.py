"""Introspection of a rank: completion, inspection, plain values, the debugger, the console, traces, printed text."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from allranks.lifeline.open_questions import Reply
from allranks.messages import requests
from allranks.messages.value_types import Namespace
from allranks.rank.cell.recorder import CellRecorder
from allranks.rank.collectives.trace import TRACE, now
from allranks.rank.debug import introspection
from allranks.rank.debug.debugger import Debugger
from allranks.rank.files import share_blocks
from allranks.rank.main_thread.running_cell import RunningCell
from allranks.rank.values.read_values import read_values

from .handler_table import Buffers, RequestTable

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell


class IntrospectionHandlers(RequestTable):
    def __init__(
        self,
        cell: RunningCell,
        recorder: CellRecorder,
        debugger: Debugger,
        user_ns: Namespace,
        shell: Callable[[], InteractiveShell],
        console_command: Callable[[], str],
    ) -> None:
        super().__init__()
        self._recorder, self._user_ns = recorder, user_ns
        self.answer(
            requests.Complete, lambda request, _: Reply(introspection.complete(shell(), request.code, request.cursor))
        )
        self.answer(requests.Inspect, self._inspect)
        self.answer(requests.ReadValues, self._read_values)
        self.answer(requests.Console, lambda *_: Reply(requests.ConsoleFile(console_command())))
        self.confirm(requests.LookBack, lambda *_: debugger.look_back())
        self.accept(requests.Debug, lambda request, _: debugger.put(request.number, request.command))
        self.answer(requests.Clock, lambda *_: Reply(requests.Time(now())))
        self.answer(
            requests.ReadTrace, lambda request, _: Reply(requests.Traced(TRACE.of_cell(request.cell, cell.file)))
        )
        self.answer(requests.ReadPrinted, self._read_printed)

    def _inspect(self, request: requests.Inspect, _: Buffers) -> Reply[requests.Inspected]:
        return Reply(requests.Inspected(introspection.inspect(self._user_ns, request.name, request.detail)))

    def _read_values(self, request: requests.ReadValues, _: Buffers) -> Reply[requests.PlainValues]:
        return Reply(requests.PlainValues(read_values(request.names, request.without, self._user_ns)))

    def _read_printed(self, request: requests.ReadPrinted, _: Buffers) -> Reply[requests.PrintedPart]:
        with share_blocks.in_words():
            part, nbytes, incomplete = self._recorder.read_printed(request.cell, request.offset)
        return Reply(requests.PrintedPart(nbytes, incomplete), [part])
