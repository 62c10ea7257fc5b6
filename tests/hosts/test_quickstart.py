"""The quickstart notebook, unchanged but for where its ranks are."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from allranks.demo import NOTEBOOK, demo
from tests.hosts.lab import Hosts

pytestmark = [pytest.mark.hosts, pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.mark.parametrize(("backend", "each"), [("ring", 1), ("mpi", 2)])
def test_the_quickstart_on_three_hosts(
    hosts3: Hosts, backend: str, each: int, tmp_path: Path, need_mpi: None, capsys: pytest.CaptureFixture[str]
) -> None:
    up = f"%distributed up --hosts {','.join(hosts3.names)} --backend {backend} --ranks-per-host {each}"
    text = NOTEBOOK.read_text()
    # It is written for four ranks; a world of three has no rank 3, and one of six wants two names more.
    for old, new in (
        ("%distributed up -n 4", up),
        ('\\"Dan\\"]', '\\"Dan\\", \\"Eve\\", \\"Finn\\"]'),
        ("result[3]", "result[2]"),
    ):
        assert old in text
        text = text.replace(old, new)
    json.loads(text)
    (tmp_path / "quickstart.ipynb").write_text(text)
    code = demo(tmp_path / "quickstart.ipynb")
    said = capsys.readouterr()
    assert code == 0, said.out[-3000:] + said.err
    assert re.search(rf"quickstart.ipynb ran on {3 * each} ranks", said.out)
