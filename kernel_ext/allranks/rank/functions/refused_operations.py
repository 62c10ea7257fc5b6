"""Refuses calls of operations that the world's backend lacks, before MLX hangs or ends the process.

MLX itself notices the lack only when the call is evaluated, deep inside ``mx.eval``. For a ring's ``send`` to a rank
that is not a neighbour, that happens in a thread of MLX's own, where the exception ends the process (0.32.4).
"""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import TYPE_CHECKING, Any

from allranks.messages.requests import Refusals
from allranks.messages.value_types import Args

from .replaced import is_replaced, leave_out_our_frames, replaced

if TYPE_CHECKING:
    from mlx.core import Dtype

Check = Callable[[Args, Mapping[str, Any]], None]
PEER = {"send": ("dst", 1), "recv": ("src", 2), "recv_like": ("src", 1)}
"""By operation, the argument that names the other rank: its keyword and its position."""
REDUCTIONS = ("all_sum", "all_max", "all_min")
COLLECTIVES = (*REDUCTIONS, "all_gather")
"""The collectives that every backend has."""


class RefusedOperations:
    """The refusals of the current world.

    `checks` has a check for each operation that may be refused for a reason other than a dtype (see `dtypes`).
    A check takes a call's arguments. For a call to refuse, it raises NotImplementedError: a RuntimeError, as in MLX.
    """

    def __init__(self, changed: Callable[[], object] = lambda: None) -> None:
        self.checks: dict[str, Check] = {}
        self.dtypes: defaultdict[str, set[Dtype]] = defaultdict(set)
        """The dtypes that each operation lacks, looked up at each call: a check would take 10 of the call's 13 us."""
        self.refuses_collectives = False
        """Whether one of `COLLECTIVES` has a check, which is the case for no backend so far."""
        self._changed = changed
        self._refusals = Refusals({}, None, {}, {})
        self._rank, self._size = 0, 1

    def enter_world(self, refusals: Refusals, operations: tuple[str, ...], rank: int, size: int) -> None:
        """Set the limits of the joined world's backend (see ``allranks_backends.unsupported_operations``).

        In a world of one rank, nothing is refused: MLX has nothing to send, and answers every operation itself.
        """
        self._refusals, self._rank, self._size = refusals, rank, size
        self.checks.clear()
        for each in self.dtypes.values():
            each.clear()
        if size > 1:
            self._learn(refusals, operations)
        self.refuses_collectives = any(op in self.checks for op in COLLECTIVES)
        self._changed()

    def _learn(self, refusals: Refusals, operations: tuple[str, ...]) -> None:
        import mlx.core as mx

        for op in operations:
            if op in refusals.operations or (refusals.neighbours and op in PEER):
                self.checks[op] = functools.partial(self._check, op)
            if names := self._refused(op):
                self.dtypes[op].update(getattr(mx, "bool_" if name == "bool" else name) for name in names)
        if "split" in refusals.operations:
            self.checks["split"] = functools.partial(self._check, "split")

    def install(self, mx: ModuleType) -> None:
        """Have failing calls of ``Group.split`` checked as well. A second `install` has no effect.

        A subclass would not be used, since MLX itself makes the groups, but a method of the class can be replaced.
        """
        group: Any = getattr(mx.distributed, "Group", None)
        if group is None or is_replaced(group.split):
            return
        split = group.split
        checks = self.checks

        def checked(*args: Any, **kwargs: Any) -> Any:
            try:
                try:
                    return split(*args, **kwargs)
                except RuntimeError as error:
                    failed = error
                if "split" in checks:  # outside of the handler, so that its error stands alone
                    checks["split"](args, {"group": args[0]})
                raise failed
            except BaseException as error:
                leave_out_our_frames(error)
                raise

        group.split = replaced(split, checked)

    def _check(self, op: str, args: Args, kwargs: Mapping[str, Any]) -> None:
        __tracebackhide__ = True
        group = kwargs.get("group")
        if group is not None and group.size() == 1:
            return
        if because := self._refusals.operations.get(op) or self._stranger(op, args, kwargs):
            raise NotImplementedError(because)

    def refuse_dtype(self, op: str, dtype: Dtype, kwargs: Mapping[str, Any]) -> None:
        """Raise NotImplementedError for one of `dtypes`, which the operation lacks; a group of one rank lacks none."""
        __tracebackhide__ = True
        group = kwargs.get("group")
        if group is not None and group.size() == 1:
            return
        raise NotImplementedError(self._refused(op)[str(dtype).removeprefix("mlx.core.")].format(op=op))

    def _refused(self, op: str) -> Mapping[str, str]:
        """Maps the name of each dtype that the operation lacks to the sentence that says so."""
        return {**self._refusals.dtypes, **(self._refusals.reduced if op in REDUCTIONS else {})}

    def _stranger(self, op: str, args: Args, kwargs: Mapping[str, Any]) -> str | None:
        """Why the rank to send to or receive from is unreachable; None if it is reachable."""
        if self._refusals.neighbours is None or op not in PEER:
            return None
        peer = _argument(PEER[op], args, kwargs)
        beside = sorted({(self._rank - 1) % self._size, (self._rank + 1) % self._size})
        # MLX itself refuses a rank that does not exist, and does so at once.
        if not isinstance(peer, int) or not 0 <= peer < self._size or peer in beside:
            return None
        shown = " and ".join(map(str, beside))
        return self._refusals.neighbours.format(op=op, rank=self._rank, size=self._size, beside=shown, peer=peer)


def _argument(where: tuple[str, int], args: Args, kwargs: Mapping[str, Any]) -> object:
    name, place = where
    return args[place] if len(args) > place else kwargs.get(name)
