"""``%distributed save`` and ``load``, and what ``up`` and ``down`` do with a saved state."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from tests.jupyter import Notebook

SIZE_AND_TIME = r"\(\d[\d.]* \w?B, \d[\d.]* m?s\)"


def test_down_saves_and_the_next_up_goes_on_from_there(kernel: Notebook, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    kernel.run("%distributed down")
    kernel.ok("%distributed up -n 2")
    kernel.ok("%%distributed\nw, shard, batches = mx.ones(3), mx.array([rank]), (each for each in [1])")
    assert re.fullmatch(
        rf"Saved 2 variables of 2 ranks {SIZE_AND_TIME} in {folder}: 1 equal on all ranks, 1 per rank\.\n",
        kernel.ok(f"%distributed save {folder} w shard").stdout,
    )
    again = kernel.ok(f"%distributed up -n 2 --load {folder}").stdout
    assert f"Not loaded, since these ranks have variables already. To load: %distributed load {folder}" in again
    refused = kernel.run(f"%distributed down --save {folder}").error
    assert refused.startswith("CannotSave: cannot save batches (") and refused.endswith(
        f"Nothing was written. %distributed save {folder} saves the others. The ranks stay up."
    )
    kernel.ok("%%distributed\nw = w + 1; del batches")
    ended = kernel.ok(f"%distributed down --save {folder}").stdout
    assert ended.startswith("Saved 2 variables of 2 ranks") and ended.endswith("2 ranks ended.\n")
    started = kernel.ok(f"%distributed up -n 2 --load {folder}").stdout
    assert re.search(rf"\nLoaded 2 variables on 2 ranks {SIZE_AND_TIME} from {folder}\.\n$", started)
    assert "array([2, 2, 2], dtype=float32), [1])" in kernel.ok("%%distributed\nw, shard.tolist()").stdout
    kernel.ok("%distributed down")


def test_ranks_that_cannot_load_are_up_and_those_that_cannot_save_stay(kernel: Notebook, tmp_path: Path) -> None:
    kernel.run("%distributed down")
    failed = kernel.run(f"%distributed up -n 2 --load {tmp_path}/none")
    assert failed.error == (
        f"CannotLoad: cannot load {tmp_path}/none: ranks 0-1: there is no folder {tmp_path}/none. The ranks are up."
    )
    kernel.ok("%%distributed\nx = 1")
    (tmp_path / "file").write_text("")
    assert "CannotSave: cannot save in" in kernel.run(f"%distributed down --save {tmp_path}/file").error
    assert kernel.ok("%%distributed\nx").stdout == "ranks 0-1 │ 1\n"
    kernel.ok(f"%distributed save {tmp_path}/run")
    kernel.ok("%%distributed\nx = 2")
    corrected = f"%distributed up -n 2 --load {tmp_path}/run"
    assert "Loaded 1 variable on 2 ranks" in kernel.ok(corrected).stdout
    assert kernel.ok("%%distributed\nx").stdout == "ranks 0-1 │ 1\n"
    assert "Not loaded, since these ranks have variables already" in kernel.ok(corrected).stdout
    kernel.ok("%distributed down")


def test_a_cell_runs_while_the_files_are_written(kernel: Notebook, tmp_path: Path) -> None:
    kernel.run("%distributed up -n 2")
    kernel.ok("%%distributed\nx = mx.zeros(1 << 20) + rank; mx.eval(x)")
    saving = kernel.ok(f"%distributed save {tmp_path}/a x --no-wait")
    kernel.ok("%%distributed\nx[0] = 7; mx.eval(x)")
    kernel.shows(saving, "Saved 1 variable of 2 ranks")
    kernel.ok(f"%distributed load {tmp_path}/a")
    assert kernel.ok("%%distributed\nx[0].item() == rank").stdout == "ranks 0-1 │ True\n"
    kernel.ok("%distributed down")


TRAIN = """%%distributed
while done < {until}:
    weight = weight * 0.9
    done += 1
    loss = mx.distributed.all_sum(weight)
    log(loss=loss.item(), step=done, of=20)
"""


def test_the_next_day_in_another_kernel_the_curve_goes_on(
    kernel: Notebook, new_notebook: Callable[..., Notebook], tmp_path: Path
) -> None:
    folder, today = tmp_path / "run", new_notebook()
    kernel.run("%distributed down")
    kernel.ok("%distributed up -n 2")
    kernel.ok("%%distributed\nweight, done = mx.ones(1) + rank, 0")
    kernel.ok(TRAIN.format(until=10))
    kernel.ok("%%distributed\n\n\ndef fails(by):\n    yesterday = 1 / by\n")
    kernel.ok(f"%distributed down --save {folder}")
    try:
        today.ok("%load_ext allranks")
        loaded = today.ok(f"%distributed up -n 2 --load {folder}").stdout
        assert re.search(r"\d runs? came with it: %distributed runs", loaded), loaded
        picture = today.ok(TRAIN.format(until=20))
        (svg,), (text,) = picture.mime("image/svg+xml"), picture.mime("text/plain")
        assert re.match(r"loss 2\.7 → 0\.3647 \(run \d+ \(continues run \d+\) · step 20 of 20 ", text), text
        assert svg.count("<title>") == 0
        today.ok("%%distributed\n" + "\n" * 2 + "other = 1\n" * 9)
        failed = today.run("%%distributed\nfails(0)").all
        assert "yesterday = 1 / by" in failed and "other = 1" not in failed, failed
        assert "(loaded)" in failed, failed
        today.ok("%distributed down")
    finally:
        today.close()


def test_a_run_continues_the_one_whose_variables_were_loaded(kernel: Notebook, tmp_path: Path) -> None:
    kernel.run("%distributed down")
    kernel.ok("%distributed up -n 2")
    begin = "%%distributed\nweight, done = mx.ones(1) * {}, 0"
    for name, weight in (("one", 1), ("two", 2), ("three", 3)):
        kernel.ok(begin.format(weight))
        (text,) = kernel.ok(TRAIN.format(until=10)).mime("text/plain")
        kernel.ok(f"%distributed save {tmp_path}/{name}")
    third = int(re.findall(r"run (\d+)", text)[0])
    for name, number in (("one", third - 2), ("two", third - 1)):
        kernel.ok(f"%distributed load {tmp_path}/{name}")
        (text,) = kernel.ok(TRAIN.format(until=20)).mime("text/plain")
        assert f"(continues run {number}) · step 20" in text
    kernel.ok("%distributed down")
