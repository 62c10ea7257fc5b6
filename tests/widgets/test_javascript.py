"""The sources of the pictures: types, lint and what they compute."""

from __future__ import annotations

import pytest

from tests import javascript


@pytest.mark.slow
@pytest.mark.parametrize("script", ["check", "test"])
def test_types_lint_and_units(script: str) -> None:
    javascript.installed()
    done = javascript.run("run", "--silent", script)
    assert done.returncode == 0, done.stdout + done.stderr
