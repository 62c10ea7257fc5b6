"""What is shown of a GPU, compared with what nvidia-smi prints."""

from __future__ import annotations

import subprocess

from tests.gpu.worlds import WITHIN, world
from tests.waiting import comes_true


def test_figures_of_the_gpu_are_those_of_nvidia_smi() -> None:
    with world(1) as cluster:
        cluster.run("held = mx.ones((1 << 29,))\nmx.eval(held)", timeout=WITHIN).check()
        assert comes_true(cluster, lambda now: (now.ranks[0].mlx_active or 0) >= 1 << 31, WITHIN)
        gpu = cluster.snapshot.ranks[0].gpu
        assert gpu is not None
        asked = ["nvidia-smi", f"--id={gpu.id}", "--query-gpu=name,memory.total,memory.used,temperature.gpu"]
        command = [*asked, "--format=csv,noheader,nounits"]
        said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        name, total, used, degrees = said.strip().split(", ")
        assert gpu.name == name and gpu.memory is not None and gpu.memory_used is not None
        assert abs(gpu.memory - int(total) * (1 << 20)) < 0.02 * gpu.memory
        assert abs(gpu.memory_used - int(used) * (1 << 20)) < 0.1 * gpu.memory_used
        assert gpu.temperature is not None and abs(gpu.temperature - int(degrees)) <= 5
        assert gpu.power is not None and gpu.load is not None
