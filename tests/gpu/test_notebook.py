"""docs/gpu-servers.md, typed as it stands there."""

from __future__ import annotations

import re

from allranks.machine.describe_host import cuda_devices
from tests.gpu.worlds import WITHIN, need_ranks
from tests.jupyter import Notebook


def test_up_status_bench_and_doctor(kernel: Notebook) -> None:
    need_ranks(1)
    ranks = cuda_devices()
    assert "backend: nccl" in kernel.ok(f"%distributed up -n {ranks}", WITHIN).all
    kernel.ok("%distributed down", WITHIN)
    kernel.ok(f"%distributed up -n {ranks} --backend nccl", WITHIN)
    cell = kernel.ok("%%distributed\nmx.distributed.all_sum(mx.ones(10))[0].item()", WITHIN)
    assert set(cell.by_rank.values()) == {f"{float(ranks)}\n"}
    status = kernel.ok("%distributed status", WITHIN).all
    assert "nccl" in status and "idle" in status
    if ranks > 1:
        bench = kernel.ok("%distributed bench --min 1M --max 4M", WITHIN).all
        assert re.search(r"all_sum.*GB/s", bench, re.DOTALL), bench
    kernel.ok("%distributed down", WITHIN)
    doctor = kernel.ok(f"%distributed doctor -n {ranks} --backend nccl", WITHIN).all
    assert "✗" not in doctor and "GPUs, CUDA and NCCL" in doctor, doctor
