"""The part of `Cluster` that sends and fetches values, and compares the ranks' variables."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from itertools import pairwise
from typing import Any

from allranks.errors import CannotTravel, CellInterrupted, NoAnswer, RankError, UsageError, WorldBroken
from allranks.head.state.shared_advice import dead_too, typed_ranks
from allranks.lifeline.open_questions import Reply, RequestFailed
from allranks.messages.requests import DecidePush, Describe, DescribeLeaves, Nothing, Pull, PullLeaf, Push
from allranks.messages.wire import Buffer
from allranks.notebook.stop_button import Stop
from allranks.pickling import pickle_values
from allranks_backends.plan import alike, rank_label

from .cluster_base import Answered, ClusterBase, for_others, no_answer
from .variables_table import MOST_COMPARED, Difference, Variables, differing, join, largest_difference

NOTHING_SET = "No rank has the new values."


class ClusterValues(ClusterBase):
    """Sets, fetches and compares variables of the ranks."""

    def push(self, values_by_name: Mapping[str, object], *, ranks: Sequence[int] | int | None = None) -> None:
        """Set variables on the ranks. Arrays are sent as raw bytes.

        The values are bound once all of these ranks have loaded them, so either all ranks have the new values or none
        has. The exception is a rank that dies or stops while values are bound: the error then names the ranks that have
        them. Raises CannotTravel for a value that cannot be sent, UsageError for an invalid name, NoAnswer for a rank
        that is dead or does not answer, RankError for a rank that cannot load the values, and what `run` raises.
        """
        self._set([(self.choose_ranks(ranks), _packed(values_by_name))], ", ".join(values_by_name))

    def _set(self, parts: Sequence[tuple[list[int], Sequence[Buffer]]], names: str) -> None:
        """Have ranks load the variables in these buffers, and bind them once all ranks have done so."""
        chosen = [rank for ranks, _ in parts for rank in ranks]
        self._refuse_dead(chosen)
        with self._pushing:
            number, asked = time.time_ns(), dict[int, Future[Reply[Nothing]]]()
            try:
                for ranks, buffers in parts:
                    asked |= self._ask_all(Push(push=number), ranks, buffers)
                replies = self._all_replies(asked, chosen, lambda _: NOTHING_SET)
                _refuse_failed(replies, names)
                stop = Stop(in_waits=True)
                with stop.noted():
                    stop.put_off()
                    self._bind(number, chosen, names)
                if stop.pressed:
                    raise CellInterrupted(f"stopped once {rank_label(chosen)} had the new values of {names}")
            except BaseException:  # does nothing on ranks that have bound them
                if self._ranks is not None:
                    self._ranks.ask(chosen, DecidePush(push=number, bind=False))
                raise

    def _bind(self, number: int, chosen: Sequence[int], names: str) -> None:
        """Have ranks bind the loaded variables. If one fails, the error names the ranks that have bound them."""
        with self._starting:  # each cell runs on all ranks either before this or after it
            bound = self._ask_all(DecidePush(push=number, bind=True), chosen)
        try:
            for rank, reply in self._all_replies(bound, chosen).items():
                self._checked(rank, reply, names)
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

    def pull(self, name: str, *, ranks: Sequence[int] | int | None = None) -> list[Any]:
        """The value of `name` (or of a dotted path such as ``model.layers``) on each rank, in rank order.

        Ranks whose cell calls ``log`` or `end_step` in a loop answer after their next step, if the value is evaluated.
        They may be at different steps.

        Raises Busy for ranks that run any other cell, CannotTravel for a value that cannot be sent, UsageError if a
        rank has no such variable, NoAnswer if a rank is dead, stopped or unreachable, and what `run` raises.
        """
        return self._pull(name, ranks, "pull", in_steps=True)

    def _pull(self, name: str, ranks: Sequence[int] | int | None, verb: str, *, in_steps: bool = False) -> list[object]:
        """Same as `pull`; `verb` is the verb of ``%distributed`` that messages name."""
        chosen, others = self.choose_ranks(ranks), for_others(verb, name)
        self._refuse_dead(chosen, others)
        with self._starting:  # each cell runs on all ranks either before this or after it
            in_cell = in_steps and bool(self._up().monitor.busy(chosen))
            if self.state == "whole" and len(chosen) < self.size and not in_cell:
                self._refuse_pending(self._refuse_if_unable(chosen), chosen, name)
            asked = self._ask_all(Pull(name, computed_only=in_cell), chosen, in_steps=in_steps)
        found, absent = {}, []
        replies = self._all_replies(asked, chosen, others)
        for rank, reply in replies.items():
            try:
                found[rank] = pickle_values.unpack(self._checked(rank, reply, name).buffers, take=True)
            except UsageError as error:
                absent.append(error)
        if absent and found:
            has = f"{rank_label(found)} {'has' if len(found) == 1 else 'have'} it"
            raise UsageError(f"{absent[0]}. {has}: %distributed {verb} {name} -r {typed_ranks(found)}")
        if absent:
            raise absent[0]
        return list(found.values())

    def scatter(self, values_by_name: Mapping[str, object]) -> None:
        """Split arrays, lists or tuples along the first axis, and set one part on each rank.

        If `size` does not divide the length, the first ranks get one element more, as with ``numpy.array_split``.
        Raises UsageError for a value without a first axis, WorldBroken if a rank is dead, and what `push` raises.
        """
        parts: list[dict[str, object]] = [{} for _ in range(self.size)]
        for name, value in values_by_name.items():
            for rank, part in enumerate(_cut(name, value, self.size)):
                parts[rank][name] = part
        packed = [([rank], _packed(part)) for rank, part in enumerate(parts)]
        if dead := self._dead(None):
            raise WorldBroken(f"{rank_label(list(dead))} died, and would lack a part: %distributed heal first.")
        self._set(packed, ", ".join(values_by_name))

    def gather(self, name: str, *, ranks: Sequence[int] | int | None = None) -> Any:
        """The parts of `name` on `ranks` (default: all), joined along the first axis in rank order: an array or list.

        Raises UsageError if the parts cannot be joined, and what `pull` raises.
        """
        parts = self._pull(name, ranks, "gather")
        try:
            return join(parts)
        except (TypeError, ValueError) as error:
            raise UsageError(f"cannot join {name}: {error}. %distributed pull returns one value per rank.") from None

    def vars(self, *names: str) -> Variables:
        """The ranks' variables: type, shape and bytes of each name, and whether ranks agree. Evaluates nothing.

        Ranks that do not answer are left out, and named. Raises UsageError for a name that no rank has, NoAnswer if no
        rank answers, and Busy for ranks that run a cell without steps (see `pull`).
        """
        replies, silent = self._replies(self._ask_all(Describe(list(names)), None, in_steps=True))
        if not replies:
            raise no_answer(silent)
        entries = {rank: self._checked(rank, reply, "vars").answer.variables for rank, reply in replies.items()}
        known = {entry.name for each in entries.values() for entry in each}
        if absent := [name for name in names if name not in known]:
            unasked = f" ({no_answer(silent)})" if silent else ""
            raise UsageError(f"no rank has a variable {', '.join(absent)}.{unasked}{dead_too(self.snapshot)}")
        return Variables(entries, silent, list(self._dead(None)))

    def diff(self, name: str, *, ranks: Sequence[int] | int | None = None) -> list[Difference]:
        """Where replicas of `name` differ: the path of each leaf, and how far apart the values are.

        Raises UsageError if `ranks` has fewer than two ranks, and what `pull` raises.
        """
        chosen, others = self.choose_ranks(ranks), for_others("diff", name, least=2)
        if ranks is not None and len(chosen) < 2:
            raise UsageError("diff needs at least 2 ranks")
        self._refuse_dead(chosen, others)
        replies = self._all_replies(self._ask_all(DescribeLeaves(name), chosen), chosen, others)
        leaves = {rank: self._checked(rank, reply, name).answer.leaves for rank, reply in replies.items()}
        differ, said = differing(leaves)
        for path in differ[:MOST_COMPARED]:
            found = self._all_replies(self._ask_all(PullLeaf(name, path), chosen), chosen, others)
            parts = {
                rank: pickle_values.unpack(self._checked(rank, reply, name).buffers, take=True)
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
    """Raise RankError, which names the ranks that could not load a push, and why."""
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
