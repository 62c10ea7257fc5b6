"""One name that cannot be loaded again costs that name, wherever processes are started again, and it is told before."""

from __future__ import annotations

import re
import shutil
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from allranks import Cluster
from allranks.errors import CannotStart, NotLoaded
from tests.conftest import NOT_IN_PLACE
from tests.faults.kept import WITHIN, Detached, keep, look, sums_are_right
from tests.faults.many_names import IMPORTS, KEPT, LEFT
from tests.faults.test_death import kill

AWKWARD = """
import functools, sys, threading
sys.path.insert(0, {modules!r})
import mine_alone
thing = mine_alone.Thing()
layers = [mx.ones(3) * rank]
model = {{"layers": layers}}
steps = (i for i in range(3))
@functools.lru_cache
def fib(n):
    return n if n < 2 else fib(n - 1) + fib(n - 2)
class Mishap(Exception):
    def __init__(self, where, why):
        super().__init__(where + ": " + why)
        self.why = why
mishap = Mishap("disk", "full")
class Locked:
    def __init__(self):
        self.lock, self.layers = threading.Lock(), layers
    def __getstate__(self):
        return self.layers
    def __setstate__(self, layers):
        self.lock, self.layers = threading.Lock(), layers
locked = Locked()
class Stubborn:
    def __init__(self):
        self.layers = layers
    def __setstate__(self, state):
        raise ValueError("not again")
stubborn = [Stubborn()]
"""
LOOK = """(
    all(each is layers for each in (model["layers"], locked.layers)), layers[0].tolist() == [rank] * 3,
    fib(30), str(mishap), mishap.args, mishap.why, locked.lock.acquire(False),
    sorted({"thing", "mine_alone", "steps", "stubborn"} & globals().keys()),
)"""
WHOLE: tuple[object, ...] = (True, True, 832040, "disk: full", ("disk: full",), "full", True, [])
"""What `LOOK` finds where all has been kept that can be."""
FAILS_LATER = """
import os
class Later:
    def __init__(self):
        self.layers = layers
    def __setstate__(self, state):
        self.__dict__.update(state)
        if rank == 1 and os.path.exists({marker!r}):
            {fails}
        elif rank == 1:
            open({marker!r}, "x").close()
layers = [mx.ones(3) * rank]
later = Later()
model = {{"layers": layers}}
"""
"""Loads in the trial on rank 1, and not in the process that takes over."""

Verb = Callable[..., str]


def rewired(cluster: Cluster, **options: object) -> str:
    return str(cluster.rewire("mpi" if cluster.backend == "ring" else "ring", **options))  # type: ignore[arg-type]


def healed(cluster: Cluster, **options: object) -> str:
    kill(cluster, cluster.size - 1)
    return str(cluster.heal(**options))  # type: ignore[arg-type]


@pytest.fixture(params=[rewired, healed], ids=["ring rewire", "mpi heal"])
def change(request: pytest.FixtureRequest, need_mpi: None) -> tuple[str, int, Verb]:
    """A backend, a number of ranks of which 0 and 1 stay, and what starts them all again."""
    return ("ring", 2, rewired) if request.param is rewired else ("mpi", 3, healed)


@pytest.fixture
def modules(tmp_path: Path) -> str:
    (tmp_path / "mine_alone.py").write_text("class Thing:\n    pass\n")
    return str(tmp_path)


@pytest.fixture
def saved_files() -> Iterator[list[Path]]:
    """Folders to be removed at the end."""
    folders: list[Path] = []
    yield folders
    for folder in folders:
        shutil.rmtree(folder)


def file_named(text: str) -> tuple[str, Path]:
    """What a message says is to be typed, and the file in it on rank 1."""
    found = re.search(r'import allranks; allranks\.load_variables\(f?"(.*?)"\)', text)
    assert found, text
    return found[0], Path(found[1].replace("{rank}", "1"))


def others_are_kept(cluster: Cluster, kept: dict[int, Detached]) -> bool:
    """Whether ranks 0 and 1 hold what they held, and every rank computes right."""
    now = {rank: each.digest for rank, each in look(cluster, [0, 1]).items()}
    return now == {rank: kept[rank].digest for rank in (0, 1)} and sums_are_right(cluster)


