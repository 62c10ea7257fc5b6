"""Checks that ranks enter the same collectives: if not, MLX raises no error and returns invalid results."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import combinations

from allranks.head.state.make_views import collective
from allranks.head.state.monitor import Monitor
from allranks.lifeline.head_end import Lifeline
from allranks.lifeline.open_questions import RequestFailed
from allranks.messages.events import EvaluatedAtOnce, Exchanged, LedgerEntry
from allranks.messages.requests import Exchanges, LedgerSince, OpenBarrier
from allranks_backends.plan import alike, rank_label
from allranks_backends.views import Collective

ANSWER_WITHIN = 20.0
"""Seconds an agent gets to hand over its ledger; the wait for a stopped or lost agent ends earlier."""
MOST_NAMED = 4
"""Maximum number of swapped pairs of collectives that are named for a rank."""


class Agreement:
    """Checks one cell: before each collective (``strict``), or when the cell is over (``warn``)."""

    def __init__(self, monitor: Monitor, lifeline: Lifeline, ranks: Sequence[int], cell: int) -> None:
        self._monitor, self._lifeline, self._ranks, self._cell = monitor, lifeline, tuple(ranks), cell
        self._entering: dict[int, Collective] = {}
        self._done: dict[int, tuple[int, int]] = {}
        self._at_once: dict[int, EvaluatedAtOnce] = {}
        self._sent: dict[tuple[int, int], tuple[int, int]] = {}
        """By sender and receiver, as the sender counts: how many messages, and a checksum of their dtypes and sizes."""
        self._received: dict[tuple[int, int], tuple[int, int]] = {}
        """By sender and receiver, the same figures as the receiver counts them."""

    def enter(self, rank: int, entry: LedgerEntry) -> None:
        """Note that a rank waits at the barrier; once all ranks of the world wait there, let all enter, or none.

        If the cell runs on some ranks only, none may enter.
        """
        self._entering[rank] = collective(entry)
        if len(self._ranks) < len(self._monitor.ranks):
            absent = [rank for rank in range(len(self._monitor.ranks)) if rank not in self._ranks]
            verb = "is" if len(absent) == 1 else "are"
            self._open(
                f"{self._entering[rank].op} needs all ranks, but {rank_label(absent)} {verb} not part of this cell"
            )
        elif len(self._entering) == len(self._ranks):
            self._open(disagreement(self._entering))

    def _open(self, refusal: str | None) -> None:
        for rank in self._entering:
            self._lifeline.tell(self._monitor.ranks[rank].uuid, OpenBarrier(self._cell, refusal))
        self._entering.clear()

    def done(
        self,
        rank: int,
        fingerprint: Sequence[int],
        at_once: EvaluatedAtOnce | None = None,
        exchanged: Sequence[Exchanged] = (),
    ) -> None:
        """Note that a rank is done with the cell; `fingerprint` is the count and checksum of its shared collectives."""
        count, checksum = fingerprint
        self._done[rank] = (count, checksum)
        if at_once is not None:
            self._at_once[rank] = at_once
        for each in exchanged:
            self._sent[rank, each.peer], self._received[each.peer, rank] = each.sent, each.received

    def mismatch(self, first: Mapping[int, int]) -> str | None:
        """Return, in words, how ranks that are done disagreed, or which collectives had no defined order.

        None if neither. `first` is, for each rank, the number of the last collective before this cell.
        """
        return self._disagreement(first) or self._exchange() or _no_order(self._at_once)

    def _exchange(self) -> str | None:
        """Return, in words, the first send that differs from its recv; None if there is none.

        Compares only ranks of which one received as often as the other sent.
        """
        for (sender, receiver), (count, checksum) in self._sent.items():
            received = self._received.get((sender, receiver), (0, 0))
            if received[0] != count or received[1] == checksum:
                continue
            sends = [each for each in self._exchanges_of(sender, receiver) if each.op == "send"]
            receives = [each for each in self._exchanges_of(receiver, sender) if each.op != "send"]
            for sent, got in zip(sends, receives, strict=False):
                if (sent.dtype, sent.nbytes) != (got.dtype, got.nbytes):
                    return (
                        f"a send and its recv differ: rank {sender} called {sent}; rank {receiver} called {got}"
                        f" ({_elements(sent)} were sent, {_elements(got)} received)"
                    )
        return None

    def _exchanges_of(self, rank: int, peer: int) -> list[Collective]:
        question = self._lifeline.ask(self._monitor.ranks[rank].uuid, Exchanges())
        try:
            entries = question.result(ANSWER_WITHIN).answer.entries
        except (TimeoutError, ConnectionError, RequestFailed):
            return []
        return [collective(entry) for entry in entries if entry.peer == peer]

    def _disagreement(self, first: Mapping[int, int]) -> str | None:
        counts = [count for count, _ in self._done.values()]
        if len(set(self._done.values())) < 2 or (any(counts) and not all(counts)):
            return None
        answers = {
            rank: self._lifeline.ask(self._monitor.ranks[rank].uuid, LedgerSince(first[rank])) for rank in self._done
        }
        ledgers: dict[int, list[LedgerEntry]] = {}
        known: dict[int, dict[int, LedgerEntry]] = {}
        swapped: dict[int, list[tuple[int, int]]] = {}
        evaluated: dict[int, list[int]] = {}
        for rank, answer in answers.items():
            try:
                found = answer.result(ANSWER_WITHIN).answer
            except (TimeoutError, ConnectionError, RequestFailed):
                continue
            swapped[rank], evaluated[rank] = found.swapped, found.evaluated
            ledgers[rank] = found.entries
            known[rank] = {entry.number - first[rank]: entry for entry in [*found.earlier, *found.entries]}
        for entered in zip(*ledgers.values(), strict=False):
            if all(map(partial(_alike, entered[0]), entered)):  # fast, since there may be thousands of equal entries
                continue
            if said := disagreement({rank: collective(entry) for rank, entry in zip(ledgers, entered, strict=True)}):
                return said
        return _different_order(known, swapped, evaluated)


def _alike(one: LedgerEntry, other: LedgerEntry) -> bool:
    return one.op == other.op and one.shape == other.shape and one.dtype == other.dtype


def _elements(exchange: Collective) -> str:
    return f"{math.prod(exchange.shape)} {exchange.dtype}"


def _no_order(at_once: Mapping[int, EvaluatedAtOnce]) -> str | None:
    """``...: ranks 0-1 evaluated all_sum #1 ... and all_sum #2 ... at once, on two streams``.

    None if `at_once` is empty.
    """
    sides = []
    for each, ranks in alike(at_once).items():
        if each.threads:
            how = f"collectives of two threads at once ({' and '.join(each.threads)}): call them all in one"
        else:
            how = f"{' and '.join(str(collective(entry)) for entry in each.collectives)} at once, on two streams"
            how += " (--ordered prevents this)"
        sides.append(f"{rank_label(ranks)} evaluated {how}")
    if not sides:
        return None
    return f"the order of collectives is undefined, so their results may be swapped: {'; '.join(sides)}"


def _different_order(
    known: Mapping[int, Mapping[int, LedgerEntry]],
    swapped: Mapping[int, Sequence[tuple[int, int]]],
    evaluated: Mapping[int, Sequence[int]],
) -> str | None:
    """``...: rank 0 evaluated all_sum #2 ... before all_sum #1 ...; ranks 1-3 evaluated in call order``.

    First compares the collectives that all ranks have `evaluated`: the ranks may agree on an order other than that of
    the calls. None if the orders do not differ.
    """
    seen = {rank: order for rank, order in evaluated.items() if order}
    common = set.intersection(*map(set, seen.values())) if seen else set()
    before = {rank: _inverted([each for each in order if each in common]) for rank, order in seen.items()}
    of_all = set.intersection(*before.values()) if before else set()
    if any(pairs != of_all for pairs in before.values()):
        return _swapped(known, {rank: sorted(pairs - of_all) for rank, pairs in before.items()})
    if len(seen) == len(evaluated) and all(common.issuperset(pair) for pairs in swapped.values() for pair in pairs):
        return None
    return _swapped(known, swapped)


def _inverted(order: Sequence[int]) -> set[tuple[int, int]]:
    return {(one, other) for one, other in combinations(order, 2) if one > other}


def _swapped(
    known: Mapping[int, Mapping[int, LedgerEntry]], swapped: Mapping[int, Sequence[tuple[int, int]]]
) -> str | None:
    orders: dict[tuple[tuple[int, int], ...], list[int]] = {}
    for rank, pairs in swapped.items():
        named = tuple(pair for pair in pairs if known[rank].keys() >= set(pair))
        orders.setdefault(named, []).append(rank)
    if len(orders) < 2:
        return None
    sides = []
    for named, ranks in sorted(orders.items()):
        of = known[ranks[0]]
        told = [f"{collective(of[late])} before {collective(of[early])}" for late, early in named[:MOST_NAMED]]
        told += [f"{len(named) - MOST_NAMED} more"] if len(named) > MOST_NAMED else []
        sides.append(f"{rank_label(ranks)} evaluated {'; '.join(told) or 'in call order'}")
    return (
        "the ranks evaluated collectives in different orders, so their results are swapped: "
        + "; ".join(sides)
        + " (--ordered prevents this)"
    )


def disagreement(entered: Mapping[int, Collective]) -> str | None:
    """``the ranks disagree: rank 0 entered all_sum #1 f32[10] (line 3); ranks 1-3 entered ...``

    None if all ranks entered equal collectives, or if any of these is not shared by all ranks.
    """
    kinds: dict[tuple[str, tuple[int, ...], str], list[int]] = {}
    if not all(each.shared for each in entered.values()):
        return None
    for rank, each in entered.items():
        kinds.setdefault((each.op, each.shape, each.dtype), []).append(rank)
    if len(kinds) < 2:
        return None
    sides = (f"{rank_label(ranks)} entered {entered[ranks[0]]}" for ranks in sorted(map(sorted, kinds.values())))
    return "the ranks disagree: " + "; ".join(sides)
