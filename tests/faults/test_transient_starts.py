"""An `mpirun` that fails once, for a cause that is gone at the next try, is started again: by `up` and by restarts."""

from __future__ import annotations

import shlex
import tempfile
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from allranks import Cluster
from allranks.errors import CannotStart
from allranks_backends.runtimes.mpi import find_mpirun
from tests.conftest import NOT_IN_PLACE
from tests.faults.kept import sums_are_right
from tests.faults.test_unfinished_change import kill

pytestmark = [pytest.mark.mpi, pytest.mark.slow]

LISTENER = "The PMIx server's listener thread failed to start. We cannot\ncontinue."
OTHER = "There are not enough slots available in the system."
FAILS = """#!/bin/sh
case $1 in --version) exec {mpirun} "$@" ;; esac
echo >> {starts}
if [ $(wc -l < {starts}) -le {times} ]; then
    echo {said} >&2
    exit 213
fi
exec {mpirun} "$@"
"""

Fails = Callable[[int, str], Callable[[], int]]
"""Has the next `times` starts of mpirun fail with the text `said`; returns a function that counts the starts."""


@pytest.fixture
def mpirun_fails(need_mpi: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Fails:
    def fail(times: int, said: str) -> Callable[[], int]:
        real, stand_in, starts = find_mpirun() or "", tmp_path / "bin" / "mpirun", tmp_path / "starts"
        stand_in.parent.mkdir()
        (tmp_path / "lib").symlink_to(Path(real).parent.parent / "lib")  # where the library beside it is looked for
        words = {"mpirun": real, "starts": str(starts), "said": f"{'-' * 74}\n{said}\n{'-' * 74}"}
        stand_in.write_text(FAILS.format(times=times, **{name: shlex.quote(word) for name, word in words.items()}))
        stand_in.chmod(0o755)
        monkeypatch.setattr("allranks.head.world.processes.find_mpirun", lambda: str(stand_in))
        return lambda: len(starts.read_text().splitlines())

    return fail


def started(cluster: Cluster) -> list[str]:
    """The processes that its host process has started."""
    assert cluster._live.ranks is not None
    return sorted(each.name() for each in psutil.Process(cluster._live.ranks.host.process[0]).children())


def folders(name: str) -> list[Path]:
    return list(Path(tempfile.gettempdir()).glob(f"allranks-{name}-*"))


def test_up_starts_mpirun_again(mpirun_fails: Fails) -> None:
    starts, before = mpirun_fails(1, LISTENER), set(psutil.Process().children())
    with Cluster(2, backend="mpi", name="transient-up") as cluster:
        assert starts() == 2 and sums_are_right(cluster)
        assert cluster._live.ranks is not None
        assert [each.pid for each in set(psutil.Process().children()) - before] == [cluster._live.ranks.host.process[0]]
        assert len(started(cluster)) == 2, "mpirun and the controller"
        assert len(folders("transient-up")) == 1
    assert not folders("transient-up")


@pytest.mark.parametrize("verb", ["rewire", "heal"])
def test_a_restart_starts_mpirun_again(verb: str, mpirun_fails: Fails) -> None:
    backend = "ring" if verb == "rewire" else "mpi"
    with Cluster(2, backend=backend, name="transient-restart", mpi_args=[NOT_IN_PLACE]) as cluster:
        cluster.run("held = rank * 10").check()
        starts = mpirun_fails(1, LISTENER)
        if verb == "rewire":
            told = str(cluster.rewire("mpi"))
            assert told == "The world now runs on mpi: ranks 0-1 restarted with all variables."
        else:
            kill(cluster, 1)
            told = str(cluster.heal(source=0))
            assert told == "Healed the world: rank 0 restarted with all variables; rank 1 got the variables of rank 0."
        assert cluster.pull("held") == [0, 10 if verb == "rewire" else 0]
        assert starts() == 2 and sums_are_right(cluster)
        assert len(started(cluster)) == 2, "mpirun and the controller"


@pytest.mark.parametrize(("said", "tries"), [(LISTENER, 3), (OTHER, 1)], ids=["transient", "other"])
def test_an_mpirun_that_fails_each_time_is_reported(said: str, tries: int, mpirun_fails: Fails) -> None:
    cause = f"the ranks did not start: ranks 0-1 ended by mpirun, which exited with code 213:\n{said}"
    with Cluster(2, backend="ring", name="transient-never") as cluster:
        cluster.run("held = rank * 10").check()
        starts = mpirun_fails(99, said)
        with pytest.raises(CannotStart) as error:
            cluster.rewire("mpi")
        assert str(error.value).startswith(f"{cause}\nThe ranks' variables are saved.")
        assert starts() == tries and len(started(cluster)) == 1, "the controller"
        assert "restarted with all variables" in str(cluster.rewire("ring"))
        assert cluster.pull("held") == [0, 10]
        with pytest.raises(CannotStart) as error:
            Cluster(2, backend="mpi", name="transient-up").up()
        assert str(error.value) == cause and starts() == 2 * tries
        assert not folders("transient-up")
