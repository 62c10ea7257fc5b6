"""Modules of the working folder that have changed are executed again, on all ranks or on none."""

from __future__ import annotations

import gc
import importlib
import linecache
import os
import subprocess
import sys
import textwrap
import types
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import allranks
from allranks.rank.modules.reload import PreparedReload, Reloader


class Folder:
    """A working folder with modules, the user's names, and a reloader."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.names: dict[str, Any] = {}
        self.reloader = Reloader(self.names)
        self.number = 0

    def write(self, file: str, source: str) -> Path:
        path = self.path / file
        path.parent.mkdir(parents=True, exist_ok=True)
        before = path.stat() if path.exists() else None
        path.write_text(textwrap.dedent(source))
        if before is not None and path.stat().st_mtime_ns <= before.st_mtime_ns:  # a clock of few ticks
            os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns + 1))
        return path

    def cell(self, code: str) -> None:
        importlib.invalidate_caches()
        exec(textwrap.dedent(code), self.names)
        self.reloader.note(str(self.path))

    def value(self, expression: str) -> Any:
        return eval(expression, self.names)

    def prepare(self, committed: int = 0) -> PreparedReload:
        self.number += 1
        return self.reloader.prepare(self.number, committed, str(self.path))

    def decide(self, commit: bool) -> None:
        self.reloader.decide(self.number, commit)

    def reload(self) -> PreparedReload:
        prepared = self.prepare()
        assert prepared.error == ""
        self.decide(commit=True)
        return prepared


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Folder]:
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)
    modules, finders = dict(sys.modules), list(sys.meta_path)
    yield Folder(tmp_path)
    assert sys.meta_path == finders
    for name in set(sys.modules) - set(modules):
        del sys.modules[name]


def nothing(prepared: PreparedReload) -> bool:
    return prepared == PreparedReload([], [])


# Which modules


def test_a_module_that_did_not_change_is_left_alone(folder: Folder) -> None:
    folder.write("a.py", "print('executed')\nitems = []\n")
    folder.cell("import a; a.items.append(1)")
    assert nothing(folder.prepare())
    assert folder.value("a.items") == [1]


def test_a_function_that_changed(folder: Folder) -> None:
    folder.write("a.py", "def f(): return 1\n")
    folder.cell("import a")
    module = folder.value("a")
    folder.write("a.py", "def f(): return 2\n")
    assert folder.reload() == PreparedReload(["a"], [])
    assert folder.value("a.f()") == 2
    assert folder.value("a") is module is sys.modules["a"]
    assert nothing(folder.prepare())


def test_an_edit_of_the_same_size_in_the_same_second(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    path = folder.write("a.py", "X = 1\n")
    os.utime(path, ns=(10**18, 10**18))
    folder.cell("import a")
    assert Path(folder.value("a.__cached__")).exists()
    path.write_text("X = 2\n")
    os.utime(path, ns=(10**18, 10**18 + 1))
    assert folder.reload().reloaded == ["a"]
    assert folder.value("a.X") == 2


@pytest.mark.parametrize("without_bytecode", [False, True])
def test_an_edit_between_the_import_and_the_end_of_its_cell(
    folder: Folder, monkeypatch: pytest.MonkeyPatch, without_bytecode: bool
) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", without_bytecode)
    path = folder.write("a.py", "X = 1\n")
    os.utime(path, ns=(10**18, 10**18))

    def edit() -> None:
        path.write_text("X = 2\n")
        os.utime(path, ns=(10**18, 10**18 - 1))

    folder.names["edit"] = edit
    folder.cell("import a; edit()")
    assert folder.value("a.X") == 1
    assert folder.reload().reloaded == ["a"]
    assert folder.value("a.X") == 2


def test_an_import_that_failed_in_an_earlier_cell_is_not_an_older_version(folder: Folder) -> None:
    folder.write("a.py", "1 / 0\n")
    with pytest.raises(ZeroDivisionError):
        folder.cell("import a")
    folder.cell("")
    folder.write("a.py", "X = 1000\n")  # of another size: Python takes bytecode of the same size and second for current
    folder.cell("import a")
    assert nothing(folder.prepare())


def test_modules_that_were_there_before_the_reloader(folder: Folder) -> None:
    old = folder.write("a.py", "X = 1\n")
    folder.write("b.py", "X = 1\n")
    os.utime(old, (10**9, 10**9))
    folder.cell("import a, b")
    later = Folder(folder.path)
    newer = folder.write("b.py", "X = 2\n")
    os.utime(newer, ns=(newer.stat().st_atime_ns, later.reloader._since + 10**9))
    later.cell("")
    assert later.reload().reloaded == ["b"]
    assert folder.value("b.X") == 2


def test_a_module_that_was_imported_again_by_the_user(folder: Folder) -> None:
    folder.write("a.py", "X = 1\n")
    folder.cell("import a")
    folder.write("a.py", "X = 2\n")
    folder.cell("import sys; del sys.modules['a']; import a")
    assert nothing(folder.prepare())
    folder.write("a.py", "X = 3\n")
    assert folder.reload().reloaded == ["a"]
    assert folder.value("a.X") == 3


def test_installed_packages_environments_and_other_folders_are_left_alone(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    places = {"inst": "lib/site-packages", "deb": "dist-packages", "env": "venv/lib", "far": "../elsewhere"}
    monkeypatch.setattr(sys, "prefix", str(folder.path / "venv"))
    for name, place in places.items():
        folder.write(f"{place}/{name}.py", "X = 1\n")
        monkeypatch.syspath_prepend(os.path.abspath(folder.path / place))
    folder.write("own.py", "X = 1\n")
    (folder.path / "link.py").symlink_to(folder.write("../elsewhere/linked.py", "X = 1\n"))
    folder.cell("import inst, deb, env, far, link, own")
    folder.write("../elsewhere/linked.py", "X = 22\n")
    for name, place in places.items():
        folder.write(f"{place}/{name}.py", "X = 22\n")
    folder.write("own.py", "X = 22\n")
    assert folder.reload().reloaded == ["own"]


def test_a_folder_that_is_reached_by_a_link(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    folder.write("real/a.py", "X = 1\n")
    (folder.path / "link").symlink_to(folder.path / "real")
    monkeypatch.syspath_prepend(str(folder.path / "link"))
    folder.path = folder.path / "real"
    folder.cell("import a")
    folder.write("a.py", "X = 22\n")
    assert folder.reload().reloaded == ["a"]


def test_main_namespace_packages_and_modules_without_source_are_left_alone(folder: Folder) -> None:
    folder.write("space/inner.py", "X = 1\n")
    folder.cell("import space.inner")
    made = types.ModuleType("made")
    made.__file__ = str(folder.write("made.py", "X = 1\n"))
    sys.modules["made"] = made
    folder.cell("")
    folder.write("made.py", "X = 22\n")
    folder.write("space/inner.py", "X = 22\n")
    assert folder.reload().reloaded == ["space.inner"]
    assert folder.value("space.inner.X") == 22


def test_another_working_folder(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    folder.write("one/a.py", "X = 1\n")
    folder.write("two/b.py", "X = 1\n")
    monkeypatch.syspath_prepend(str(folder.path / "one"))
    monkeypatch.syspath_prepend(str(folder.path / "two"))
    top, folder.path = folder.path, folder.path / "one"
    folder.cell("import a, b")
    folder.write("a.py", "X = 22\n")
    folder.path = top / "two"
    assert nothing(folder.prepare())
    folder.path = top / "one"
    assert folder.reload().reloaded == ["a"]
    folder.write("../two/b.py", "X = 22\n")
    folder.path = top / "two"
    assert folder.reload().reloaded == ["b"]


def test_allranks_itself_is_left_alone() -> None:
    """Those who change allranks may work in its folder."""
    folder = Folder(Path(allranks.__file__).parents[1])
    folder.cell("import allranks")
    assert folder.reloader._folder.has(allranks.__file__)
    assert [name for name in folder.reloader._sources if name.startswith("allranks.")] == []


# In which order


@pytest.mark.parametrize(("user", "used"), [("a", "z"), ("z", "a")])
@pytest.mark.parametrize("first", ["user", "used"])
def test_constants_of_another_changed_module_are_the_new_ones(folder: Folder, user: str, used: str, first: str) -> None:
    folder.write(f"{user}.py", f"from {used} import RATE\nTWICE = RATE * 2\n")
    folder.write(f"{used}.py", "RATE = 1\n")
    folder.cell(f"import {user if first == 'user' else used}; import {user}")
    folder.write(f"{user}.py", f"from {used} import RATE\nTWICE = RATE * 20\n")
    folder.write(f"{used}.py", "RATE = 10\n")
    assert folder.reload().reloaded == [used, user]
    assert folder.value(f"{user}.TWICE") == 200


def test_a_cycle(folder: Folder) -> None:
    folder.write("a.py", "import b\nX = 1\ndef f(): return b.Y\n")
    folder.write("b.py", "import a\nY = 1\ndef g(): return a.X\n")
    folder.cell("import a")
    folder.write("a.py", "import b\nX = 10\ndef f(): return b.Y\n")
    folder.write("b.py", "import a\nY = 10\ndef g(): return a.X\n")
    assert sorted(folder.reload().reloaded) == ["a", "b"]
    assert folder.value("a.f(), a.b.g()") == (10, 10)


def test_a_package_with_relative_imports(folder: Folder) -> None:
    folder.write("pkg/__init__.py", "from . import inner\nfrom .other import X as Y\nZ = inner.X\n")
    folder.write("pkg/inner.py", "from .other import X\n")
    folder.write("pkg/other.py", "X = 1\n")
    folder.cell("import pkg")
    inner = folder.value("pkg.inner")
    folder.write("pkg/__init__.py", "from . import inner\nfrom .other import X as Y\nZ = inner.X * 1\n")
    folder.write("pkg/inner.py", "from .other import X\nX += 1\n")
    folder.write("pkg/other.py", "X = 10\n")
    assert folder.reload().reloaded == ["pkg.other", "pkg.inner", "pkg"]
    assert folder.value("pkg.Y, pkg.Z") == (10, 11)
    assert folder.value("pkg.inner") is inner is sys.modules["pkg.inner"]


def test_a_submodule_alone_which_another_one_imports_from_the_package(folder: Folder) -> None:
    folder.write("pkg/__init__.py", "count = []\ncount.append(1)\n")
    folder.write("pkg/alpha.py", "from pkg import omega\nX = omega.X\n")
    folder.write("pkg/omega.py", "X = 1\n")
    folder.cell("import pkg.alpha")
    folder.write("pkg/alpha.py", "from pkg import omega\nX = omega.X * 1\n")
    folder.write("pkg/omega.py", "X = 10\n")
    folder.cell("pkg.count.append(2)")
    assert folder.reload().reloaded == ["pkg.omega", "pkg.alpha"]
    assert folder.value("pkg.alpha.X") == 10
    assert folder.value("pkg.count") == [1, 2]
    assert folder.value("pkg.alpha") is sys.modules["pkg.alpha"]


def test_a_package_keeps_a_function_that_is_called_like_its_submodule(folder: Folder) -> None:
    folder.write("pkg/__init__.py", "from .train import train\n")
    folder.write("pkg/train.py", "def train(): return 1\n")
    folder.write("main.py", "from pkg.train import train as t\nfrom pkg import train\n")
    folder.cell("import pkg, main")
    folder.write("pkg/train.py", "def train(): return 20\n")
    folder.write("main.py", "from pkg.train import train as t\nfrom pkg import train\nimport pkg\npkg.flag = None\n")
    assert folder.reload().reloaded == ["pkg.train", "main"]
    assert folder.value("pkg.train(), main.train(), main.t()") == (20, 20, 20)
    assert folder.value("pkg.flag") is None
    assert type(folder.value("pkg")) is types.ModuleType


def test_a_module_with_two_names_is_executed_once(folder: Folder) -> None:
    folder.write("a.py", "import builtins\nX = 1\n")
    folder.write("b.py", "import second\nY = second.X\n")
    folder.cell("import sys, a; sys.modules['second'] = a; import b")
    module = folder.value("a")
    folder.write("a.py", "runs = globals().get('runs', 0) + 1\nX = 10\n")
    folder.write("b.py", "import second\nY = second.X * 1\n")
    assert folder.reload().reloaded == ["a", "b"]
    assert sys.modules["a"] is sys.modules["second"] is module
    assert (module.runs, module.__name__, folder.value("a.__spec__.name"), folder.value("b.Y")) == (1, "a", "a", 10)


def test_a_module_whose_package_does_not_exist(folder: Folder) -> None:
    path = folder.write("a.py", "X = 1\n")
    folder.names["path"] = str(path)
    folder.cell("""
        import sys
        from importlib.util import module_from_spec, spec_from_file_location
        spec = spec_from_file_location("no.package", path)
        module = module_from_spec(spec)
        sys.modules["no.package"] = module
        spec.loader.exec_module(module)
    """)
    folder.write("a.py", "X = 10\n")
    assert folder.reload().reloaded == ["no.package"]
    assert folder.value("module.X") == 10


def test_a_module_sees_its_own_spec_and_loader(folder: Folder) -> None:
    folder.write("a.py", "SPEC = __spec__.name\n")
    folder.cell("import a")
    spec, loader = folder.value("a.__spec__"), folder.value("a.__loader__")
    folder.write("a.py", "SPEC = __spec__.name + ' ' + __spec__.loader.get_filename()\n")
    folder.reload()
    assert folder.value("a.SPEC") == f"a {folder.path / 'a.py'}"
    assert folder.value("a.__spec__") is spec and folder.value("a.__loader__") is loader


def test_a_module_that_did_not_change_keeps_constants_and_gets_functions(folder: Folder) -> None:
    folder.write("a.py", "def f(): return 1\nclass C: pass\nX = 1\n")
    folder.write("b.py", "from a import C, X, f\nruns = []\n")
    folder.cell("import b; b.runs.append(1)")
    folder.write("a.py", "def f(): return 10\nclass C: pass\nX = 10\n")
    assert folder.reload().reloaded == ["a"]
    assert folder.value("b.f(), b.X, b.runs") == (10, 1, [1])
    assert folder.value("b.C") is sys.modules["a"].C and folder.value("b.f") is sys.modules["a"].f


def test_a_new_file_is_imported_by_a_changed_one(folder: Folder) -> None:
    folder.write("a.py", "X = 1\n")
    os.utime(folder.path, (10**9, 10**9))
    folder.cell("import a")
    folder.write("fresh.py", "X = 10\n")
    folder.write("a.py", "from fresh import X\n")
    os.utime(folder.path, (10**9, 10**9))  # written so soon that the time of the folder is the same
    assert folder.reload().reloaded == ["a"]
    assert folder.value("a.X") == 10
    folder.write("fresh.py", "X = 100\n")
    folder.write("a.py", "from fresh import X\nX += 1\n")
    assert folder.reload().reloaded == ["fresh", "a"]
    assert folder.value("a.X") == 101


def test_names_that_the_new_source_lacks_stay(folder: Folder) -> None:
    folder.write("a.py", "def f(): return 1\nX = 1\n")
    folder.cell("import a")
    folder.write("a.py", "Y = 2\n")
    folder.reload()
    assert folder.value("a.f(), a.X, a.Y") == (1, 1, 2)


# All or none


@pytest.mark.parametrize(
    ("source", "error"),
    [
        ("X = 2\ndef f(:\n    pass\n", "c.py, line 2: SyntaxError: invalid syntax"),
        ("X = 2\n\n1 / 0\n", "c.py, line 3: ZeroDivisionError: division by zero"),
        ("X = 2\nraise SystemExit('bye\\n  now')\n", "c.py, line 2: SystemExit: bye now"),
        ("X = 2\nraise ValueError\n", "c.py, line 2: ValueError"),
        (
            "import json\njson.loads('{')\n",
            "c.py, line 2: JSONDecodeError: Expecting property name enclosed in double ",
        ),
        ("import sub.deep\nsub.deep.fail()\n", "sub/deep.py, line 2: RuntimeError: deep"),
        ("eval('1 +')\n", "c.py, line 1: SyntaxError: invalid syntax"),
        ("from nowhere import nothing\n", "c.py, line 1: ModuleNotFoundError: No module named 'nowhere'"),
        ("X = '\0'\n", "c.py"),
    ],
)
def test_all_modules_are_put_back_if_one_raises(folder: Folder, source: str, error: str) -> None:
    folder.write("sub/__init__.py", "")
    folder.write("sub/deep.py", "def fail():\n    raise RuntimeError('deep')\n")
    for name in "bcd":
        folder.write(f"{name}.py", f"X = 1\ndef f(): return '{name}'\n")
    folder.cell("import b, c, d; from b import f")
    before = {name: dict(vars(sys.modules[name])) for name in "bcd"}
    modules = {name: sys.modules[name] for name in "bcd"}
    folder.write("b.py", "X = 2\nY = 2\ndef f(): return 2\n")
    folder.write("c.py", source)
    folder.write("d.py", "X = 2\nY = 2\ndef f(): return 2\n")
    for _ in range(2):  # it counts as changed until it succeeds
        prepared = folder.prepare()
        assert prepared.error.startswith(error)
        assert (prepared.reloaded, prepared.removed) == ([], [])
        assert {name: sys.modules[name] for name in "bcd"} == modules
        assert {name: dict(vars(sys.modules[name])) for name in "bcd"} == before
        assert folder.value("f()") == "b"
        folder.decide(commit=True)
        assert folder.value("b.X") == 1
    folder.write("c.py", "X = 2\n")
    assert folder.reload().reloaded == ["b", "c", "d"]
    assert folder.value("b.X, c.X, d.X, f()") == (2, 2, 2, 2)


def test_an_interrupt_puts_everything_back_and_is_raised(folder: Folder) -> None:
    folder.write("pkg/__init__.py", "")
    folder.write("pkg/a.py", "X = 1\n")
    folder.cell("import pkg.a")
    folder.write("pkg/a.py", "X = 2\nraise KeyboardInterrupt\n")
    with pytest.raises(KeyboardInterrupt):
        folder.prepare()
    assert folder.value("pkg.a.X") == 1
    folder.write("pkg/a.py", "X = 3\n")
    folder.reload()
    assert folder.value("pkg.a.X") == 3


def test_undo(folder: Folder) -> None:
    folder.write("pkg/__init__.py", "from . import a\nX = a.X\n")
    folder.write("pkg/a.py", "X = 1\nclass C:\n    def f(self): return 1\n")
    folder.cell("import pkg; from pkg.a import C; c = C()")
    before = dict(folder.value("vars(pkg)")), dict(folder.value("vars(pkg.a)"))
    folder.write("pkg/__init__.py", "from . import a\nX = a.X + 1\nY = 1\n")
    folder.write("pkg/a.py", "X = 10\nclass C:\n    def f(self): return 10\n")
    for _ in range(2):
        assert folder.prepare().reloaded == ["pkg.a", "pkg"]
        assert folder.value("pkg.X") == 11
        folder.decide(commit=False)
        assert (dict(folder.value("vars(pkg)")), dict(folder.value("vars(pkg.a)"))) == before
        assert folder.value("c.f(), type(c) is C is pkg.a.C") == (1, True)
    folder.reload()
    assert folder.value("c.f(), type(c) is C is pkg.a.C, pkg.X") == (10, True, 11)


@pytest.mark.parametrize("committed", [0, 1])
def test_a_decision_that_was_lost_is_known_from_the_next_request(folder: Folder, committed: int) -> None:
    folder.write("a.py", "def f(): return 1\n")
    folder.cell("import a; from a import f")
    folder.write("a.py", "def f(): return 2\n")
    assert folder.prepare().reloaded == ["a"]
    assert folder.prepare(committed).reloaded == ([] if committed else ["a"])
    assert folder.value("f()") == (2 if committed else 1)
    folder.decide(commit=False)
    assert folder.value("a.f()") == (2 if committed else 1)


def test_a_decision_for_another_reload_or_a_repeated_one_is_ignored(folder: Folder) -> None:
    folder.write("a.py", "X = 1\n")
    folder.cell("import a")
    folder.reloader.decide(0, True)
    folder.write("a.py", "X = 2\n")
    folder.prepare()
    folder.reloader.decide(folder.number + 1, False)
    folder.reloader.decide(folder.number - 1, False)
    assert folder.value("a.X") == 2
    folder.decide(commit=True)
    folder.decide(commit=False)
    assert folder.value("a.X") == 2


@pytest.mark.parametrize("commit", [False, True])
def test_a_module_whose_file_is_gone(folder: Folder, commit: bool) -> None:
    folder.write("pkg/__init__.py", "")
    folder.write("pkg/old.py", "def f(): return 1\n")
    folder.write("b.py", "import pkg.old\n")
    folder.cell("import b, pkg.old; from pkg.old import f")
    (folder.path / "pkg/old.py").rename(folder.path / "pkg/new.py")
    folder.write("b.py", "import pkg.new\n")
    assert folder.prepare() == PreparedReload(["b"], ["pkg.old"])
    assert "pkg.old" in sys.modules
    folder.decide(commit)
    assert ("pkg.old" in sys.modules) is folder.value("hasattr(pkg, 'old')") is not commit
    assert folder.value("f()") == 1
    assert nothing(folder.prepare()) is commit


def test_tracebacks_show_the_new_lines(folder: Folder) -> None:
    path = folder.write("a.py", "def f():\n    return 1 / 0  # old\n")
    folder.cell("import a")
    assert "old" in linecache.getline(str(path), 2)
    folder.write("a.py", "def f():\n    return 1 / 0  # changed\n")
    folder.reload()
    assert "changed" in linecache.getline(str(path), 2)


def test_what_a_module_prints_is_printed_and_nothing_else(folder: Folder, capsys: pytest.CaptureFixture[str]) -> None:
    folder.write("a.py", "X = 1\n")
    folder.cell("import a")
    folder.write("a.py", "print('hello')\n")
    folder.reload()
    assert capsys.readouterr() == ("hello\n", "")


# References to what was replaced


def test_names_of_the_notebook(folder: Folder) -> None:
    folder.write(
        "a.py",
        """
        import functools
        def f(): return 1
        class C: pass
        @functools.lru_cache
        def cached(): return 1
        class Model:
            def __call__(self): return 1
        model = Model()
        X = 1
        """,
    )
    folder.cell("from a import C, X, cached, f, model; from a import f as g; cached()")
    model = folder.value("model")
    old_cached = folder.value("cached")
    folder.write("a.py", (folder.path / "a.py").read_text().replace("1", "10"))
    folder.reload()
    assert folder.value("f(), g(), cached(), X, model()") == (10, 10, 10, 1, 10)
    assert old_cached() == 10
    assert folder.value("model") is model  # an instance may hold what was trained
    assert folder.value("C") is sys.modules["a"].C and folder.value("g") is sys.modules["a"].f


def test_functions_that_something_else_holds(folder: Folder) -> None:
    folder.write("a.py", "def f(x=1, *, y=1): return 'old', x, y\n")
    folder.cell("import a; from functools import partial; held = [a.f, partial(a.f)]")
    for number in (2, 3):
        folder.write("a.py", f"def f(x={number}, *, y={number}, z: int = 0): 'doc'; return 'new', x, y\n")
        folder.reload()
        for held in folder.value("held"):
            assert held() == ("new", number, number)
        assert folder.value("held[0].__doc__, held[0].__annotations__") == (
            "doc",
            {"z": int},
        )


def test_a_function_that_is_imported_now_or_was_is_not_changed_in_its_own_module(folder: Folder) -> None:
    folder.write("a.py", "from os.path import join, basename as f\ndef g(): return 1\n")
    folder.cell("import a; held = [a.join, a.g, a.f]")
    folder.write("a.py", "from os.path import join, dirname as f, basename as g\n")
    folder.reload()
    assert os.path.join("x", "y") == "x/y" and os.path.basename("x/y") == "y"
    assert folder.value("a.f('x/y'), a.g('x/y'), held[1]()") == ("x", "y", 1)


def test_decorated_functions(folder: Folder) -> None:
    source = """
        from deco import decorate
        calls = []
        def counted(function, seen=calls):
            count = 0
            def wrapper():
                nonlocal count
                count += 1
                return function(), count
            return wrapper
        @decorate
        def f(): return "old"
        @counted
        def g(): return "old"
    """
    folder.write(
        "deco.py",
        """
        import functools
        def decorate(function):
            @functools.wraps(function)
            def wrapper(*args): return "decorated", function(*args)
            return wrapper
        """,
    )
    folder.write("a.py", source)
    folder.cell("import a; held = [a.f, a.g]; a.g()")
    folder.write("a.py", source.replace('"old"', '"new"'))
    folder.reload()
    assert folder.value("held[0]()") == folder.value("a.f()") == ("decorated", "new")
    assert folder.value("held[1]()") == ("new", 2)
    assert folder.value("a.g()") == ("new", 1)


def test_a_function_with_other_free_variables(folder: Folder) -> None:
    folder.write("a.py", "def make():\n    x = 1\n    return lambda: x\nf = make()\ndef g(): return 1\n")
    folder.cell("import a; from a import f; held = [a.f, a.g]")
    folder.write("a.py", "def make():\n    x = y = 10\n    return lambda: x + y\nf = make()\ndef g(): return 10\n")
    folder.reload()
    assert folder.value("f(), a.f(), held[0](), held[1]()") == (20, 20, 1, 10)


CLASSES = """
    from dataclasses import dataclass, field
    from enum import Enum, IntEnum

    class Base(dict):  # like mlx.nn.Module
        def __init__(self, *args):
            super().__init__()
            self["args"] = args
        def __setattr__(self, name, value): self[name] = value
        def __getattr__(self, name):
            try:
                return self[name]
            except KeyError:
                raise AttributeError(name) from None

    class Model(Base):
        table = {"x": 1}
        def call(self): return "old"
        def gone(self): return "old"
        @property
        def size(self): return "old"
        @property
        def settable(self): return 1
        @classmethod
        def make(cls): return cls(), "old"
        @staticmethod
        def static(): return "old"
        class Inner:
            def call(self): return "old"

    @dataclass
    class Point:
        x: int = 1
        def call(self): return "old", self.x

    @dataclass(slots=True)
    class Slotted:
        x: int = 1
        def call(self): return "old", self.x

    class Color(Enum):
        RED = 1
        BLUE = 2
        def call(self): return "old"

    class Level(IntEnum):
        LOW = 1

    class Loose: pass
