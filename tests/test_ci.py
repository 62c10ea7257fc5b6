"""The judge of CI (`.ci/judge.py`), on small projects: what it calls red, what unsteady, and what it counts."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path, PurePosixPath
from types import ModuleType
from typing import Any

import psutil
import pytest

from tests.conftest import LONG
from tests.needs import need
from tests.waiting import eventually

ROOT = Path(__file__).parents[1]
CI = ROOT / ".ci"
WITHIN = 280.0
"""Seconds for some ten starts of pytest on a busy machine."""

ALONE = (
    ["unshare", "--mount", "--net", "--ipc", "--pid", "--fork", "--kill-child", "--mount-proc", "sh", "-c"],
    "ip link set lo up && mount -t tmpfs tmpfs /dev/shm && mkdir -p /run/netns && mount -t tmpfs tmpfs /run/netns && "
    '"$@"; exit $?',
)
"""Runs a command in namespaces of its own: it sees nothing of other tests, and all it started ends with it."""

COMPANY = "import os\nCOMPANY = 'PYTEST_XDIST_WORKER' in os.environ\n"
FINE = "def test_fine(): pass\n"

slow = pytest.mark.slow


@cache
def isolated() -> bool:
    """Whether this machine lets us make those namespaces (root, Linux)."""
    if sys.platform != "linux" or os.geteuid() != 0 or not shutil.which("unshare"):
        return False
    return subprocess.run([*ALONE[0], ALONE[1], "sh", "true"], capture_output=True).returncode == 0


class Judged:
    def __init__(self, status: int, text: str) -> None:
        self.status, self.text = status, text
        self.lines = text.splitlines()
        self.counts = self.lines[-1] if self.lines else ""

    def reds(self) -> list[str]:
        return [line for line in self.lines if line.startswith("ci: red: ")]

    def unsteady(self) -> list[str]:
        return [line for line in self.lines if line.startswith("ci: unsteady: ")]


Judge = Callable[..., Judged]


@pytest.fixture
def judge(tmp_path: Path) -> Judge:
    """Judges a project with these test files, which several workers run at first."""
    root = tmp_path / "project"

    def run(files: dict[str, str], *options: str, workers: int = 2, first: str = "") -> Judged:
        root.mkdir()
        (root / "pyproject.toml").write_text(
            '[tool.pytest.ini_options]\naddopts = "-p no:nbmake -p no:anyio -p no:hypothesispytest"\n'  # start quickly
        )
        (root / "tests").mkdir()
        for name, text in files.items():
            (root / name).write_text(text)
        first = first or f"'{sys.executable}' -m pytest -n {workers} --dist loadfile {{args}}"
        command = [sys.executable, str(CI / "judge.py"), "--root", str(root), "--log", str(tmp_path / "log")]
        command += ["--docs", "", "--quiet", "5", "--grace", "10", "--first", first, *options]
        return judged(command)

    return run


def judged(command: list[str]) -> Judged:
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    alone = [*ALONE[0], ALONE[1], "sh"] if isolated() else []
    process = subprocess.Popen([*alone, *command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=env)
    try:
        text, _ = process.communicate(timeout=WITHIN)
    finally:
        _end(process)
    print(text)
    return Judged(process.returncode, text)


def _end(process: subprocess.Popen[Any]) -> None:
    """The judge, or the end of its namespaces, ends all processes that it started."""
    process.terminate()
    try:
        process.wait(30)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def loaded(name: str) -> ModuleType:
    """A module of `.ci`, which is on no path."""
    spec = importlib.util.spec_from_file_location(f"_ci_{name}", CI / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@slow
def test_what_passes_and_is_skipped_is_counted(judge: Judge):
    files = {"test_a.py": FINE + "import pytest\n@pytest.mark.skip\ndef test_not_here(): pass\n", "test_b.py": FINE}
    seen = judge(files)
    assert (seen.status, seen.counts) == (0, "2 passed, 0 failed, 1 skipped")
    assert re.fullmatch(r"ci: passed in (\d+ min )?\d+ s", seen.lines[-2])


@slow
def test_a_test_that_always_fails_is_red_at_once_and_shown(judge: Judge):
    seen = judge({"test_a.py": FINE + "def test_bad():\n    print('the cause')\n    assert 1 == 2\n"})
    assert (seen.status, seen.counts) == (1, "1 passed, 1 failed, 0 skipped")
    assert seen.reds() == ["ci: red: test_a.py::test_bad failed alone too, in repetition 1 of 3 (assert 1 == 2)"]
    assert any(line.startswith("FAILED test_a.py::test_bad") for line in seen.lines)
    assert seen.text.count("the cause") >= 4, "of the first pass, and of the repetition: the source and the output"
    assert seen.lines[-2].startswith("ci: failed in ")


@slow
def test_processes_that_the_tests_own_check_has_killed_are_red(judge: Judge):
    """That check fails the last test of a worker, which did nothing wrong and would pass alone."""
    conftest = (
        COMPANY
        + """
