"""What `heal`, `resize` and `rewire` return: fields for programs, sentences for people."""

from __future__ import annotations

import dataclasses

import pytest

from allranks.errors import NotLoaded
from allranks.head.world.change import RankVariables, SavedFiles, WorldChange

KEPT = RankVariables("kept")
AWKWARD = RankVariables("restored", left=("lock",), unloadable={"boom": "TypeError: two"}, half_computed=("loss",))
LATER = RankVariables("restored", not_loaded={"later": "OSError: not now"}, invalid=("y", "z"))
PRIVATE = "/tmp/x-variables-1"


def change(**fields: object) -> WorldChange:
    return WorldChange(**{"verb": "heal", "size": 3, "backend": "mpi", "generation": 4, **fields})  # type: ignore[arg-type]


def test_ranks_that_fared_alike_are_named_together() -> None:
    healed = change(ranks={0: KEPT, 2: KEPT, 1: RankVariables("empty")})
    assert str(healed) == "Healed the world: ranks 0, 2 kept all variables; rank 1 started empty."
    assert healed.check() is healed and not healed.missing


def test_what_is_missing_is_named_with_the_reason() -> None:
    healed = change(ranks={0: AWKWARD, 1: dataclasses.replace(AWKWARD, how="copied", source=0, half_computed=())})
    assert healed.missing == {0: ("lock", "boom", "loss"), 1: ("lock", "boom")}
    assert not healed.failed, "it was told before anything was ended"
    assert str(healed) == (
        "Healed the world: rank 0 restarted with all variables, except lock, "
        "which cannot be saved and boom (TypeError: two), which cannot be loaded in a new process and loss, which the "
        "blocked cell had set (possibly half computed); rank 1 got the variables of rank 0, except lock, which cannot "
        "be saved and boom (TypeError: two), which cannot be loaded in a new process."
    )


@pytest.mark.parametrize(
    "rank", [LATER, RankVariables("lost", error="no answer"), RankVariables("empty", 0, "the rank died")]
)
def test_where_a_rank_lacks_what_was_saved_it_is_raised(rank: RankVariables) -> None:
    healed = change(ranks={0: KEPT, 1: rank})
    with pytest.raises(NotLoaded, match=r"^Healed the world, but some variables could not be loaded: ") as raised:
        healed.check()
    assert raised.value.change is healed and healed.failed


def test_files_of_one_folder_are_named_together() -> None:
    files = (
        SavedFiles((0, 2), "localhost", (f"{PRIVATE}/0-left", f"{PRIVATE}/2-left")),
        SavedFiles((1,), "box", ("/var/1",)),
    )
    assert str(change(ranks={1: LATER}, files=files)).partition("y, z). ")[2] == (
        f'To load on ranks 0, 2: import allranks; allranks.load_variables(f"{PRIVATE}/{{rank}}-left") '
        'To load on rank 1 (box): import allranks; allranks.load_variables("/var/1")'
    )


@pytest.mark.parametrize(
    ("told", "fields"),
    [
        ("Nothing to heal: all ranks are alive and the world is whole.", {"changed": False}),
        (
            "Nothing to heal: all ranks are alive and the world is whole. Rank 1 is still busy. "
            "To stop the cell: %distributed interrupt.",
            {"changed": False, "busy": (1,)},
        ),
        ("The world already has 1 rank.", {"verb": "resize", "size": 1, "changed": False}),
        (
            "The world now has 1 rank: rank 0 kept all variables; "
            "there are no new ranks, so nothing was copied from rank 2.",
            {"verb": "resize", "size": 1, "ranks": {0: KEPT}, "unused_source": 2},
        ),
        ("The world now runs on mpi: all ranks kept their variables.", {"verb": "rewire", "ranks": {0: KEPT}}),
    ],
)
def test_as_text(told: str, fields: dict[str, object]) -> None:
    assert str(change(**fields)) == told