"""
NEW = (
    CLASSES.replace('"old"', '"new"')
    .replace('"x": 1', '"x": 1, "y": 2')
    .replace("def gone", "def came")
    .replace(
        "def settable(self): return 1",
        "def settable(self): return 1\n        @settable.setter\n        def settable(self, value): self.was = value",
    )
    .replace("RED = 1", "RED = 7")
    .replace("BLUE = 2", "BLUE = 2\n        GREEN = 3")
    .replace("class Loose: pass", "class Loose: more = 1")
)


def test_live_instances_have_the_methods_of_the_new_class(folder: Folder) -> None:
    folder.write("a.py", CLASSES)
    folder.cell("""
        import a
        from a import Model
        class Mine(a.Model):
            def call(self): return "mine", super().call()
        model, mine, inner, point, slotted = a.Model(1), Mine(), a.Model.Inner(), a.Point(5), a.Slotted(5)
        held = model.call, a.Model, a.Model.Inner, a.Model.static, a.Point
    """)
    for new in (NEW, NEW.replace('"new"', '"newest"')):
        word = "newest" if "newest" in new else "new"
        folder.write("a.py", new)
        folder.reload()
        assert folder.value("model.call(), model.came(), model.size, model.static(), inner.call()") == (word,) * 5
        assert folder.value("model.make()[1], mine.call()") == (word, ("mine", word))
        assert folder.value("model['args'], model.table, hasattr(model, 'gone')") == ((1,), {"x": 1, "y": 2}, False)
        assert folder.value("type(model).settable.fset and held[1].settable.fset")
        assert folder.value("point.call(), point == a.Point(5), point.x") == ((word, 5), True, 5)
        assert folder.value("slotted.call(), slotted == a.Slotted(5)") == ((word, 5), True)
        assert folder.value("type(model) is Model is a.Model and isinstance(mine, a.Model)")
        assert folder.value("isinstance(inner, a.Model.Inner) and isinstance(Mine(), a.Model)")
        # What something else still holds.
        assert folder.value("held[0](), held[1]().call(), held[2]().call(), held[3]()") == (word,) * 4
        assert folder.value("held[1].static(), held[1].make()[1], held[1](2)['args']") == (word, word, (2,))
        assert folder.value("isinstance(held[1](), a.Model) and isinstance(held[4](2), a.Point)")
        assert folder.value("hasattr(held[1], 'gone'), held[1].came(model)") == (False, word)


def test_members_of_enums(folder: Folder) -> None:
    folder.write("a.py", CLASSES)
    folder.cell("import a; from a import Color; red, low, many = Color.RED, a.Level.LOW, [Color.RED]")
    folder.write("a.py", NEW)
    folder.reload()
    assert folder.value("red is a.Color.RED, Color is a.Color, low is a.Level.LOW, Color(3).name") == (
        *(True,) * 3,
        "GREEN",
    )
    # In containers, a member of the old enum stays another object: `==` is False, as in autoreload.
    assert folder.value("isinstance(many[0], a.Color), many[0].call(), many[0].value") == (True, "new", 7)


def test_super_in_a_method_that_had_none_and_in_one_that_had_it(folder: Folder) -> None:
    base = "class Base:\n    def f(self): return 'base'\n"
    folder.write("a.py", base + "class C(Base):\n    def f(self): return 'old'\n    def g(self): return super().f()\n")
    folder.cell("import a; c = a.C(); f, g, held = c.f, c.g, a.C")
    folder.write(
        "a.py",
        base + "class C(Base):\n    def f(self): return super().f()\n    def g(self): return super().f() + '!'\n",
    )
    folder.reload()
    assert folder.value("c.f(), c.g(), a.C().f(), held().g()") == ("base", "base!", "base", "base!")
    assert folder.value("g()") == "base!"
    assert folder.value("f()") == "old"  # the old function cannot take the code of one with a free variable


def test_instances_whose_layout_does_not_fit_keep_their_class(folder: Folder) -> None:
    source = """
        class S:
            __slots__ = ("x", "y")
            def f(self): return "old", self.x, super().__getattribute__("x")
        class V:
            __slots__ = ("x",)
            def f(self): return "old", self.x
        class T:
            def f(self): return "old"
    """
    folder.write("a.py", source)
    folder.cell("import a; s, v, t, held = a.S(), a.V(), a.T(), [a.S]; s.x = v.x = 5; s.y = 6")
    source = source.replace('"old"', '"new"').replace('("x", "y")', '("x", "z")').replace('__slots__ = ("x",)', "x = 1")
    folder.write("a.py", source)
    folder.reload()
    assert folder.value("s.f(), v.f(), t.f()") == (("new", 5, 5), ("new", 5), "new")
    assert folder.value("s.y, hasattr(s, 'z'), hasattr(a.S(), 'y')") == (6, False, False)
    assert folder.value("type(s) is type(held[0]()) is held[0], type(t) is a.T") == (True, True)


def test_a_class_in_a_cycle_or_in_a_module_that_did_not_change(folder: Folder) -> None:
    folder.write("a.py", "class Base:\n    def f(self): return 1\n")
    folder.write("b.py", "import a\nclass Sub(a.Base): pass\nsub = Sub()\nregistry = {'base': a.Base}\n")
    folder.cell("import a, b")
    folder.write("a.py", "class Base:\n    def f(self): return 10\n    def g(self): return 10\n")
    assert folder.reload().reloaded == ["a"]
    assert folder.value("b.sub.f(), b.sub.g(), isinstance(b.sub, a.Base)") == (10, 10, True)
    assert folder.value("type(b.registry['base']()) is a.Base")


def test_a_class_that_became_an_imported_one(folder: Folder) -> None:
    folder.write("a.py", "class C:\n    def f(self): return 1\n")
    folder.cell("import a; c = a.C()")
    folder.write("moved.py", "Y = 10\nclass C:\n    def f(self): return Y\n")
    folder.write("a.py", "from moved import C\n")
    folder.reload()
    assert folder.value("isinstance(c, a.C), c.f()") == (True, 10)


def test_two_names_of_a_class(folder: Folder) -> None:
    folder.write("a.py", "class Big: size = 2\nclass Small: size = 1\nModel = Big\n")
    folder.cell("from a import Big, Model; big = Big()")
    folder.write("a.py", "class Big: size = 20\nclass Small: size = 10\nModel = Small\n")
    folder.reload()
    assert folder.value("Big.size, Model.size, big.size") == (20, 10, 20)


def test_what_cannot_be_updated_does_not_stop_the_update_of_the_rest(folder: Folder) -> None:
    source = """
        class Meta(type):
            def __setattr__(cls, name, value): raise RuntimeError("no")
            def __eq__(cls, other): raise RuntimeError("no")
            __hash__ = type.__hash__
        class A(metaclass=Meta):
            def f(self): return 1
        class Odd:
            __name__ = "odd"
            def __call__(self): return 1
            def cache_clear(self): raise RuntimeError("no")
        odd = Odd()
        class Compiled:  # like what mx.compile returns
            __slots__ = ("graph",)
            __name__ = "compiled"
            __class__ = property(lambda self: type(lambda: 0))
            def __call__(self): return 1
        compiled = Compiled()
        class Z:
            def f(self): return 1
        def g(): return 1
    """
    folder.write("a.py", source)
    folder.cell("import a; from a import compiled, g, odd; first, last, held = a.A(), a.Z(), [a.g]")
    folder.write("a.py", source.replace("1", "10"))
    folder.reload()
    assert folder.value("first.f(), last.f(), odd(), compiled(), g(), held[0]()") == (10,) * 6
    assert folder.value("compiled is a.compiled")


def test_an_old_function_that_nothing_holds_is_freed(folder: Folder) -> None:
    folder.write("a.py", "def f(): return 1\nclass C:\n    def f(self): return 1\n")
    folder.cell("import a")
    old = weakref.ref(folder.value("a.f")), weakref.ref(folder.value("a.C"))
    folder.write("a.py", "def f(): return 10\nclass C:\n    def f(self): return 10\n")
    folder.reload()
    gc.collect()
    assert [one() for one in old] == [None, None]


def test_the_module_needs_neither_mlx_nor_ipython_before_the_first_commit() -> None:
    code = "import sys, allranks.rank.modules.reload; print({'mlx', 'IPython', 'numpy'} & set(sys.modules))"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "set()"


def test_a_module_whose_file_comes_back_is_the_same_module(folder: Folder) -> None:
    """As after `git checkout` of another branch, and back: instances stay those of the class that can be imported."""
    folder.write("there.py", "class C:\n    v = 1\n")
    folder.cell("import there; c = there.C(); module = there")
    (folder.path / "there.py").unlink()
    assert folder.reload().removed == ["there"] and "there" not in sys.modules
    folder.write("there.py", "class C:\n    v = 22\n")
    assert folder.reload().reloaded == ["there"]
    folder.cell("import there")
    assert folder.value("there is module and isinstance(c, there.C) and c.v") == 22


def test_a_package_whose_import_failed_is_imported_from_the_start(folder: Folder) -> None:
    folder.write("broken/__init__.py", "from .net import Net\n")
    folder.write("broken/layers.py", "L = 1\n")
    folder.write("broken/net.py", "class Nett: pass\n")
    folder.write("other_one.py", "v = 1\n")
    folder.cell("import other_one")
    with pytest.raises(ImportError):
        folder.cell("import broken")
    folder.write("broken/net.py", "from .layers import L\nclass Net: pass\n")
    folder.write("other_one.py", "v = 22\n")
    assert folder.reload().reloaded == ["other_one"]
    folder.cell("import broken; net = broken.Net()")
    assert folder.value("other_one.v, broken.net.L") == (22, 1)


def test_only_the_code_of_modules_can_be_interrupted(folder: Folder) -> None:
    """An undo that was cut short would leave a module half old and half new."""
    folder.write("cut.py", "import builtins\nv = 1\nbuiltins.inside = getattr(builtins, 'allowed', None)\n")
    folder.cell("import cut, builtins")
    folder.write("cut.py", "import builtins\nv = 2\nbuiltins.inside = builtins.allowed\nraise KeyboardInterrupt\n")

    @contextmanager
    def interruptible() -> Iterator[None]:
        folder.cell("builtins.allowed = True")
        try:
            yield
        finally:
            folder.cell("builtins.allowed = False")

    with pytest.raises(KeyboardInterrupt):
        folder.reloader.prepare(1, 0, str(folder.path), interruptible)
    assert folder.value("builtins.inside, builtins.allowed, cut.v") == (True, False, 1)
    folder.cell("del builtins.inside, builtins.allowed")
