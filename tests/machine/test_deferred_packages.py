"""Packages whose `__init__` runs when it is needed. Each test uses a Python of its own, since imports last."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from allranks import Cluster

NOT_NEEDED = ("ipyparallel.__init__", "ipyparallel.cluster", "jupyter_client.manager")
LOADED = f"[name for name in {NOT_NEEDED} if name in sys.modules]"
"""The modules that were imported although neither a rank nor the controller needs them."""


def answer(code: str, *, path: Path | None = None) -> object:
    """The value of `answer` after `code` in a new Python, which also looks for modules in `path`."""
    run = f"import sys, json\nsys.path.insert(0, {str(path)!r})\n{code}\nprint(json.dumps(answer))"
    done = subprocess.run([sys.executable, "-c", run], capture_output=True, text=True, timeout=60, check=True)
    return json.loads(done.stdout)


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """The parent folder of a package `slow`, which notes in `sys` that its `__init__` has run."""
    folder = tmp_path / "slow"
    folder.mkdir()
    (folder / "__init__.py").write_text(
        "import sys\nsys.runs = getattr(sys, 'runs', 0) + 1\nfrom .part import Part\nname = 'late'\n"
    )
    (folder / "part.py").write_text("class Part: pass\n")
    return tmp_path


DEFERRED = "from allranks.machine.deferred_packages import defer\ndefer('slow', 'not_installed')\n"


def test_a_submodule_is_imported_without_the_init_of_its_package(package: Path) -> None:
    code = f"{DEFERRED}from slow import part\nimport slow.part as again\nanswer = [hasattr(sys, 'runs'), again is part]"
    assert answer(code, path=package) == [False, True]


def test_a_name_of_the_init_runs_it_once(package: Path) -> None:
    code = f"{DEFERRED}import slow\nfrom slow import Part\nanswer = [Part is slow.part.Part, slow.name, slow.name]"
    assert answer(f"{code}\nanswer.append(sys.runs)", path=package) == [True, "late", "late", 1]


def test_completion_and_star_import_see_all_names(package: Path) -> None:
    code = f"{DEFERRED}import slow\nanswer = ['name' in dir(slow), 'part' in dir(slow), sys.runs]"
    assert answer(code, path=package) == [True, True, 1]
    assert answer(f"{DEFERRED}from slow import *\nanswer = [name, Part.__name__, sys.runs]", path=package) == [
        "late",
        "Part",
        1,
    ]


def test_a_name_that_is_absent_is_an_attribute_error(package: Path) -> None:
    code = f"{DEFERRED}import slow\nanswer = [hasattr(slow, 'absent'), hasattr(slow, 'absent'), sys.runs]"
    assert answer(code, path=package) == [False, False, 1]


def test_two_threads_that_need_a_name_both_have_it(package: Path) -> None:
    with (package / "slow/__init__.py").open("a") as file:
        file.write("sys.entered.set()\nassert sys.go_on.wait(30)\nlast = 1\n")
    code = (
        f"{DEFERRED}import slow, threading\nsys.entered, sys.go_on, found = threading.Event(), threading.Event(), []\n"
        "threads = [threading.Thread(target=lambda: found.append(slow.last)) for _ in range(2)]\n"
        "threads[0].start()\nassert sys.entered.wait(30)\nthreads[1].start()\nsys.go_on.set()\n"
        "for each in threads: each.join(30)\nanswer = [found, sys.runs]"
    )
    assert answer(code, path=package) == [[1, 1], 1]


def test_a_package_that_is_imported_already_is_left_alone(package: Path) -> None:
    code = f"import slow\n{DEFERRED}answer = [type(slow).__name__, slow.name]"
    assert answer(code, path=package) == ["module", "late"]


def test_a_package_that_is_not_installed_is_reported_as_ever() -> None:
    code = (
        "from allranks.machine.deferred_packages import defer\ndefer('not_installed')\n"
        "try:\n    import not_installed\nexcept ModuleNotFoundError as error:\n    answer = error.name"
    )
    assert answer(code) == "not_installed"


def test_ranks_and_controller_import_what_they_need() -> None:
    engine = "from allranks.rank.process.import_engine import import_engine\nimport_engine()\n"
    assert answer(f"{engine}answer = {LOADED}") == []
    controller = "import allranks.hosts.ipyparallel_controller\n"
    assert answer(f"{controller}answer = {LOADED}") == []


def test_names_found_in_submodules_are_those_of_the_whole_package() -> None:
    """Else a rank would use something else than other processes."""
    code = (
        "from allranks.machine import deferred_packages\nimport importlib\n"
        "names = [name.rpartition('.') for name in deferred_packages._DEFINED_IN]\n"
        "deferred_packages.defer(*{package for package, _, _ in names})\n"
        "early = [getattr(importlib.import_module(package), name) for package, _, name in names]\n"
        "whole = [getattr(importlib.import_module(f'{package}.__init__'), name) for package, _, name in names]\n"
        "answer = [each.__name__ for each, other in zip(early, whole) if each is other]"
    )
    assert answer(code) == ["Dependency", "BlockingKernelClient", "write_connection_file"]


@pytest.mark.slow
def test_a_rank_that_has_started_has_not_needed_them_and_its_user_can(ring2: Cluster) -> None:
    assert [rank.value for rank in ring2.run(f"import sys\n{LOADED}").check().values()] == [[], []]
    there = "import ipyparallel\nfrom ipyparallel import *\n[ipyparallel.Cluster.__name__, Client.__name__]"
    assert ring2.run(there).check()[0].value == ["Cluster", "Client"]
    assert ring2.client[:].apply_sync(lambda: sum([1, 2])) == [3, 3]