import pytest
@pytest.fixture(scope="session", autouse=True)
def nothing_left_behind():
    yield
    if COMPANY:
        pytest.fail("processes are left after the tests (killed now):\\n  17: python", pytrace=False)
"""
    )
    seen = judge({"tests/conftest.py": conftest, "tests/test_a.py": FINE})
    assert (seen.status, seen.counts) == (1, "0 passed, 1 failed, 0 skipped")
    assert "processes are left after the tests" in seen.reds()[0]
    assert "repeating" not in seen.text


@slow
def test_a_test_that_fails_one_time_in_three_by_itself_is_red(judge: Judge):
    text = """
from pathlib import Path
def test_third():
    with open("runs", "a") as file:
        file.write("x")
    assert len(Path("runs").read_text()) % 3 != 1
"""
    seen = judge({"test_a.py": text})
    assert (seen.status, seen.counts) == (1, "0 passed, 1 failed, 0 skipped")
    assert "in repetition 3 of 3" in seen.reds()[0]


@slow
def test_a_test_that_fails_only_beside_others_is_unsteady_and_remembered(judge: Judge, tmp_path: Path):
    text = (
        COMPANY
        + "def test_shy():\n    assert not COMPANY, 'somebody is looking'\ndef test_known():\n    assert not COMPANY\n"
    )
    table = (
        "| test | seen | found to be | state |\n|---|---|---|---|\n| `test_a.py::test_known` | once | a race | open |\n"
    )
    seen = judge({"test_a.py": text, "tests/unsteady.md": table})
    assert (seen.status, seen.counts) == (0, "2 passed, 0 failed, 0 skipped")
    assert seen.unsteady()[0] == "ci: unsteady: test_a.py::test_shy (AssertionError: somebody is looking)"
    added = [line for line in seen.lines if line.startswith("ci: add to tests/unsteady.md: ")]
    assert len(added) == 1 and "| `test_a.py::test_shy` | once: " in added[0] and added[0].endswith(" | open |")
    assert "test_a.py::test_shy (AssertionError: somebody is looking)" in (tmp_path / "log").read_text()


@slow
def test_what_was_unsteady_before_is_shown(judge: Judge, tmp_path: Path):
    (tmp_path / "log").write_text("2030-01-02 03:04 abc1234 tests/test_x.py::test_y (late)\n")
    seen = judge({"test_a.py": FINE})
    assert seen.lines[0] == "ci: unsteady before: 2030-01-02 03:04 abc1234 tests/test_x.py::test_y (late)"


KILLS = "def test_kills():\n    {when}os.kill(os.getpid(), 9)\ndef test_behind(): pass\ndef test_far_behind(): pass\n"


@slow
@pytest.mark.parametrize(
    ("when", "status", "counts"), [("", 1, "3 passed, 1 failed"), ("COMPANY and ", 0, "4 passed, 0 failed")]
)
def test_a_crashed_worker_is_found_and_the_tests_behind_it_run(judge: Judge, when: str, status: int, counts: str):
    seen = judge({"test_a.py": COMPANY + FINE + KILLS.format(when=when)})
    assert (seen.status, seen.counts) == (status, f"{counts}, 0 skipped")
    found = seen.reds() or seen.unsteady()
    assert len(found) == 1 and "test_a.py::test_kills" in found[0]
    assert seen.text.count("node down: Not properly terminated") == 1, "it was not run again by the next worker"
    assert ("its process ended with status -9" in found[0]) or ("crashed while running" in found[0])
    assert re.search(r"ci: worker gw\d crashed \(Not properly terminated; SIGKILL\)", seen.text)


CRASHES = """
def test_crashes():
    if COMPANY:
        import ctypes, subprocess
        subprocess.Popen(["sleep", "1000"], start_new_session=True)
        ctypes.string_at(0)
