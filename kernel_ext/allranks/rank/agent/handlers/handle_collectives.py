"""Requests about the world, its collectives, and arrays that a cell left pending."""

from __future__ import annotations

from allranks.lifeline.open_questions import Reply
from allranks.messages import requests
from allranks.messages.value_types import Namespace
from allranks.rank.arrays.pending_arrays import names_in, pending_names, settle
from allranks.rank.collectives.exchanges import exchanges_of
from allranks.rank.collectives.ledger import Ledger
from allranks.rank.debug.debugger import Debugger
from allranks.rank.main_thread.barrier import Barrier
from allranks.rank.main_thread.running_cell import RunningCell
from allranks.rank.world.given_names import GivenNames
from allranks.rank.world.membership import World
from allranks.rank.world.peer_datagrams import Peers
from allranks.rank.world.stop_main_thread import Unblocker

from .handler_table import Buffers, RequestTable


class CollectiveHandlers(RequestTable):
    def __init__(
        self,
        world: World,
        peers: Peers,
        cell: RunningCell,
        ledger: Ledger,
        barrier: Barrier,
        unblocker: Unblocker,
        debugger: Debugger,
        user_ns: Namespace,
        names: GivenNames,
    ) -> None:
        super().__init__()
        self._cell, self._ledger, self._barrier = cell, ledger, barrier
        self._debugger, self._user_ns, self._names = debugger, user_ns, names
        self.answer(requests.Form, lambda form, _: Reply(world.form(form)))
        self.accept(requests.StopForming, lambda *_: world.stop_forming())
        self.accept(requests.MayConnect, lambda request, _: world.listener.entered(request.port))
        self.accept(requests.GiveUpAborting, lambda request, _: world.give_up_aborting(request.because))
        self.accept(requests.Meet, lambda request, _: peers.meet(request.addresses))
        self.confirm(requests.Abort, lambda request, _: unblocker.release(request.cell, request.newest))
        self.accept(requests.Refuse, lambda request, _: unblocker.refuse(request.because))
        self.accept(requests.OpenBarrier, self._open_barrier)
        self.answer(requests.LedgerSince, self._ledger_since)
        self.answer(requests.Exchanges, self._exchanges)
        self.answer(requests.EnterMissed, self._enter_missed)
        self.answer(requests.Settle, self._settle)
        self.answer(requests.Pending, self._pending)

    def _open_barrier(self, request: requests.OpenBarrier, _: Buffers) -> None:
        if request.cell == self._cell.number:
            self._barrier.open(request.refusal)

    def _ledger_since(self, request: requests.LedgerSince, _: Buffers) -> Reply[requests.Entries]:
        ledger = self._ledger
        entries = [record.entry(record.line) for record in ledger.shared_since(request.after)]
        order = ledger.order
        named = ledger.records({*(number for pair in order.swapped for number in pair), *order.first.order})
        earlier = [record.entry(None) for record in named if record.entered <= request.after]
        evaluated = ledger.evaluated(request.after)
        return Reply(requests.Entries(entries, ledger.swapped(request.after), earlier, evaluated))

    def _exchanges(self, _request: requests.Exchanges, _: Buffers) -> Reply[requests.Entries]:
        return Reply(requests.Entries([self._cell.collective(record) for record in exchanges_of(self._ledger)], []))

    def _enter_missed(self, request: requests.EnterMissed, _: Buffers) -> Reply[requests.Entered]:
        self._ledger.replay(request.entries)
        return Reply(requests.Entered(self._ledger.number))

    def _settle(self, _request: requests.Settle, _: Buffers) -> Reply[requests.Entered]:
        invalid = self._ledger.invalid.give_up(self._names.user_variables())
        settle([*self._user_ns.items(), *self._debugger.held()])
        return Reply(requests.Entered(self._ledger.number, invalid))

    def _pending(self, request: requests.Pending, _: Buffers) -> Reply[requests.PendingNames]:
        if self._ledger.seq == 0:
            return Reply(requests.PendingNames([]))
        names = set(self._names.user_variables()) if request.code is None else names_in(request.code)
        return Reply(requests.PendingNames(pending_names(self._user_ns, names)))
