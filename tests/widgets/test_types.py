"""JavaScript's types of the Snapshot are those that its dataclasses make."""

from __future__ import annotations

import runpy
from pathlib import Path

SOURCES = Path(__file__).parents[2] / "widgets" / "js-src"


def test_the_types_are_those_of_the_dataclasses() -> None:
    made = runpy.run_path(str(SOURCES / "generate_types.py"))["text"]()
    assert (SOURCES / "src" / "snapshot-types.js").read_text() == made, "run `make js`"