"""


@slow
def test_where_a_worker_crashed_is_said_and_what_it_left_is_no_leak(judge: Judge):
    seen = judge({"test_a.py": COMPANY + CRASHES, "test_b.py": FINE})
    assert (seen.status, seen.counts, seen.reds()) == (0, "2 passed, 0 failed, 0 skipped", [])
    said = re.split(r"ci: worker gw\d crashed \(Not properly terminated; SIGSEGV\)", seen.text)[-1]
    assert "in test_crashes" in said
    assert re.search(r"ci: left after the crash: process \d+: sleep 1000", said)


@slow
def test_tests_that_did_not_run_because_pytest_died_are_run_by_themselves(judge: Judge):
    text = """
import os
def test_fine(): pass
def test_kills():
    if not os.path.exists("once"):
        open("once", "w").close()
        os._exit(0)
def test_behind(): pass
"""
    seen = judge({"test_a.py": text}, workers=0)
    assert (seen.status, seen.counts) == (1, "3 passed, 0 failed, 0 skipped")
    assert seen.reds() == ["ci: red: pytest died in the first pass (status 0)"]
    assert "ci: ran alone: test_a.py::test_behind (passed)" in seen.lines


DAEMON = """
import subprocess
def test_leaves_a_daemon():
    subprocess.run(["setsid", "--fork", "env", "-i", "sleep", "{seconds}"], check=True)
"""


@slow
def test_a_process_that_is_left_is_red_whatever_it_did_to_be_forgotten(judge: Judge):
    need(sys.platform == "linux", "only Linux gives us orphans")
    seen = judge({"test_a.py": DAEMON.format(seconds=987654)})
    assert (seen.status, seen.counts) == (1, "1 passed, 0 failed, 0 skipped")
    assert re.fullmatch(r"ci: red: left after the first pass: process \d+: sleep 987654", seen.reds()[0])


@slow
def test_a_process_that_ends_within_the_quiet_minute_is_fine(judge: Judge):
    need(sys.platform == "linux", "only Linux gives us orphans")
    seen = judge({"test_a.py": DAEMON.format(seconds=2)}, "--quiet", "60")
    assert (seen.status, seen.reds()) == (0, [])


@slow
def test_what_is_left_on_the_machine_is_red(judge: Judge, tmp_path: Path):
    need(isolated(), "namespaces of its own need root on Linux, and unshare (apt install util-linux)")
    text = """
import subprocess
COMMANDS = '''
ip netns add left-space
ip link add left-bridge type bridge
ip link add left-end type veth peer name eth0 netns left-space
ip link set left-end master left-bridge
iptables -A INPUT -i left-bridge -j DROP
ipcmk -M 4096
touch /dev/shm/left-file
mount -t tmpfs tmpfs MOUNT
'''
def test_leaves():
    for command in COMMANDS.strip().splitlines():
        subprocess.run(command.split(), check=True)
"""
    (tmp_path / "mount").mkdir()
    seen = judge({"test_a.py": text.replace("MOUNT", str(tmp_path / "mount")) + FINE}, "--quiet", "1")
    assert (seen.status, seen.counts) == (1, "2 passed, 0 failed, 0 skipped")
    left = [line.split("first pass: ")[1] for line in seen.reds()]
    assert {re.sub(r"^(SysV shm) \d+$", r"\1", leak) for leak in left} == {
        "network namespace left-space",
        "link left-bridge",
        "link left-end",
        "firewall rule filter: -A INPUT -i left-bridge -j DROP",
        "SysV shm",
        "file /dev/shm/left-file",
        f"mount {tmp_path / 'mount'}",
    }


@slow
def test_what_a_repetition_leaves_is_red(judge: Judge):
    need(sys.platform == "linux", "only Linux gives us orphans")
    text = f"{COMPANY}{DAEMON.format(seconds=987654)}".replace(
        "    subprocess", "    assert not COMPANY\n    subprocess"
    )
    seen = judge({"test_a.py": text}, "--quiet", "1")
    assert (seen.status, seen.counts) == (1, "0 passed, 1 failed, 0 skipped")
    assert "left after repetition 1 of test_a.py::test_leaves_a_daemon" in seen.reds()[0]


@slow
def test_more_than_eight_failures_are_not_repeated(judge: Judge):
    text = COMPANY + "import pytest\n@pytest.mark.parametrize('i', range(9))\ndef test_bad(i): assert not COMPANY\n"
    seen = judge({"test_a.py": text + FINE})
    assert (seen.status, seen.counts) == (1, "1 passed, 9 failed, 0 skipped")
    assert seen.reds() == ["ci: red: 9 tests failed in the first pass: more than 8 are not repeated"]
    assert "repeating" not in seen.text


@slow
def test_repetitions_that_do_not_fit_are_red(judge: Judge):
    seen = judge({"test_a.py": COMPANY + "def test_shy(): assert not COMPANY\n"}, "--second-limit", "0")
    assert (seen.status, seen.counts) == (1, "0 passed, 1 failed, 0 skipped")
    assert "no time was left in the second pass for repetition 1 of 3" in seen.reds()[0]


@slow
def test_a_first_pass_that_hangs_is_ended_and_what_did_not_run_is_run(judge: Judge):
    hangs = COMPANY + "import time\ndef test_hangs():\n    while COMPANY: time.sleep(1)\ndef test_behind(): pass\n"
    seen = judge({"test_a.py": FINE + hangs}, "--first-limit", "30")
    assert (seen.status, seen.counts) == (0, "3 passed, 0 failed, 0 skipped")
    assert "ci: the first pass was ended after 30 s; running: test_a.py::test_hangs" in seen.lines
    assert "ci: not run: test_a.py::test_behind" in seen.lines
    assert len(seen.unsteady()) == 1 and "test_a.py::test_hangs (still running after " in seen.unsteady()[0]


@slow
def test_a_hang_by_itself_is_red(judge: Judge):
    hangs = COMPANY + "import time\ndef test_hangs():\n    assert not COMPANY\n    while True: time.sleep(1)\n"
    seen = judge({"test_a.py": FINE + hangs}, "--second-limit", "10")
    assert (seen.status, seen.counts) == (1, "1 passed, 1 failed, 0 skipped")
    assert len(seen.reds()) == 1
    assert "repetition 1 of 3 did not end within the limit of the second pass" in seen.reds()[0]


@slow
def test_a_judge_that_is_told_to_end_ends_all_that_it_started(tmp_path: Path):
    need(sys.platform == "linux", "only Linux gives us orphans")
    text = """
