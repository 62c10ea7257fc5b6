"""What tracebacks leave out."""

from __future__ import annotations

from importlib.util import find_spec

from allranks.rank.cell import tracebacks


def test_the_modules_below_which_no_frame_is_the_users_exist() -> None:
    assert [name for name in tracebacks._NOBODY_BELOW if find_spec(name) is None] == []
