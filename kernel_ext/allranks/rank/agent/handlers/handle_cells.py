"""Requests about cells, the widgets that they show, and the process that runs them."""

from __future__ import annotations

from collections.abc import Callable

from allranks.messages import requests
from allranks.rank.cell.called_functions import CalledFunctions
from allranks.rank.cell.rank_comms import Comms
from allranks.rank.cell.recorder import CellRecorder
from allranks.rank.main_thread.running_cell import RunningCell
from allranks.rank.world.stop_main_thread import Unblocker

from .handler_table import Buffers, RequestTable


class CellHandlers(RequestTable):
    def __init__(
        self,
        cell: RunningCell,
        recorder: CellRecorder,
        calls: CalledFunctions,
        comms: Comms,
        unblocker: Unblocker,
        register_again: Callable[[], None],
        end_process: Callable[[], None],
    ) -> None:
        super().__init__()
        self._cell, self._recorder, self._unblocker = cell, recorder, unblocker
        self.confirm(requests.KeepCall, lambda call, buffers: calls.keep(call.cell, buffers))
        self.accept(requests.Acknowledge, lambda request, _: recorder.acknowledge(request.cell))
        self.accept(requests.Decided, lambda request, _: unblocker.decided(request.cell))
        self.accept(requests.Interrupt, self._interrupt)
        self.accept(requests.Unblock, self._unblock)
        # The main thread handles the page's messages once it is idle.
        self.accept(requests.PageComms, lambda page, buffers: comms.deliver(page.number, page.messages, buffers))
        self.accept(requests.CommsTaken, lambda taken, _: comms.taken(taken.number, taken.every))
        self.accept(requests.Register, lambda *_: register_again())
        self.accept(requests.Exit, lambda *_: end_process())

    def _interrupt(self, request: requests.Interrupt, _: Buffers) -> None:
        cell, number = self._cell, request.cell
        if number is not None:
            cell.interrupt.stop(number)  # before the check below, since the cell may begin in between
        if number is None or cell.runs(number):
            self._unblocker.stop()
        elif number == cell.number:
            self._recorder.drop_value()
        else:
            self._unblocker.free_task(number)

    def _unblock(self, request: requests.Unblock, _: Buffers) -> None:
        if request.cell == self._cell.number:
            self._unblocker.free()
        else:
            self._unblocker.free_task(request.cell)