import subprocess, time
def test_hangs():
    subprocess.run(["setsid", "--fork", "env", "-i", "sh", "-c", "echo $$ > pid && mv pid daemon && sleep 987654"])
    time.sleep(987654)
"""
    (tmp_path / "test_a.py").write_text(text)
    command = [sys.executable, str(CI / "judge.py"), "--root", str(tmp_path), "--log", str(tmp_path / "log")]
    process = subprocess.Popen(
        [*command, "--docs", "", "--first", f"'{sys.executable}' -m pytest -p no:nbmake {{args}}"]
    )
    try:
        assert eventually((tmp_path / "daemon").exists, WITHIN)
    finally:
        _end(process)
    assert not psutil.pid_exists(int((tmp_path / "daemon").read_text()))


@slow
def test_a_file_that_cannot_be_collected_is_red(judge: Judge):
    seen = judge({"test_a.py": FINE, "test_b.py": "import no_such_module\n"})
    assert (seen.status, seen.counts) == (1, "1 passed, 1 failed, 0 skipped")
    assert "ci: red: test_b.py was not collected (" in seen.text


@slow
def test_where_all_is_skipped_nothing_was_tested(judge: Judge):
    seen = judge({"test_a.py": "import pytest\n@pytest.mark.skip\ndef test_not_here(): pass\n"})
    assert (seen.status, seen.counts) == (1, "0 passed, 0 failed, 1 skipped")
    assert seen.reds() == ["ci: red: no test was executed"]


def test_a_first_pass_that_ends_before_pytest_is_red(judge: Judge):
    seen = judge({}, first="false")
    assert (seen.status, seen.counts) == (1, "0 passed, 0 failed, 0 skipped")
    assert "ended with status 1 before pytest had begun" in seen.reds()[0]


@slow
def test_documentation_that_cannot_be_built_is_red(judge: Judge):
    seen = judge({"test_a.py": FINE}, "--docs", "false")
    assert (seen.status, seen.counts) == (1, "1 passed, 0 failed, 0 skipped")
    assert seen.reds() == ["ci: red: `false` ended with status 1"]


def test_more_than_five_open_entries_are_red_before_anything_runs(judge: Judge):
    rows = [f"| `test_a.py::test_{number}` | once | unknown | open |\n" for number in range(6)]
    table = "| test | seen | found to be | state |\n|---|---|---|---|\n" + "".join(rows)
    seen = judge({"tests/unsteady.md": table}, first="touch ran")
    assert (seen.status, seen.counts) == (1, "0 passed, 0 failed, 0 skipped")
    assert "6 unsteady tests are open in unsteady.md, and 5 may be" in seen.reds()[0]


def test_our_own_table_of_unsteady_tests_is_short_and_names_tests():
    unsteady = loaded("unsteady")
    entries = unsteady.entries(ROOT / "tests" / "unsteady.md")
    assert len([entry for entry in entries if entry.is_open]) <= unsteady.MOST_OPEN
    assert [entry.test for entry in entries if not (ROOT / entry.test.split("::")[0]).exists()] == []


def test_a_line_to_add_to_the_table_is_an_entry_of_it(tmp_path: Path):
    unsteady = loaded("unsteady")
    table = tmp_path / "unsteady.md"
    row = unsteady.row("tests/test_a.py::test_b[a|b]", "either | or", "abc1234")
    table.write_text(f"| test | seen | found to be | state |\n|---|---|---|---|\n{row}\n")
    [entry] = unsteady.entries(table)
    assert (entry.test, entry.is_open) == ("tests/test_a.py::test_b[a|b]", True)
    assert entry.found == "not looked into yet: either | or"


@pytest.mark.parametrize(
    ("test", "changed", "expected"),
    [
        ("tests/rank/test_ledger.py::test_a[x/y::z]", "kernel_ext/allranks/rank/order/ledger.py", True),
        ("tests/rank/test_ledger.py::test_a", "kernel_ext/allranks/head/stall.py", False),
        ("tests/rank/test_ledger.py::test_a", "tests/rank/test_ledger.py", True),
        ("tests/rank/test_ledger.py::test_a", "tests/rank/fidelity_probes.py", True),
        ("tests/rank/test_ledger.py::test_a", "tests/rank/test_evaluation_order.py", False),
        ("tests/rank/test_ledger.py::test_a", "kernel_ext/allranks/rank_pdb.py", False),
        ("tests/backends/test_ring.py::test_a", "backends/allranks_backends/plan.py", True),
        ("tests/browser/test_log.py::test_a", "widgets/js-src/src/log.js", True),
        ("tests/faults/test_death.py::test_a", "kernel_ext/allranks/pickling/pickle_values.py", True),
        ("tests/faults/test_death.py::test_a", "docs/index.md", False),
        ("tests/hosts/test_join.py::test_a", "kernel_ext/allranks/hosts/ssh.py", True),
        ("tests/jaccl/test_table.py::test_a", "tests/jaccl/lab/lab.py", True),
        ("tests/test_demo.py::test_a", "kernel_ext/allranks/demo.py", True),
        ("tests/test_demo.py::test_a", "tests/hosts/lab.py", False),
        ("notebooks/pipeline.ipynb::pipeline.ipynb", "notebooks/pipeline.ipynb", True),
        ("notebooks/pipeline.ipynb::pipeline.ipynb", "notebooks/gallery.ipynb", False),
    ],
)
def test_a_test_is_touched_by_what_it_tests(test: str, changed: str, expected: bool):
    assert loaded("touched").is_touched(test, [changed]) is expected


def test_every_test_file_names_code_that_is_there():
    touched = loaded("touched")
    files = [*(ROOT / "tests").rglob("test_*.py"), *(ROOT / "notebooks").glob("*.ipynb")]
    for path in files:
        tested = touched.tested_by(PurePosixPath(path.relative_to(ROOT).as_posix()))
        assert tested and all((ROOT / part).exists() for part in tested), path


def test_what_starts_first_is_there():
    assert [name for name in LONG if not (ROOT / name).exists()] == []


def test_the_commits_of_the_last_day_before_head_count(tmp_path: Path):
    need(shutil.which("git"), "git is not installed")
    for name, date in [("long_ago.py", "2030-01-01"), ("day.py", "2030-01-03T01:00"), ("last.py", "2030-01-03T20:00")]:
        (tmp_path / name).touch()
        git(tmp_path, date, "init", "-q")
        git(tmp_path, date, "add", "-A")
        git(tmp_path, date, "commit", "-qm", name)
    assert loaded("touched").changed_files(tmp_path) == ["day.py", "last.py"]


def git(folder: Path, date: str, *words: str) -> None:
    when = f"{date}Z" if "T" in date else f"{date}T00:00Z"
    who = {f"GIT_{role}_{part}": "a@b.example" for role in ("AUTHOR", "COMMITTER") for part in ("NAME", "EMAIL")}
    env = {**os.environ, **who, "GIT_AUTHOR_DATE": when, "GIT_COMMITTER_DATE": when, "GIT_CONFIG_GLOBAL": os.devnull}
    subprocess.run(["git", *words], cwd=folder, env=env, check=True)
