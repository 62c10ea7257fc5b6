"""The part of `Cluster` that moves values, and compares what the ranks hold."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from allranks_backends._plan import rank_label, rank_list

from ._cluster_base import ClusterBase
from ._variables import MOST_COMPARED, Difference, Variables, differing, join, largest_difference
from .errors import CannotTravel, UsageError
from .rank import values


class ClusterValues(ClusterBase):
    """Variables of the ranks."""

    def push(self, values_by_name: Mapping[str, Any], *, ranks: Sequence[int] | int | None = None) -> None:
        """Set variables on the ranks. Arrays travel as raw bytes. Raises CannotTravel and what `run` raises."""
        for name in values_by_name:
            if not name.isidentifier():
                raise UsageError(f"{name!r} is no variable name.")
        buffers = []
        try:
            buffers = values.pack(dict(values_by_name))
        except values.CannotTravel:
            for name, value in values_by_name.items():
                try:
                    values.pack(value)
                except values.CannotTravel as error:
                    raise CannotTravel(f"{name}: {error}") from None
        self._push_packed(buffers, ranks)

    def _push_packed(self, buffers: Sequence[Any], ranks: Sequence[int] | int | None) -> None:
        for rank, answer in self._ask_all({"do": "push"}, ranks, buffers).items():
            self._answer(rank, answer, "push")

    def pull(self, name: str, *, ranks: Sequence[int] | int | None = None) -> list[Any]:
        """The value of `name` (or of a dotted path such as ``model.layers``) on each rank, in rank order.

        Raises CannotTravel for what cannot be moved, UsageError where a rank does not have it, and what `run` raises.
        """
        chosen = self.choose_ranks(ranks)
        if self.state == "whole" and len(chosen) < self.size:
            self._refuse_pending(self._refuse_if_unable(chosen), chosen, name)
        answers = self._ask_all({"do": "pull", "name": name}, chosen)
        found, absent = {}, []
        for rank, answer in answers.items():
            try:
                found[rank] = values.unpack(self._answer(rank, answer, name))
            except UsageError as error:
                absent.append(error)
        if absent and found:
            has = f"{rank_label(list(found))} {'has' if len(found) == 1 else 'have'} it"
            which = rank_list(list(found)).replace(" ", "")
            raise UsageError(f"{absent[0]}. {has}: %distributed pull {name} -r {which}")
        if absent:
            raise absent[0]
        return list(found.values())

    def scatter(self, values_by_name: Mapping[str, Any]) -> None:
        """Give each rank its part of these arrays or lists, cut along the first axis.

        Parts are as equal as can be: where `size` does not divide the length, the first ranks get one more (as
        ``numpy.array_split`` cuts). Raises UsageError for what has no first axis, and what `push` raises.
        """
        parts: list[dict[str, Any]] = [{} for _ in range(self.size)]
        for name, value in values_by_name.items():
            if (
                not hasattr(value, "__len__")
                or isinstance(value, (str, bytes, dict))
                or getattr(value, "shape", 1) == ()
            ):
                raise UsageError(f"{name} is a {type(value).__name__}: only arrays, lists and tuples can be scattered.")
            length, start = len(value), 0
            for rank in range(self.size):
                end = start + length // self.size + (rank < length % self.size)
                parts[rank][name] = value[start:end]
                start = end
        for rank, part in enumerate(parts):
            self.push(part, ranks=rank)

    def gather(self, name: str, *, ranks: Sequence[int] | int | None = None) -> Any:
        """The parts of `name` on all ranks, joined along the first axis in rank order: an array, or a list.

        Raises UsageError where they cannot be joined, and what `pull` raises.
        """
        parts = self.pull(name, ranks=ranks)
        try:
            return join(parts)
        except (TypeError, ValueError) as error:
            raise UsageError(
                f"{name} cannot be joined: {error}. %distributed pull brings one value per rank."
            ) from None

    def vars(self, *names: str) -> Variables:
        """What lives on the ranks: type, shape and bytes of each name, and whether ranks agree. Evaluates nothing."""
        told = self._ask_all({"do": "variables", "names": list(names)}, None)
        entries = {rank: self._told(rank, answer, "vars")["variables"] for rank, answer in told.items()}
        known = {entry["name"] for each in entries.values() for entry in each}
        if absent := [name for name in names if name not in known]:
            raise UsageError(f"no rank has a variable {', '.join(absent)}.")
        return Variables(entries)

    def diff(self, name: str) -> list[Difference]:
        """Where replicas of `name` differ: the path of each leaf in it, and how far the values are apart."""
        told = self._ask_all({"do": "leaves", "name": name}, None)
        leaves = {rank: self._told(rank, answer, name)["leaves"] for rank, answer in told.items()}
        differ, said = differing(leaves)
        for path in differ[:MOST_COMPARED]:
            answers = self._ask_all({"do": "leaf", "name": name, "path": path}, None)
            parts = {rank: values.unpack(self._answer(rank, answer, name)) for rank, answer in answers.items()}
            said[path] = largest_difference(parts)
        said |= dict.fromkeys(differ[MOST_COMPARED:], "differs (too many to compare each)")
        return [Difference(name + path, text) for path, text in said.items()]
