"""Our own files are told from the user's, wherever the clone lies."""

from __future__ import annotations

import pytest

from allranks.rank.cell import recorder
from tests.frames import frames_of_ours


@pytest.mark.parametrize(
    ("shown", "ours"),
    [
        (f'  File "{recorder.__file__}", line 12, in run', ["allranks/rank/cell/recorder.py"]),
        ("File ~/with a space/allranks/kernel_ext/allranks/errors.py:12", ["allranks/errors.py"]),
        ("File /opt/lib/ipyparallel/client/client.py:7, in apply", ["ipyparallel/client/client.py"]),
        ("File ~/allranks/.venv/lib/python3.11/site-packages/mlx/nn/utils.py:40, in average_gradients", []),
        ("the log is in /tmp/allranks-1a2b/rank0.log", []),
        ("File ~/allranks/notebooks/train.py:3, in step", []),
    ],
)
def test_a_file_of_ours_is_found_by_its_package_and_not_by_the_clones_name(shown: str, ours: list[str]) -> None:
    assert frames_of_ours(f"before\n{shown}\nafter") == ours
