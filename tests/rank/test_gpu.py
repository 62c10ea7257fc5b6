"""What a rank reads of its GPU: of NVIDIA's from a pretended driver in C, of a Mac's in the form that ioreg prints."""

from __future__ import annotations

import os
import plistlib
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from allranks.messages.events import Gpu
from allranks.rank.metrics.gpu import AppleGpu, GpuMeter, NvidiaGpu, _with_statistics
from tests.needs import need

DRIVER = r"""
#include <string.h>
typedef struct { unsigned long long total, free, used; } memory_t;
typedef struct { unsigned int gpu, memory; } utilization_t;
enum { OK = 0, NOT_SUPPORTED = 3, NOT_FOUND = 6 };
int nvmlInitWithFlags(unsigned int flags) { return OK; }
int nvmlDeviceGetHandleByUUID(const char *uuid, void **device) {
    *device = (void *)uuid;
    return strcmp(uuid, "GPU-1") ? NOT_FOUND : OK;
}
int nvmlDeviceGetMemoryInfo(void *device, memory_t *memory) {
    *memory = (memory_t){80000000000ull, 18766000000ull, 61234000000ull};
    return OK;
}
int nvmlDeviceGetUtilizationRates(void *device, utilization_t *busy) {
    *busy = (utilization_t){87, 40};
    return OK;
}
int nvmlDeviceGetPowerUsage(void *device, unsigned int *milliwatts) {
#ifdef SPARSE
    return NOT_SUPPORTED;
#endif
    *milliwatts = 412345;
    return OK;
}
int nvmlDeviceGetTemperature(void *device, unsigned int sensor, unsigned int *degrees) {
    *degrees = 64 + sensor;
    return OK;
}
int nvmlDeviceGetCurrentClocksThrottleReasons(void *device, unsigned long long *reasons) {
    *reasons = 0x40 | 0x4;
    return OK;
}
"""
ASKS = """
import msgspec, sys
from allranks.rank.metrics.gpu import NvidiaGpu
print(msgspec.json.encode(NvidiaGpu("NVIDIA H100", sys.argv[1], 79 * 10**9)()).decode())
"""


def told(folder: Path, uuid: str, *flags: str) -> Gpu:
    """What is read of a GPU with this UUID, with the pretended driver."""
    import msgspec

    compiler = shutil.which("cc")
    need(compiler is not None and sys.platform == "linux", "a C compiler, on Linux")
    source = folder / "driver.c"
    source.write_text(DRIVER)
    library = folder / "libnvidia-ml.so.1"
    subprocess.run([str(compiler), "-shared", "-fPIC", *flags, "-o", library, source], check=True)
    environ = os.environ | {"LD_LIBRARY_PATH": str(folder)}
    command = [sys.executable, "-c", ASKS, uuid]
    said = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=60)
    assert not said.returncode, said.stderr
    return msgspec.json.decode(said.stdout, type=Gpu)


def test_nvidias_driver_is_asked_for_the_gpu_of_this_uuid(tmp_path: Path) -> None:
    assert told(tmp_path, "GPU-1") == Gpu(
        "GPU-1", "NVIDIA H100", 0.87, 80 * 10**9, 61_200_000_000, power=412, temperature=64, throttled=True
    )


def test_what_the_driver_does_not_tell_is_unknown(tmp_path: Path) -> None:
    gpu = told(tmp_path, "GPU-1", "-DSPARSE")
    assert gpu.power is None and gpu.load == 0.87


def test_a_slice_of_a_gpu_has_the_memory_that_mlx_tells_of(tmp_path: Path) -> None:
    assert told(tmp_path, "MIG-7") == Gpu("MIG-7", "NVIDIA H100", memory=79 * 10**9)


def test_without_a_driver_there_is_what_mlx_tells_of() -> None:
    assert NvidiaGpu("NVIDIA H100", "GPU-1", 79 * 10**9)() == Gpu("GPU-1", "NVIDIA H100", memory=79 * 10**9)


def test_a_macs_gpu_is_read_from_the_list_of_accelerators() -> None:
    known = Gpu("", "Apple M3 Ultra", memory=412 * 10**9)
    figures = {"Device Utilization %": 29, "In use system memory": 1_154_580_480, "recoveryCount": 0}
    listed = plistlib.dumps([{"PerformanceStatistics": figures}])
    assert _with_statistics(known, listed) == Gpu(
        "", "Apple M3 Ultra", load=0.29, memory=412 * 10**9, memory_used=1_150_000_000
    )
    assert _with_statistics(known, plistlib.dumps([])) == known


def test_a_list_that_was_cut_off_leaves_the_figures_as_they_were(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "ioreg"
    program.write_text("#!/bin/sh\necho '<?xml version=\"1.0\"?><plist><array><dict>'\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    assert AppleGpu("Apple M3 Ultra", 412 * 10**9)() == Gpu("", "Apple M3 Ultra", memory=412 * 10**9)


@pytest.mark.skipif(sys.platform == "darwin", reason="where there is no ioreg")
def test_a_mac_that_does_not_tell_leaves_its_figures_unknown() -> None:
    assert AppleGpu("Apple M3 Ultra", 412 * 10**9)() == Gpu("", "Apple M3 Ultra", memory=412 * 10**9)


def test_mlx_without_a_gpu_has_none() -> None:
    import mlx.core as mx

    need(not mx.is_available(mx.gpu), "mlx without a GPU")
    assert GpuMeter().read(tells_of_host=True) is None
