"""What a cell raises after an aborted collective is told from what it raises of its own, by type."""

from __future__ import annotations

import pytest

from allranks.rank.collectives.aborted import PEER_LOST, CollectiveAborted, follows_abort, is_peer_loss
from allranks.rank.collectives.ledger import Ledger


def raised(code: str) -> Exception:
    with pytest.raises(Exception) as found:
        exec(code, {"CollectiveAborted": CollectiveAborted})
    return found.value


@pytest.mark.parametrize(
    "code",
    [
        "raise CollectiveAborted('x')",
        "try:\n    raise CollectiveAborted('x')\nexcept RuntimeError as error:\n    raise KeyError from error",
        "try:\n    raise CollectiveAborted('x')\nexcept RuntimeError:\n    1/0",
    ],
)
def test_a_consequence_is_found(code: str) -> None:
    assert follows_abort(raised(code))


@pytest.mark.parametrize(
    "code",
    [
        "1/0",
        "try:\n    raise CollectiveAborted('x')\nexcept RuntimeError:\n    pass\n1/0",
        "raise RuntimeError('the collectives of this cell were aborted, since not every rank came')",
        "raise RuntimeError('the world is broken: rank 2 is dead')",
    ],
)
def test_an_error_of_the_cells_own_is_none_whatever_it_says(code: str) -> None:
    assert not follows_abort(raised(code))


def test_a_circle_of_errors_comes_to_an_end() -> None:
    one, other = ValueError(), KeyError()
    one.__context__, other.__context__ = other, one
    assert not follows_abort(one) and not follows_abort(None)


def test_a_ledger_that_refuses_raises_it() -> None:
    ledger = Ledger()
    ledger.refuse = "the world is broken"
    with pytest.raises(CollectiveAborted, match="the world is broken"):
        ledger.raise_if_refused()


def test_mlx_says_that_a_neighbour_was_lost() -> None:
    """Its words, as seen on mlx 0.32.4: `tests/faults` has real neighbours that die."""
    assert is_peer_loss(PEER_LOST) and is_peer_loss(f"step 3 failed: {PEER_LOST}")
    assert not is_peer_loss("[ring] Couldn't connect")
