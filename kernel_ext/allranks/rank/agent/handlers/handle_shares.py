"""Requests about files that hosts send each other."""

from __future__ import annotations

from allranks.lifeline.open_questions import Reply
from allranks.machine.shared_tree import DIGEST
from allranks.messages import requests
from allranks.rank.files import share_blocks, shared_names

from .handler_table import Buffers, RequestTable


class ShareHandlers(RequestTable):
    def __init__(self) -> None:
        super().__init__()
        self._shares = shares = share_blocks.Shares()
        self.answer(requests.FindShare, lambda request, _: Reply(shares.find(request)))
        self.answer(requests.OfferShare, self._offer)
        self.answer(requests.AcceptShare, self._accept)
        self.confirm(requests.PullShare, self._pull)
        self.answer(requests.GiveBlocks, self._give_blocks)
        self.answer(requests.AskShare, lambda request, _: Reply(shares.of(request.transfer).progress()))
        self.answer(requests.DigestShare, self._digest)
        self.confirm(requests.PlaceShare, self._place)
        self.confirm(requests.NameShare, self._name)
        self.confirm(requests.EndShare, lambda request, _: shares.end(request.transfer))

    def _offer(self, request: requests.OfferShare, _: Buffers) -> Reply[requests.ShareOffered]:
        with share_blocks.in_words():
            answer, manifest = self._shares.offer(request)
        return Reply(answer, [manifest])

    def _accept(self, request: requests.AcceptShare, buffers: Buffers) -> Reply[requests.ShareAccepted]:
        with share_blocks.in_words():
            return Reply(self._shares.accept(request, bytes(buffers[0])))

    def _pull(self, request: requests.PullShare, _: Buffers) -> None:
        with share_blocks.in_words():
            self._shares.accepted(request.transfer).pull(request.host, request.ports)

    def _give_blocks(self, request: requests.GiveBlocks, buffers: Buffers) -> Reply[requests.BlocksWanted]:
        blocks = [(bytes(each[:DIGEST]), bytes(each[DIGEST:])) for each in buffers]
        notebook = self._shares.accepted(request.transfer).notebook
        wanted = notebook.give(dict(zip(request.given, blocks)), request.failed, again=request.again)
        return Reply(requests.BlocksWanted(wanted))

    def _digest(self, request: requests.DigestShare, _: Buffers) -> Reply[requests.ShareDigests]:
        with share_blocks.in_words():
            numbers, digests = self._shares.of(request.transfer).digests(request.files)
        return Reply(requests.ShareDigests(numbers), [digests])

    def _place(self, request: requests.PlaceShare, _: Buffers) -> None:
        with share_blocks.in_words():
            self._shares.accepted(request.transfer).put_in_place()

    def _name(self, request: requests.NameShare, _: Buffers) -> None:
        with share_blocks.in_words():
            shared_names.give_names(request.names, request.folder, request.repo)
