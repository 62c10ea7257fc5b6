"""A process of its own says which of the saved variables another rank could not load, whatever they do to it."""

from __future__ import annotations

import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import psutil
import pytest

from allranks.rank.values import ask_trial_load, checkpoint
from allranks.rank.values.ask_trial_load import Beginning, TrialLoad, try_to_load
from tests.waiting import eventually


@pytest.fixture
def user_ns(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Stands for the namespace of cells, which is that of ``__main__`` in a rank."""
    main = types.ModuleType("__main__")
    main.__dict__["mx"] = mx
    monkeypatch.setitem(sys.modules, "__main__", main)
    return main.__dict__


class Saving:
    """Saves with a trial as a rank does, and keeps what the trials said."""

    def __init__(self, folder: Path, beginning: Beginning) -> None:
        self.file, self.aside = folder / "0", folder / "0-left"
        self.beginning, self.trials = beginning, list[TrialLoad]()

    def __call__(self, variables: dict[str, Any]) -> checkpoint.SavedCheckpoint:
        return checkpoint.save(self.file, variables, self._attempt, self.aside)

    def _attempt(self, file: Path) -> TrialLoad:
        self.trials.append(try_to_load(file, self.beginning, 3, 4))
        return self.trials[-1]


@pytest.fixture
def save(tmp_path: Path) -> Saving:
    return Saving(tmp_path, Beginning.now())


def test_all_that_loads_is_in_the_file_and_nothing_else_is_left(save: Saving, monkeypatch: pytest.MonkeyPatch) -> None:
    world = mx.distributed.init()
    monkeypatch.setattr(mx.distributed, "init", lambda: world)  # as in a rank: always the same object
    saved = save({"x": mx.ones((500, 500)), "n": np.ones(5000), "world": world, "text": "é"})
    assert (saved, save.trials) == (checkpoint.SavedCheckpoint([], {}), [TrialLoad()])
    assert list(save.file.parent.iterdir()) == [save.file]


def test_what_fails_goes_to_a_file_of_its_own_and_what_is_left_stays_shared(
    save: Saving, user_ns: dict[str, Any], tmp_path: Path
) -> None:
    (tmp_path / "modules").mkdir()
    (tmp_path / "modules" / "mine_alone.py").write_text("class Thing:\n    x = 3\n")
    code = f"""import sys
sys.path.insert(0, {str(tmp_path / "modules")!r})
import mine_alone
thing = mine_alone.Thing()
layers = [mx.ones((300, 300))]
class Stubborn:
    def __init__(self, layers): self.layers = layers
    def __setstate__(self, state): raise ValueError(f"not on rank {{rank}} of {{size}}")
stubborn = Stubborn(layers)
both = {{"stubborn": stubborn, "layers": layers}}
model = {{"layers": layers}}"""
    before = list(sys.path)
    try:
        exec(code, user_ns)
        saved = save(checkpoint.user_variables(user_ns, {}))
    finally:
        sys.path[:] = before
        sys.modules.pop("mine_alone", None)
    assert saved.failed == {
        "mine_alone": "ModuleNotFoundError: No module named 'mine_alone'",
        "thing": "ModuleNotFoundError: No module named 'mine_alone'",
        "stubborn": "ValueError: not on rank 3 of 4",
        "both": "ValueError: not on rank 3 of 4",
    }
    assert save.trials[-1] == TrialLoad()
    user_ns.clear()
    assert checkpoint.load(save.file, user_ns).failed == {}
    assert user_ns["model"]["layers"] is user_ns["layers"] and mx.all(user_ns["layers"][0] == 1).item()
    sys.path.insert(0, str(tmp_path / "modules"))
    try:
        again = checkpoint.load(save.aside, user_ns)
    finally:
        sys.path[:] = before
        sys.modules.pop("mine_alone", None)
    assert sorted(again.failed) == ["both", "stubborn"] and user_ns["thing"].x == 3


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("os.kill(os.getpid(), 11)", "it crashed the process (SIGSEGV)"),
        ("os._exit(3)", "it ended the process with code 3"),
        ("print('noise'); os.close(1); os._exit(0)", "noise"),
    ],
    ids=["crash", "exit", "output"],
)
def test_a_name_that_ends_the_process_is_found(line: str, said: str, save: Saving, user_ns: dict[str, Any]) -> None:
    code = f"""import os
class Ends:
    def __init__(self): self.x = 1
    def __setstate__(self, state): {line}
ends = Ends()
kept = [1]"""
    exec(code, user_ns)
    assert save(checkpoint.user_variables(user_ns, {})).failed == {"ends": said}
    user_ns.clear()
    assert checkpoint.load(save.file, user_ns).failed == {} and user_ns["kept"] == [1]


class TimeIsOver(subprocess.Popen[bytes]):
    """The time of a trial is over when `there` exists, which its process makes; not before, and not later."""

    there: Path

    def communicate(self, input: Any = None, timeout: float | None = None) -> tuple[bytes, bytes]:
        if timeout is not None:
            assert eventually(lambda: self.there.exists() or self.poll() is not None)
            if self.there.exists():
                self.there.unlink()
                raise subprocess.TimeoutExpired(self.args, timeout)
        return super().communicate(input)


@pytest.mark.slow
def test_a_name_that_comes_to_no_end_is_found(
    save: Saving, user_ns: dict[str, Any], tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TimeIsOver, "there", tmp_path_factory.mktemp("trial") / "waits", raising=False)
    monkeypatch.setattr(subprocess, "Popen", TimeIsOver)
    code = f"""import threading
class Waits:
    def __init__(self): self.x = 1
    def __setstate__(self, state):
        open({str(TimeIsOver.there)!r}, "w").close()
        threading.Event().wait()
waits = Waits()
kept = 1"""
    exec(code, user_ns)
    failed = save(checkpoint.user_variables(user_ns, {})).failed
    assert failed == {"waits": f"loading took longer than {ask_trial_load.TRIAL_WITHIN:g} s"}
    assert not [each for each in psutil.Process().children() if _is_trial(each)]


def _is_trial(process: psutil.Process) -> bool:
    try:
        return "trial_load" in " ".join(process.cmdline())
    except psutil.Error:  # another test's, that has ended
        return False


def test_a_python_that_cannot_begin_fails_nobody(tmp_path: Path) -> None:
    """It is no name's fault: nothing is written, and the caller hears why."""
    beginning = Beginning({**Beginning.now().environment, "PYTHONHOME": "/nowhere"}, str(tmp_path), sys.path)
    save = Saving(tmp_path, beginning)
    with pytest.raises(RuntimeError, match="they could not be loaded in another process"):
        save({"x": 1})
    assert list(tmp_path.iterdir()) == []


def test_large_arrays_take_no_memory_there(save: Saving, user_ns: dict[str, Any]) -> None:
    code = """import numpy as np
import psutil
large = [mx.zeros((64, 1024, 1024)), mx.ones((64, 1024, 1024), mx.bfloat16), np.ones((64, 1024, 1024), "float32")]
class Measures:
    def __init__(self): self.held = large
    def __setstate__(self, state):
        shapes = [tuple(each.shape) for each in state["held"]]
        raise MemoryError(psutil.Process().memory_info().rss >> 20, shapes == [(64, 1024, 1024)] * 3)
measures = Measures()"""
    exec(code, user_ns)
    mx.eval(user_ns["large"][:2])
    failed = save(checkpoint.user_variables(user_ns, {})).failed
    megabytes, shapes = failed["measures"].removeprefix("MemoryError: (").rstrip(")").split(", ")
    assert shapes == "True" and int(megabytes) < 256
