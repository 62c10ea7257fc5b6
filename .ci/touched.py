"""Which tests the last commits touched: those are repeated more often.

"The last commits" are those of the 24 hours before HEAD's commit date, so that a push of several counts whole.
A test is touched by a change of

- its own file, or a file beside it or below its folder that is no test (helpers, conftest.py);
- the code that its folder tests: `tests/ROOM` tests `kernel_ext/allranks/ROOM`, but for the folders in TESTED;
- the code that its file tests, for files in `tests` itself: see TESTED, too.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterable
from pathlib import Path, PurePosixPath

DAY = 24 * 60 * 60
KERNEL_EXT = "kernel_ext/allranks"
CONNECTION = tuple(f"{KERNEL_EXT}/{room}" for room in ("lifeline", "messages", "pickling"))
"""What goes between the head, the hosts and the ranks."""
RANK = (f"{KERNEL_EXT}/host_process", f"{KERNEL_EXT}/rank", *CONNECTION)
"""What runs on a rank's host."""
WHOLE = (*(f"{KERNEL_EXT}/{room}" for room in ("cluster", "head", "host_process", "hosts", "rank")), *CONNECTION)
"""What starts ranks, runs cells on them and ends them."""
SEEN = (f"{KERNEL_EXT}/magics", f"{KERNEL_EXT}/notebook", *WHOLE)
"""The same, as a notebook uses it."""
TESTED: dict[str, tuple[str, ...]] = {
    "notebooks": SEEN,
    "tests/backends": ("backends",),
    "tests/browser": ("widgets", f"{KERNEL_EXT}/notebook", f"{KERNEL_EXT}/timeline"),
    "tests/faults": ("backends", *WHOLE),
    "tests/gpu": ("backends", *RANK),
    "tests/hosts": ("backends", f"{KERNEL_EXT}/discovery", *WHOLE),
    "tests/jaccl": ("backends", *RANK),
    "tests/messages": CONNECTION,
    "tests/rank": RANK,
    "tests/widgets": ("widgets",),
    "tests/test_check_arguments.py": (f"{KERNEL_EXT}/check_arguments.py", f"{KERNEL_EXT}/hosts_from_options.py"),
    "tests/test_up_options.py": (f"{KERNEL_EXT}/up_options.py", f"{KERNEL_EXT}/cluster_settings.py"),
    "tests/test_benchmarks.py": ("benchmarks",),
    "tests/test_ci.py": (".ci", "tests/unsteady.md"),
    "tests/test_demo.py": (f"{KERNEL_EXT}/demo.py", "notebooks/quickstart.ipynb"),
    "tests/test_docs_output.py": ("README.md", "docs", f"{KERNEL_EXT}/notebook"),
    "tests/test_environment.py": ("pyproject.toml", "environment.yml", "docs/conda"),
    "tests/test_frames.py": ("tests/frames.py",),
    "tests/test_imports.py": ("kernel_ext", "backends", "widgets"),
    "tests/test_notebooks.py": ("notebooks", *SEEN),
    "tests/test_packages.py": ("pyproject.toml", "hatch_build.py", "widgets/js-src"),
    "tests/test_programs.py": SEEN,
}


def changed_files(clone: Path) -> list[str]:
    """Files that the last commits changed. Empty where the folder is no clone."""
    date = _git(clone, "log", "-1", "--format=%ct")
    if not date:
        return []
    return sorted(set(_git(clone, "log", f"--since={int(date) - DAY}", "--name-only", "--format=").splitlines()) - {""})


def is_touched(test: str, changed: Iterable[str]) -> bool:
    """`test` is a pytest id. Both it and the files are relative to the clone."""
    file = PurePosixPath(test.split("::", 1)[0])
    tested = tested_by(file)
    return any(
        path == file
        or (path.is_relative_to(file.parent) and _helps(path, file.parent))
        or any(path.is_relative_to(part) for part in tested)
        for path in map(PurePosixPath, changed)
    )


def tested_by(file: PurePosixPath) -> tuple[str, ...]:
    """Files and folders of the code that a test file tests."""
    for place in (file, file.parent):
        if str(place) in TESTED:
            return TESTED[str(place)]
    if file.parts[0] == "tests" and len(file.parts) > 2:
        return (f"{KERNEL_EXT}/{file.parts[1]}",)
    return ()


def _helps(path: PurePosixPath, folder: PurePosixPath) -> bool:
    """A file that is no test; for tests in `tests` itself the files in folders below are another room's."""
    beside = path.parent == folder or len(folder.parts) > 1
    return beside and path.suffix != ".md" and path.suffix != ".ipynb" and not path.name.startswith("test_")


def _git(clone: Path, *words: str) -> str:
    command = ["git", "-c", "safe.directory=*", *words]
    done = subprocess.run(command, cwd=clone, capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else ""


def commit(clone: Path) -> str:
    """HEAD's short name."""
    return _git(clone, "rev-parse", "--short", "HEAD") or "unknown"
