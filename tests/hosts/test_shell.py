"""Clusters on other hosts, listed and ended from a shell when nothing is left of their notebook's machine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time

import psutil
import pytest

from allranks.machine.hosted_clusters import HOST_PROCESS
from tests.hosts.lab import Hosts
from tests.hosts.test_out_of_reach import WITHIN, cut_off, gone
from tests.shell import allranks, described_as

pytestmark = [pytest.mark.hosts, pytest.mark.slow]
NOTEBOOK = """
import sys, time, allranks
cluster = allranks.Cluster(hosts=sys.argv[2:], backend="ring", name=sys.argv[1]).up()
print("up", flush=True)
time.sleep(600)
"""


def test_what_a_dead_notebook_and_its_host_process_left_is_ended(hosts3: Hosts) -> None:
    name, names = f"left{os.getpid()}", hosts3.names[:2]
    line = [sys.executable, "-c", NOTEBOOK, name, *names]
    notebook = subprocess.Popen(line, stdout=subprocess.PIPE, text=True)
    assert notebook.stdout is not None and notebook.stdout.readline() == "up\n"
    here = described_as(name)
    elsewhere = json.loads(allranks("list", "--hosts", ",".join(hosts3.names), "--json").stdout)
    (found,) = [each for each in elsewhere if each["name"] == name]
    assert found["hosts"] == names and found["attached"] and set(found["running"]) == {"localhost", *names}
    notebook.kill()
    notebook.wait(WITHIN)
    host, _ = here.processes[HOST_PROCESS]
    psutil.Process(host).kill()
    with cut_off(hosts3):
        done = allranks("down", name)
        assert done.returncode == 1 and f"{names[0]} could not be asked" in done.stderr
        assert f"allranks down {here.cluster} --hosts {','.join(names)}" in done.stderr
    assert any(map(hosts3.processes, names))
    deadline = time.monotonic() + WITHIN  # until the hosts have noticed that the notebook is gone
    while (done := allranks("down", here.cluster, "--hosts", ",".join(names))).returncode == 2:
        assert "is attached" in done.stderr and time.monotonic() < deadline, done.stderr
    assert done.returncode == 0 and f"1 rank on {names[0]}, 1 rank on {names[1]}" in done.stdout, done
    assert gone(hosts3, WITHIN)