@pytest.mark.mpi
def test_awkward_names_are_told_before_anything_is_ended_and_cost_nothing_else(
    change: tuple[str, int, Verb], modules: str, saved_files: list[Path]
) -> None:
    backend, size, verb = change
    with Cluster(size, backend=backend, name="awkward", mpi_args=[NOT_IN_PLACE]) as cluster:
        kept = keep(cluster)
        cluster.run(AWKWARD.format(modules=modules), timeout=WITHIN).check()
        pids = [rank.pid for rank in cluster.snapshot.ranks[:2]]
        before: list[tuple[str, bool]] = []
        told = verb(
            cluster, progress=lambda line: before.append((line, all(psutil.pid_exists(pid or 0) for pid in pids)))
        )
        (said, lived), *more = before
        assert lived and not more and said.startswith("ranks 0-1: saved all variables, except steps, which cannot")
        excepted = (
            "steps, which cannot be saved and mine_alone (ModuleNotFoundError: No module named 'mine_alone'), "
            "thing (ModuleNotFoundError: No module named 'mine_alone'), stubborn (ValueError: not again), which "
            "cannot be loaded in a new process"
        )
        assert excepted in said and f"ranks 0-1 restarted with all variables, except {excepted}" in told
        assert others_are_kept(cluster, kept)
        assert [each.value for each in cluster.run(LOOK, ranks=[0, 1]).check().values()] == [WHOLE] * 2
        command, file = file_named(told)
        saved_files.append(file.parent)
        assert sorted(path.name for path in file.parent.iterdir()) == ["0-left", "1-left"]
        again = cluster.run(f"import sys\nsys.path.insert(0, {modules!r})\n{command}", ranks=[0, 1])
        assert "stubborn cannot be loaded: ValueError: not again" in str(again[1].error)
        assert cluster.run("type(thing) is mine_alone.Thing", ranks=[0, 1])[1].value is True
    assert file.exists()


@pytest.mark.mpi
def test_what_fails_in_the_new_process_alone_is_said_and_its_file_is_kept(
    change: tuple[str, int, Verb], tmp_path: Path, saved_files: list[Path]
) -> None:
    backend, size, verb = change
    marker = tmp_path / "marker"
    with Cluster(size, backend=backend, name="later", mpi_args=[NOT_IN_PLACE]) as cluster:
        kept = keep(cluster)
        cluster.run(FAILS_LATER.format(marker=str(marker), fails='raise OSError("not now")')).check()
        with pytest.raises(NotLoaded, match="but some variables could not be loaded: ") as raised:
            verb(cluster)
        assert "rank 0 restarted with all variables; " in str(raised.value)
        assert "rank 1 restarted with all variables, except later (OSError: not now), which " in str(raised.value)
        became = raised.value.change.ranks
        assert became[0].how == "restored" and not became[0].failed
        assert list(became[1].not_loaded) == ["later"] and raised.value.change.missing[1] == ("later",)
        command, file = file_named(str(raised.value))
        assert str(file) in {path for files in raised.value.change.files for path in files.paths}
        saved_files.append(file.parent)
        assert cluster.state == "whole" and cluster.backend == "mpi"
        assert others_are_kept(cluster, kept)
        held = cluster.run("model['layers'] is layers, 'later' in globals()", ranks=[0, 1]).check()
        assert [each.value for each in held.values()] == [(True, True), (True, False)]
        marker.unlink()
        cluster.run(command, ranks=1).check()
        assert cluster.run("later.layers is layers is model['layers']", ranks=1)[1].value is True
    assert list(file.parent.iterdir()) == [file] and file.stat().st_mode & 0o777 == 0o600


@pytest.mark.mpi
def test_a_rank_that_dies_while_it_loads_leaves_its_file(
    change: tuple[str, int, Verb], tmp_path: Path, saved_files: list[Path]
) -> None:
    backend, size, verb = change
    marker = tmp_path / "marker"
    with Cluster(size, backend=backend, name="dies", mpi_args=[NOT_IN_PLACE]) as cluster:
        keep(cluster)
        cluster.run(FAILS_LATER.format(marker=str(marker), fails="os.kill(os.getpid(), 9)")).check()
        with pytest.raises(NotLoaded, match=r"rank 1 lost all variables: .* \(the rank died: .*\)") as raised:
            verb(cluster)
        command, file = file_named(str(raised.value))
        saved_files.append(file.parent)
        assert cluster.state == "broken"
        cluster.heal()
        marker.unlink()
        cluster.run(command, ranks=1).check()
        assert cluster.run("later.layers is layers, kept['mlx.core.float32'].shape", ranks=1)[1].value == (
            True,
            (61, 7),
        )
    assert list(file.parent.iterdir()) == [file]


@pytest.mark.mpi
def test_where_no_new_process_comes_the_files_are_named_and_heal_loads_them(need_mpi: None) -> None:
    with Cluster(2, backend="ring", name="nobody") as cluster:
        kept = keep(cluster)
        assert cluster._live.ranks is not None
        settings = cluster._live.ranks.settings
        settings.change(mpi_args=("--no-such-option",))
        with pytest.raises(CannotStart, match="The ranks' variables are saved") as raised:
            cluster.rewire("mpi")
        _command, file = file_named(str(raised.value))
        assert file.exists()
        settings.change(mpi_args=())
        assert "ranks 0-1 restarted with all variables" in str(cluster.heal())
        assert others_are_kept(cluster, kept)
        assert not file.exists()


