"""A rank raises before a collective that the others enter: the cell ends by itself, and costs nobody a variable."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from allranks import Cluster
from tests.faults.absent import blocked
from tests.faults.kept import WITHIN, keep, look, sums_are_right
from tests.jupyter import Notebook

SUM = "mx.eval(mx.distributed.all_sum(mx.ones(1000)))"
RAISES = f"""import os, time
while rank == 2 and not os.path.exists({{go!r}}): time.sleep(0.01)
if rank == 2: raise ValueError("bad batch")
{SUM}
"""


def test_the_cell_ends_and_names_who_failed_and_who_waited_where(ring4: Cluster) -> None:
    kept, generation = keep(ring4), ring4.snapshot.generation
    result = blocked(ring4, SUM, 'raise ValueError("bad batch")', rank=2)
    # Five seconds are promised; a machine that is busy with other things gets some more.
    assert result.seconds < 5 + 2 * WITHIN
    assert list(result.errors) == [2] and result[2].error is not None and result[2].error.line == 4
    for rank in (0, 1, 3):
        assert re.fullmatch(r"all_sum #\d+ f32\[1000\] \(line 5\)", result[rank].unblocked or ""), result[rank]
    assert "rank 2 raised ValueError: bad batch (line 4)" in result.failure()
    assert "ranks 0-1, 3 waited" in result.failure()
    assert (ring4.state, ring4.snapshot.generation) == ("whole", generation + 1)
    assert sums_are_right(ring4)
    assert look(ring4) == kept


def test_a_notebook_says_it_unasked_and_goes_on(notebook: Notebook, tmp_path: Path) -> None:
    notebook.ok("%%distributed\nheld = rank + 40")
    cell = notebook.begin(f"%%distributed\n{RAISES.format(go=str(tmp_path / 'go'))}")
    notebook.until(lambda: bool(re.search(r"0-1, 3 +│ blocked in all_sum", cell.all)), WITHIN, lambda: cell.all)
    (tmp_path / "go").touch()
    notebook.finish(cell)
    assert "rank 2 raised ValueError: bad batch (line 4)" in cell.error, cell.all
    assert re.search(r"blocked in all_sum #\d+ f32\[1000\] \(line 5\): rank 2 has not entered it", cell.stdout)
    assert re.search(r"unblocked from all_sum #\d+ f32\[1000\] \(line 5\)", cell.stderr), cell.stderr
    assert "Re-formed the world in" in cell.stdout
    after = notebook.ok("%%distributed\nheld - rank, mx.distributed.all_sum(mx.array(1)).item()")
    assert after.by_rank == dict.fromkeys(range(4), "(40, 4)\n")


@pytest.mark.slow
def test_ranks_that_wait_in_a_compiled_step_are_freed_as_well(ring4: Cluster) -> None:
    """Compiled before, so that MLX calls nothing of ours in this cell."""
    ring4.run("step = mx.compile(lambda x: mx.distributed.all_sum(x) + 1)\nmx.eval(step(mx.ones(4)))").check()
    result = blocked(ring4, "mx.eval(step(mx.ones(4)))")
    assert list(result.errors) == [1]
    for rank in (0, 2, 3):
        assert (result[rank].unblocked or "").startswith("all_sum #"), result[rank]
    assert ring4.run("step(mx.ones(2)).tolist()", timeout=WITHIN)[3].value == [5.0, 5.0]


@pytest.mark.slow
def test_ranks_that_wait_for_what_an_earlier_cell_left_pending_are_freed_as_well(ring4: Cluster) -> None:
    ring4.run("left = mx.distributed.all_sum(mx.ones(4))").check()
    result = blocked(ring4, "mx.eval(left)")
    assert list(result.errors) == [1]
    assert all(result[rank].unblocked for rank in (0, 2, 3))
    assert sums_are_right(ring4)


@pytest.mark.mpi
def test_on_mpi_the_missing_rank_comes_after_all(restarted_mpi4: Cluster) -> None:
    kept, pids = keep(restarted_mpi4), [rank.pid for rank in restarted_mpi4.snapshot.ranks]
    result = blocked(restarted_mpi4, SUM, rank=2)
    assert list(result.errors) == [2]
    assert all(result[rank].unblocked for rank in (0, 1, 3))
    assert sums_are_right(restarted_mpi4)
    assert look(restarted_mpi4) == kept and [rank.pid for rank in restarted_mpi4.snapshot.ranks] == pids
