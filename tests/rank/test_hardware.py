"""What a rank reads of its host, compared with the system's own files, within a real limit of memory."""

from __future__ import annotations

import secrets
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from allranks.rank.metrics import hardware
from allranks.rank.metrics.hardware import Hardware
from tests.needs import need

READS = """
from allranks.rank.metrics.hardware import Hardware
held = b"x" * (100 << 20)
print(*Hardware().memory())
"""
GROWS = """
import time
from allranks import Cluster
from allranks.notebook.feed_dashboards import Nowhere

class Screen(Nowhere):
    def blocks(self, blocks):
        for block in blocks:
            print(block.content, end="", flush=True)

with Cluster(1) as cluster:
    cell = "import time\\nheld = []\\nfor _ in range(12): held.append(b'x' * (100 << 20)); time.sleep(0.5)"
    print(cluster.run(cell, screen=Screen()).ok)
"""


class Group:
    """A control group with a limit of memory."""

    def __init__(self, folder: Path, limit: str) -> None:
        self.folder, self._limit = folder, limit

    def run(self, code: str, nbytes: int) -> str:
        """The output of this Python code, run with a memory limit of `nbytes`."""
        (self.folder / self._limit).write_text(str(nbytes))
        enter = 'echo $$ > "$0/cgroup.procs" && exec "$@"'
        command = ["sh", "-c", enter, str(self.folder), sys.executable, "-c", code]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120)
        assert not done.returncode, done.stderr
        return done.stdout


@pytest.fixture
def group() -> Iterator[Group]:
    groups = list(hardware._groups(Path("/proc/self/cgroup").read_text())) if sys.platform == "linux" else []
    own = groups[0].limit.parent if groups else Path("/sys/fs/cgroup")
    folder = own / f"allranks-test-{secrets.token_hex(4)}"
    try:
        folder.mkdir()
    except OSError:
        need(False, "root, and control groups that can be made (Linux)")
    name = groups[0].limit.name if groups else "memory.max"
    need((folder / name).exists(), "control groups that limit memory")
    try:
        yield Group(folder, name)
    finally:
        left = [psutil.Process(int(pid)) for pid in (folder / "cgroup.procs").read_text().split()]
        for process in left:
            process.kill()
        psutil.wait_procs(left, 10)
        folder.rmdir()


def test_memory_is_that_of_the_control_group(group: Group) -> None:
    total, used = map(int, group.run(READS, 400 << 20).split())
    assert total == 400 << 20 and 100 << 20 < used < 300 << 20


def test_memory_is_that_of_the_host_where_no_group_is_closer_to_its_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    reads = Hardware()
    monkeypatch.setattr(reads, "_groups", [])
    total, used = reads.memory()
    host = psutil.virtual_memory()
    assert total == host.total and abs(used - (host.total - host.available)) < 0.1 * total


def test_what_is_unknown_is_none_and_what_is_known_has_a_unit() -> None:
    found = Hardware().read()
    assert found.get("swap_rate", 0.0) >= 0.0
    assert found["temperature"] is None or 0 < found["temperature"] < 130
    assert found.get("throttled") in (None, False, True)


@pytest.mark.parametrize(
    ("line", "folders"),
    [
        ("4:memory:/a/b", ["memory/a/b", "memory/a", "memory"]),
        ("0::/a/b", ["a/b", "a", ""]),
        ("5:cpu:/a", []),
    ],
)
def test_groups_of_both_versions_and_those_around_them(
    line: str, folders: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hardware, "CGROUPS", tmp_path)
    for folder in folders:
        (tmp_path / folder).mkdir(parents=True, exist_ok=True)
        for name in ("memory.max", "memory.limit_in_bytes"):
            (tmp_path / folder / name).write_text("max")
    assert [each.limit.parent for each in hardware._groups(line)] == [tmp_path / folder for folder in folders]


@pytest.mark.slow
def test_a_cell_that_will_run_out_of_memory_is_warned_of_before(group: Group) -> None:
    said = group.run(GROWS, 1550 << 20)
    assert said.count(" memory left.") == 1 and "the system ends a process, such as a rank" in said
    assert said.endswith("True\n"), "it was warned of in time"
