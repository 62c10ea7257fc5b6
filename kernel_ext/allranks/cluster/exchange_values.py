"""Sends values to the ranks and fetches them, and compares the ranks' variables."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from contextlib import ExitStack
from functools import partial
from itertools import pairwise
from typing import Any

from allranks.errors import CannotTravel, CellInterrupted, NoAnswer, RankError, UsageError, WorldBroken
from allranks.head.state.shared_advice import HEALS, dead_too, died_text, typed_ranks
from allranks.lifeline.open_questions import Reply, RequestFailed
from allranks.messages.requests import DecidePush, Describe, DescribeLeaves, Nothing, Pull, PullLeaf, Push
from allranks.messages.wire import Buffer
from allranks.notebook.stop_button import Stop
from allranks.pickling import pickle_values
from allranks_backends.plan import alike, rank_label

from .live_ranks import Answered, LiveRanks, for_others, no_answer, reply_or_error
from .variables_table import MOST_COMPARED, Difference, Variables, differing, join, largest_difference

NOTHING_SET = "No rank has the new values."


class ValueExchange:
    """Sets, fetches and compares variables of the ranks."""

    def __init__(self, live: LiveRanks) -> None:
        self._live = live
        self._pushing = threading.Lock()
        """Held during a push: a rank can hold the unbound variables of only one push."""

    def push(self, values_by_name: Mapping[str, object], *, ranks: Sequence[int] | int | None) -> None:
        """See `Cluster.push`."""
        self._set([(self._live.choose_ranks(ranks), _packed(values_by_name))], ", ".join(values_by_name))

    def _set(self, parts: Sequence[tuple[list[int], Sequence[Buffer]]], names: str) -> None:
        """Have ranks load the variables in these buffers, and bind them once all ranks have done so."""
        chosen = [rank for ranks, _ in parts for rank in ranks]
        self._live.refuse_dead(chosen)
        with self._pushing:
            number, asked = time.time_ns(), dict[int, Future[Reply[Nothing]]]()
            between = Stop(around=True)

            def send() -> dict[int, Future[Reply[Nothing]]]:
                for ranks, buffers in parts:
                    asked.update(self._live.ask_all(Push(push=number), ranks, buffers))
                return asked

            try:
                with between.noted():
                    replies = self._live.all_replies(send, chosen, lambda _: NOTHING_SET)
                _refuse_failed(replies, names)
                if between.pressed:
                    raise CellInterrupted(f"stopped before {rank_label(chosen)} had the new values of {names}")
                stop = Stop(in_waits=True)
                with stop.noted():
                    stop.put_off()
                    self._bind(number, chosen, names)
                if stop.pressed:
                    raise CellInterrupted(f"stopped once {rank_label(chosen)} had the new values of {names}")
            except BaseException:  # the request does nothing on ranks that have bound the variables
                if self._live.ranks is not None:
                    self._live.ranks.ask(chosen, DecidePush(push=number, bind=False))
                raise

    def _bind(self, number: int, chosen: Sequence[int], names: str) -> None:
        """Have ranks bind the loaded variables. If one fails, the error names the ranks that have bound them."""
        with self._live.starting:  # each cell runs on all ranks either before this or after it
            bound = self._live.ask_all(DecidePush(push=number, bind=True), chosen)
        try:
            for rank, reply in self._live.all_replies(lambda: bound, chosen).items():
                reply_or_error(rank, reply, names)
        except (NoAnswer, WorldBroken, RankError, CellInterrupted) as error:
            done = [rank for rank, each in bound.items() if each.done() and not each.cancelled()]
            having = [rank for rank in done if bound[rank].exception() is None]
            who = (
                f"{rank_label(having)} {'has' if len(having) == 1 else 'have'}"
                if having
                else "no rank is known to have"
            )
            error.args = (f"{str(error).rstrip('.')}. {who.capitalize()} the new values of {names}.".lstrip(". "),)
            raise

    def pull(self, name: str, *, ranks: Sequence[int] | int | None) -> list[Any]:
        """See `Cluster.pull`."""
        return self._pull(name, ranks, "pull", in_steps=True)

    def _pull(self, name: str, ranks: Sequence[int] | int | None, verb: str, *, in_steps: bool = False) -> list[object]:
        """Same as `pull`; `verb` is the verb of ``%distributed`` that messages name."""
        chosen, others = self._live.choose_ranks(ranks), for_others(verb, name)
        self._live.refuse_dead(chosen, others)
        with ExitStack() as until_sent:
            until_sent.enter_context(self._live.starting)  # each cell runs on all ranks either before this or after it
            in_cell = in_steps and bool(self._live.ranks_up().monitor.busy(chosen))
            if self._live.state == "whole" and len(chosen) < self._live.size and not in_cell:
                self._live.refuse_pending(self._live.refuse_if_unable(chosen), chosen, name)

            def send() -> dict[int, Future[Reply[Nothing]]]:
                asked = self._live.ask_all(Pull(name, computed_only=in_cell), chosen, in_steps=in_steps)
                until_sent.close()
                return asked

            replies = self._live.all_replies(send, chosen, others)
        found, absent = {}, []
        for rank, reply in replies.items():
            try:
                found[rank] = pickle_values.unpack(reply_or_error(rank, reply, name).buffers, take=True)
            except UsageError as error:
                absent.append(error)
        if absent and found:
            has = f"{rank_label(found)} {'has' if len(found) == 1 else 'have'} it"
            raise UsageError(f"{absent[0]}. {has}: %distributed {verb} {name} -r {typed_ranks(found)}")
        if absent:
            raise absent[0]
        return list(found.values())

    def scatter(self, values_by_name: Mapping[str, object]) -> None:
        """See `Cluster.scatter`."""
        parts: list[dict[str, object]] = [{} for _ in range(self._live.size)]
        for name, value in values_by_name.items():
            for rank, part in enumerate(_cut(name, value, self._live.size)):
                parts[rank][name] = part
        packed = [([rank], _packed(part)) for rank, part in enumerate(parts)]
        if self._live.dead_among(None):
            raise WorldBroken(f"cannot scatter: {died_text(self._live.ranks_up().monitor.ranks)}. {HEALS}.")
        self._set(packed, ", ".join(values_by_name))

    def gather(self, name: str, *, ranks: Sequence[int] | int | None) -> Any:
        """See `Cluster.gather`."""
        parts = self._pull(name, ranks, "gather")
        try:
            return join(parts)
        except (TypeError, ValueError) as error:
            raise UsageError(f"cannot join {name}: {error}. %distributed pull returns one value per rank.") from None

    def vars(self, *names: str) -> Variables:
        """See `Cluster.vars`."""
        replies, silent = self._live.replies(lambda: self._live.ask_all(Describe(list(names)), None, in_steps=True))
        if not replies:
            raise no_answer(self._live.snapshot, silent)
        entries = {rank: reply_or_error(rank, reply, "vars").answer.variables for rank, reply in replies.items()}
        known = {entry.name for each in entries.values() for entry in each}
        if absent := [name for name in names if name not in known]:
            unasked = f" ({no_answer(self._live.snapshot, silent)})" if silent else ""
            raise UsageError(f"no rank has a variable {', '.join(absent)}.{unasked}{dead_too(self._live.snapshot)}")
        return Variables(entries, silent, list(self._live.dead_among(None)))

    def diff(self, name: str, *, ranks: Sequence[int] | int | None) -> list[Difference]:
        """See `Cluster.diff`."""
        chosen, others = self._live.choose_ranks(ranks), for_others("diff", name, least=2)
        if ranks is not None and len(chosen) < 2:
            raise UsageError("diff needs at least 2 ranks")
        self._live.refuse_dead(chosen, others)
        replies = self._live.all_replies(lambda: self._live.ask_all(DescribeLeaves(name), chosen), chosen, others)
        leaves = {rank: reply_or_error(rank, reply, name).answer.leaves for rank, reply in replies.items()}
        differ, said = differing(leaves)
        for path in differ[:MOST_COMPARED]:
            found = self._live.all_replies(partial(self._live.ask_all, PullLeaf(name, path), chosen), chosen, others)
            parts = {
                rank: pickle_values.unpack(reply_or_error(rank, reply, name).buffers, take=True)
                for rank, reply in found.items()
            }
            said[path] = largest_difference(parts)
        said |= dict.fromkeys(differ[MOST_COMPARED:], "differs (too many to compare each)")
        return [Difference(name + path, text) for path, text in said.items()]


def _cut(name: str, value: Any, count: int) -> list[object]:
    """Cut an array or a list into `count` parts. Raises UsageError for a value without a first axis."""
    try:
        if isinstance(value, (str, bytes, dict)) or getattr(value, "shape", 1) == ():
            raise TypeError
        length = len(value)
        ends = [number * (length // count) + min(number, length % count) for number in range(count + 1)]
        return [value[start:end] for start, end in pairwise(ends)]
    except (TypeError, KeyError):  # also for values that have a length but cannot be cut: sets, deques
        kind = type(value).__name__
        raise UsageError(f"{name} is a {kind}: only arrays, lists and tuples can be scattered.") from None


def _refuse_failed(replies: Mapping[int, Answered[Nothing]], names: str) -> None:
    """Raise RankError if ranks could not load a push; its message names these ranks and the reasons."""
    failed = {rank: reply for rank, reply in replies.items() if isinstance(reply, RequestFailed)}
    if not failed:
        return
    reasons = alike({rank: f"{error.kind}: {error}".rstrip(": ") for rank, error in failed.items()})
    said = "; ".join(f"{rank_label(ranks)} could not load {names}: {why}" for why, ranks in reasons.items())
    lacks_module = any(error.kind == "ModuleNotFoundError" for error in failed.values())
    hint = " %distributed sync --on sends the modules of the notebook's folder." if lacks_module else ""
    raise RankError(f"{said}. {NOTHING_SET}{hint}", next(iter(failed.values())).traceback)


def _packed(values_by_name: Mapping[str, object]) -> list[Buffer]:
    """Pack variables for sending. Raises UsageError for an invalid name, and CannotTravel."""
    for name in values_by_name:
        if not name.isidentifier():
            raise UsageError(f"{name!r} is not a valid variable name.")
    try:
        return pickle_values.pack(dict(values_by_name))
    except pickle_values.NotPicklable as whole:
        for name, value in values_by_name.items():
            try:
                pickle_values.pack(value)
            except pickle_values.NotPicklable as error:
                raise CannotTravel(f"{name}: {error}") from None
        raise CannotTravel(str(whole)) from None
