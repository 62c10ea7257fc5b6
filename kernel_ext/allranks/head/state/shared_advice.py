"""Text that several messages share: about dead and stuck ranks, and what to type."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from allranks_backends.plan import alike, rank_label, rank_list
from allranks_backends.views import RankView, Snapshot

from .known_rank import Rank

HEALS = "%distributed heal replaces dead ranks"


def typed_ranks(ranks: Collection[int]) -> str:
    """Return ranks as they are typed: ``0-1,3``."""
    return rank_list(ranks).replace(" ", "")


def kill_text(ranks: Collection[int]) -> str:
    """``%distributed heal --kill 0-1 (loses their variables)``."""
    return f"%distributed heal --kill {typed_ranks(ranks)} (loses {'its' if len(ranks) == 1 else 'their'} variables)"


def continue_text(views: Iterable[RankView]) -> str:
    """What to type to continue suspended ranks: ``kill -CONT 4242 on node1 and kill -CONT 17 18 on node2``."""
    pids: dict[str, list[str]] = {}
    for view in views:
        pids.setdefault(view.host, []).append(str(view.pid))
    return " and ".join(f"kill -CONT {' '.join(each)} on {host}" for host, each in pids.items())


def died_text(ranks: Iterable[Rank]) -> str:
    """``rank 1 died (killed by SIGKILL)``, for dead ranks among `ranks`; empty if all are alive."""
    causes = alike({rank.rank: rank.dead for rank in ranks if rank.dead})
    return "; ".join(f"{rank_label(numbers)} died ({cause})" for cause, numbers in causes.items())


def dead_too(snapshot: Snapshot) -> str:
    """Return a space and a sentence about the dead ranks; empty if there are none."""
    dead = [view.rank for view in snapshot.ranks if view.state == "dead"]
    return f" {rank_label(dead).capitalize()} {'is' if len(dead) == 1 else 'are'} dead. {HEALS}." if dead else ""
