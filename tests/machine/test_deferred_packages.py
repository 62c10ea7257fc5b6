"""Packages whose `__init__` runs when it is needed. Each test uses a Python of its own, since imports last."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from allranks import Cluster

HAS_RUN = "type(sys.modules['ipyparallel']).__name__ == 'module'"
"""Whether ipyparallel's `__init__` has run, which neither a rank nor the controller needs."""


def answer(code: str, *, path: Path | None = None) -> Any:
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
    code = f"{DEFERRED}from slow.part import Part\nimport slow.part as part\nanswer = [part.Part is Part]"
    assert answer(f"{code}\nanswer.append(hasattr(sys, 'runs'))", path=package) == [True, False]


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
        file.write("sys.entered.set()\nassert sys.second.wait(30)\nimport time\ntime.sleep(0.2)\nlast = 1\n")
    code = (
        f"{DEFERRED}import slow, threading\nsys.entered, sys.second, found = threading.Event(), threading.Event(), []\n"
        "def use():\n"
        "    if sys.entered.is_set(): sys.second.set()\n"
        "    found.append(slow.last)\n"
        "threads = [threading.Thread(target=use) for _ in range(2)]\n"
        "threads[0].start()\nassert sys.entered.wait(30)\nthreads[1].start()\n"
        "for each in threads: each.join(30)\nanswer = [found, sys.runs]"
    )
    assert answer(code, path=package) == [[1, 1], 1]


def test_once_it_has_run_the_package_is_a_module_like_any_other(package: Path) -> None:
    with (package / "slow/__init__.py").open("a") as file:
        file.write("__version__ = '1'\ndef own(): pass\n")
    code = (
        f"{DEFERRED}import slow\nslow.name\n"
        "answer = [type(slow).__name__, slow.__version__, slow.own.__module__, hasattr(slow, 'absent'), sys.runs]"
    )
    assert answer(code, path=package) == ["module", "1", "slow", False, 1]


def test_an_init_that_fails_is_run_again(package: Path) -> None:
    with (package / "slow/__init__.py").open("a") as file:
        file.write("if sys.runs == 1: raise ImportError('not yet')\nlast = 1\n")
    code = f"{DEFERRED}import slow\ntry: slow.last\nexcept ImportError as error: answer = [str(error), slow.last]"
    assert answer(code, path=package) == ["not yet", 1]


def test_a_name_asked_for_while_the_init_runs_is_absent_as_in_any_import(package: Path) -> None:
    with (package / "slow/part.py").open("a") as file:
        file.write("import slow\nseen = hasattr(slow, 'name')\n")
    code = f"{DEFERRED}import slow\nanswer = [slow.name, slow.part.seen, sys.runs]"
    assert answer(code, path=package) == ["late", False, 1]


def test_the_package_can_be_pickled_before_and_after(package: Path) -> None:
    code = (
        f"{DEFERRED}import slow, cloudpickle\ndef f(): return slow\n"
        "def again(value): return cloudpickle.loads(cloudpickle.dumps(value))\n"
        "before = again(slow) is slow and again(f)() is slow\n"
        "answer = [before, hasattr(sys, 'runs'), slow.name, again(slow) is slow and again(f)() is slow]"
    )
    assert answer(code, path=package) == [True, False, "late", True]


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
    assert answer(f"{engine}answer = {HAS_RUN}") is False
    controller = "import allranks.hosts.ipyparallel_controller\n"
    assert answer(f"{controller}answer = {HAS_RUN}") is False


def test_names_found_in_submodules_are_those_of_the_whole_package() -> None:
    """Else a rank would use something else than other processes."""
    code = (
        "from allranks.machine import deferred_packages\nimport importlib\n"
        "names = [(package, name) for table in (deferred_packages._SUBMODULES, deferred_packages._FROM)\n"
        "         for package in table for name in sorted(table[package])]\n"
        "deferred_packages.defer('ipyparallel')\n"
        "early = [getattr(sys.modules[package], name) for package, name in names]\n"
        "deferred = [type(sys.modules[package]).__name__ for package, _ in names]\n"
        "for package, _ in names: dir(sys.modules[package])\n"
        "answer = [sorted(set(deferred)), [name for (package, name), one in zip(names, early)\n"
        "          if vars(sys.modules[package])[name] is one]]"
    )
    assert answer(code) == [["_Deferred"], ["error", "serialize", "util", "Dependency"]]


def test_each_submodule_can_be_imported_first_and_is_the_one_that_the_package_has() -> None:
    """A rank's user may import any of them, in any order; ``shellcmd`` cannot be imported at all (9.2)."""
    code = (
        "from allranks.rank.process.import_engine import import_engine\nimport_engine()\n"
        "import ipyparallel, os, pkgutil, importlib\nnames = [each.name for each in pkgutil.walk_packages(\n"
        "    sys.modules['ipyparallel'].__path__, 'ipyparallel.') if not each.name.endswith('__main__')]\n"
        "names = [each for each in names if not each.startswith(('ipyparallel.tests', 'ipyparallel.shellcmd'))]\n"
        "answer = [len(names)]\n"
        "for name in names:\n"
        "    if pid := os.fork():\n"
        "        if os.waitpid(pid, 0)[1]: answer.append(name)\n"
        "        continue\n"
        "    try: module = importlib.import_module(name)\n"
        "    except ModuleNotFoundError: os._exit(0)  # an optional library\n"
        "    except BaseException: os._exit(1)\n"
        "    dir(ipyparallel); ipyparallel.Cluster, ipyparallel.Client\n"
        "    os._exit(sys.modules[name] is not module)\n"
    )
    number, *failed = answer(code)
    assert number > 30 and not failed


@pytest.mark.slow
def test_a_rank_that_has_started_has_not_needed_them_and_its_user_can() -> None:
    with Cluster(2, name="deferred") as cluster:
        assert [rank.value for rank in cluster.run(f"import sys\n{HAS_RUN}").check().values()] == [False, False]
        assert cluster.client[:].apply_sync(lambda: sum([1, 2])) == [3, 3]
        cluster.run("import ipyparallel\ndef of(): return ipyparallel").check()
        assert [each().__name__ for each in cluster.pull("of")] == ["ipyparallel"] * 2
        there = "from ipyparallel import *\n[ipyparallel.Cluster.__name__, Client.__name__, type(ipyparallel).__name__]"
        assert cluster.run(there).check()[0].value == ["Cluster", "Client", "module"]
