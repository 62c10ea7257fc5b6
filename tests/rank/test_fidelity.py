"""A rank is MLX, unchanged: what allranks replaces answers there as in a plain process, but for what is listed here."""

from __future__ import annotations

import inspect
import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from allranks.machine.tcp_ports import free_ports
from tests.rank import fidelity_probes

if TYPE_CHECKING:
    from pathlib import Path

    from allranks import Cluster

pytestmark = pytest.mark.slow

SAME_GROUP = "allranks must find every reference to the group before it can re-form the world, so there is one object"
REFUSED = "what the backend lacks is refused with what to do instead, and before MLX waits or ends the process"
OWN_TYPE = "nanobind's types can be neither instantiated nor subclassed from Python"
OWN_FRAME = "allranks counts what is being traced in a frame between the caller and MLX, which calls the function"

DIFFERENCES = {
    "D.init() is D.init()": SAME_GROUP,
    "D.init().split(0)": REFUSED,
    "mx.eval(D.sum_scatter(array))": REFUSED,
    "type(D.all_sum) is type(mx.add)": OWN_TYPE,
    "type(D.all_sum.__call__)": "a call of it must pass through allranks, too",
    "with_frames(mx.compile)": OWN_FRAME,
    "with_frames(mx.grad)": OWN_FRAME,
}
"""Probes that a rank answers otherwise, and why that cannot be helped."""


@pytest.fixture
def plain(tmp_path: Path) -> dict[str, str]:
    """The answers of rank 0 of two processes in a ring, which know nothing of allranks."""
    hosts = tmp_path / "hosts.json"
    hosts.write_text(json.dumps([[f"127.0.0.1:{port}"] for port in free_ports(2)]))
    ranks = [
        subprocess.Popen(
            [sys.executable, fidelity_probes.__file__],
            env={**os.environ, "MLX_RANK": str(rank), "MLX_HOSTFILE": str(hosts)},
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        outputs = [rank.communicate(timeout=240)[0] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
    answers: dict[str, str] = json.loads(outputs[0])
    return answers


def test_what_is_replaced_answers_as_mlx_does(ring2: Cluster, plain: dict[str, str]) -> None:
    source = inspect.getsource(fidelity_probes)
    code = f"probes = {{'__name__': 'probes'}}\nexec({source!r}, probes)\nprobes['answers'](globals())"
    result = ring2.run(code, check="off", timeout=300).check()
    ours = result[0].value
    assert ours.keys() == plain.keys()
    different = {probe for probe in plain if ours[probe] != plain[probe]}
    unexpected = [
        f"{probe}\n  MLX:  {plain[probe]}\n  rank: {ours[probe]}" for probe in sorted(different - DIFFERENCES.keys())
    ]
    assert not unexpected, "\n".join(unexpected)
    assert different == DIFFERENCES.keys(), "no longer a difference: take it off the list"
