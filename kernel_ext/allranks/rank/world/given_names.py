"""The names that every cell finds: ``mx``, ``world``, ``rank``, ``size``, ``log`` and ``mark``."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from allranks.messages.value_types import Namespace
from allranks.rank.collectives import wrap_collectives
from allranks.rank.collectives.ledger import Ledger
from allranks.rank.collectives.trace import mark
from allranks.rank.metrics.log import LogFunction
from allranks.rank.values import checkpoint
from allranks.rank.values.checkpoint import GIVEN

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell
    from mlx.core.distributed import Group


class GivenNames:
    """Assigns the names that every cell finds, and knows which of them the user has reassigned."""

    def __init__(
        self,
        user_ns: Namespace,
        ledger: Ledger,
        log: LogFunction,
        group: Callable[[], Group | None],
        shell: Callable[[], InteractiveShell | None],
    ) -> None:
        """`group` returns the world's group, and `shell` IPython's shell; both return None at first."""
        self._user_ns, self._ledger, self.log, self._group, self._shell = user_ns, ledger, log, group, shell
        self._given: Namespace = {}
        """The assigned ``mx``, ``rank`` and ``size``. Not the group: nothing may refer to it once its world is left."""

    def hand_out(self) -> None:
        """Assign the names that every cell starts with, except names that the user has reassigned."""
        if self._group() is None:
            return
        import mlx.core as mx

        wrap_collectives.install(self._ledger, mx, self._user_ns)
        names = self.all()
        del names["log"]
        free = self.given() | (GIVEN - self._user_ns.keys())
        self._user_ns.update({name: value for name, value in names.items() if name in free})
        del names["world"]
        self._given = names
        self._user_ns.setdefault("mark", mark)  # the user's own `mark` stays
        self._user_ns.setdefault("log", self.log)  # `from math import log` is left alone

    def all(self) -> Namespace:
        """The values of ``mx``, ``world``, ``rank``, ``size`` and ``log``, by name."""
        import mlx.core as mx

        group = self._group()
        assert group is not None, "ranks take cells once they have joined a world"
        names = {"mx": mx, "world": group, "rank": group.rank(), "size": group.size()}
        return {**names, "log": self.log}

    def given(self) -> set[str]:
        """Which of ``mx``, ``world``, ``rank`` and ``size`` still have the values that `hand_out` assigned."""
        user_ns = self._user_ns
        same = {name for name, value in self._given.items() if name in user_ns and _same(user_ns[name], value)}
        world = user_ns.get("world", "")
        return same | ({"world"} if world is None or world is self._group() else set())

    def taken(self) -> set[str]:
        """Which of ``mx``, ``world``, ``rank`` and ``size`` the user has reassigned."""
        return {name for name in GIVEN if name in self._user_ns} - self.given()

    def user_variables(self) -> Namespace:
        """The user's variables; empty until the engine is ready, though a world may be joined before that."""
        if (shell := self._shell()) is None:
            return {}
        return checkpoint.user_variables(self._user_ns, shell.user_ns_hidden, self.given())


def _same(value: object, given: object) -> bool:
    return value is given or (type(value) is int and type(given) is int and value == given)
