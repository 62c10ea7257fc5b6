"""What is most important about a world, in one sentence: the page and the saved picture say the same.

The page's test (widgets/js-src/test/headlines.test.js) reads the same table.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from allranks_backends.views import Snapshot
from allranks_widgets.snapshot_json import from_dict
from allranks_widgets.topology_picture import finding

TABLE = json.loads(Path(__file__).with_name("findings.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("case", TABLE, ids=[case["finding"] for case in TABLE])
def test_a_world_is_summed_up_in_the_words_of_the_page(case: dict[str, Any]) -> None:
    assert finding(from_dict(Snapshot, case["snapshot"])) == case["finding"]
    assert case["trouble"] in ("", case["finding"])