def test_a_copy_lacks_what_does_not_load_and_the_source_has_it(modules: str) -> None:
    with Cluster(2, backend="ring", name="copied") as cluster:
        cluster.run(AWKWARD.format(modules=modules)).check()
        kill(cluster, 1)
        before: list[str] = []
        healed = cluster.heal(source=0, progress=before.append)
        assert healed.ranks[0].how == "kept" and (healed.ranks[1].how, healed.ranks[1].source) == ("copied", 0)
        assert healed.missing == {1: ("steps", "mine_alone", "thing", "stubborn")}
        assert "rank 1 got the variables of rank 0, except steps, which cannot be saved and mine_alone (Mod" in str(
            healed
        )
        assert healed.files == () and "load_variables" not in str(healed) and before == []
        copied = cluster.run("layers[0].tolist(), model['layers'] is layers is locked.layers, fib(30)", ranks=1)
        assert copied[1].value == ([0.0] * 3, True, 832040)
        held = cluster.run("type(stubborn[0]).__name__, type(thing).__name__", ranks=0)
        assert held[0].value == ("Stubborn", "Thing")


LOOKS = {name: look.strip() for name, (_, look) in KEPT.items()}
LOOK_AT_ALL = """
def _look(code):
    try:
        return repr(eval(code, globals()))
    except Exception as error:
        return f"{type(error).__name__}: {error}"
_there = [name for name in [*LOOKS, *LEFT] if name in globals()]
{name: _look(code) for name, code in LOOKS.items()}, {name: id(globals()[name]) for name in _there}
"""


@dataclass(frozen=True)
class Looked:
    """What a rank holds of the many names."""

    at: dict[str, str]
    """What is found there, by name."""
    ids: dict[str, int]

    @property
    def left(self) -> set[str]:
        """Names that no other process can have."""
        return LEFT.keys() & self.ids.keys()


def make_all(cluster: Cluster, folder: Path) -> None:
    (folder / "names").mkdir()
    cluster.run(f"{IMPORTS}\nwho = rank\nfolder = {str(folder / 'names')!r}").check()
    for code in [code for code, _ in KEPT.values()] + [*LEFT.values()]:
        cluster.run(textwrap.dedent(code), timeout=WITHIN).check()


def look_at_all(cluster: Cluster) -> dict[int, Looked]:
    code = LOOK_AT_ALL.replace("LOOKS", repr(LOOKS)).replace("LEFT", repr({*LEFT}))
    return {rank: Looked(*each.value) for rank, each in cluster.run(code, timeout=WITHIN).check().items()}


def differing(before: Looked, after: Looked) -> dict[str, tuple[str, str]]:
    return {name: (text, after.at[name]) for name, text in before.at.items() if after.at[name] != text}


@pytest.mark.slow
@pytest.mark.mpi
def test_what_can_be_kept_is_and_the_rest_is_named_when_all_start_again(
    need_mpi: None, tmp_path: Path, saved_files: list[Path]
) -> None:
    with Cluster(2, backend="ring", name="many") as cluster:
        make_all(cluster, tmp_path)
        before = look_at_all(cluster)
        pids = [rank.pid for rank in cluster.snapshot.ranks]
        said: list[tuple[str, bool]] = []
        change = cluster.rewire(
            "mpi", progress=lambda line: said.append((line, all(psutil.pid_exists(pid or 0) for pid in pids)))
        )
        saved_files.append(file_named(str(change))[1].parent)
        assert {rank: set(names) for rank, names in change.missing.items()} == {0: {*LEFT}, 1: {*LEFT}}
        [(line, lived)] = said
        assert lived and all(name in line for name in LEFT), "before anything was ended"
        for backend in ("mpi", "ring", "mpi"):  # what came back is to come back again
            if cluster.backend != backend:
                assert cluster.rewire(backend).missing == {}
            after = look_at_all(cluster)
            for rank in (0, 1):
                assert differing(before[rank], after[rank]) == {} and after[rank].left == set()
        cluster.resize(3, source=1)
        cluster.heal(kill=[1], source=0)
        after = look_at_all(cluster)
        for rank, source in {0: 0, 1: 0, 2: 1}.items():
            assert differing(before[source], after[rank]) == {}
        assert sums_are_right(cluster)


@pytest.mark.slow
@pytest.mark.parametrize("verb", ["heal", "resize"])
def test_in_place_nothing_is_touched_and_a_copy_is_equal(verb: str, tmp_path: Path) -> None:
    with Cluster(2, backend="ring", name="many") as cluster:
        make_all(cluster, tmp_path)
        before = look_at_all(cluster)
        change = cluster.heal(kill=[1], source=0) if verb == "heal" else cluster.resize(3, source=0)
        after = look_at_all(cluster)
        assert after[0].ids == before[0].ids and differing(before[0], after[0]) == {}
        new = cluster.size - 1
        assert {rank: set(names) for rank, names in change.missing.items()} == {new: {*LEFT}}
        assert differing(before[0], after[new]) == {} and after[new].left == set()
        assert sums_are_right(cluster)
