"""The names that every cell finds: ``mx``, ``world``, ``rank``, ``size``, ``log`` and ``mark``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from allranks.rank.collectives.trace import mark
from allranks.rank.values.checkpoint import GIVEN

if TYPE_CHECKING:
    from allranks.rank.agent.agent import Agent


class GivenNames:
    """Puts them into the user's namespace, and knows which of them the user has given to something else."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        self._given: dict[str, Any] = {}
        """What `hand_out` gave the names of; not the group, to which nothing may refer when the world is left."""

    def hand_out(self) -> None:
        """The names every cell starts with; one that the user has given to something else stays the user's."""
        if self._agent.world.group is None:
            return
        import mlx.core as mx

        # The namespace may be a new one (the engine's, once it is up): the ledger tells user frames by it.
        self._agent.ledger.install(mx, self._agent.user_ns)
        names = self.all()
        log = names.pop("log")
        free = self.given() | (GIVEN - self._agent.user_ns.keys())
        self._agent.user_ns.update({name: value for name, value in names.items() if name in free})
        del names["world"]
        self._given = names
        self._agent.user_ns.setdefault("mark", mark)  # a user's own of that name stays
        self._agent.user_ns.setdefault("log", log)  # `from math import log` is left alone

    def all(self) -> dict[str, Any]:
        """What ``mx``, ``world``, ``rank``, ``size`` and ``log`` stand for."""
        import mlx.core as mx

        group = self._agent.world.group
        assert group is not None, "ranks take cells once they have joined a world"
        names = {"mx": mx, "world": group, "rank": group.rank(), "size": group.size()}
        return {**names, "log": self._agent.log.function}

    def given(self) -> set[str]:
        """Those of the names that are still what `hand_out` made of them."""
        user_ns = self._agent.user_ns
        same = {name for name, value in self._given.items() if name in user_ns and _same(user_ns[name], value)}
        world = user_ns.get("world", "")
        return same | ({"world"} if world is None or world is self._agent.world.group else set())

    def taken(self) -> set[str]:
        """Those of the names that the user has given to something else."""
        return {name for name in GIVEN if name in self._agent.user_ns} - self.given()


def _same(value: Any, given: Any) -> bool:
    return value is given or (type(value) is int and type(given) is int and value == given)
