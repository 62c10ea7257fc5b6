"""Readings of the GPU on which this rank computes, from NVIDIA's driver (NVML) or macOS, without root.

Not run on a GPU yet: NVML is tested with a fake driver, and the parsing of macOS's figures with published output.
"""

from __future__ import annotations

import plistlib
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from types import ModuleType
from typing import Any
from xml.parsers.expat import ExpatError

from allranks.messages.events import Gpu

IOREG = ("ioreg", "-r", "-d", "1", "-w", "0", "-a", "-c", "IOAccelerator")
IOREG_EVERY = 5.0
"""Seconds between two calls of ioreg, since each starts a process."""
IOREG_WITHIN = 2.0

Asks = Callable[[], Gpu | None]


class GpuMeter:
    """Takes readings of the GPU, once mlx is imported."""

    def __init__(self) -> None:
        self._ask: Asks | None = None

    def read(self, *, tells_of_host: bool) -> Gpu | None:
        """The reading now; None before mlx is imported or if MLX uses no GPU.

        The ranks of a Mac share one GPU, so only the rank with `tells_of_host` reads it; the others get None.
        """
        if self._ask is None:
            mx: Any = sys.modules.get("mlx.core")
            if not hasattr(mx, "device_info"):  # the main thread may be importing it
                return None
            self._ask = _asks(mx)
        return self._ask() if tells_of_host or not isinstance(self._ask, AppleGpu) else None


def _asks(mx: ModuleType) -> Asks:
    """A function that reads the GPU that MLX uses."""
    if not mx.is_available(mx.gpu):
        return lambda: None
    told: dict[str, Any] = mx.device_info(mx.gpu)
    if "max_recommended_working_set_size" in told:
        return AppleGpu(told.get("device_name", ""), told["max_recommended_working_set_size"])
    return NvidiaGpu(told.get("device_name", ""), told.get("uuid", ""), told.get("total_memory"))


class NvidiaGpu:
    """An NVIDIA GPU. A figure is None if NVML does not report it; the total memory then comes from MLX."""

    def __init__(self, name: str, uuid: str, memory: int | None) -> None:
        self._known = Gpu(uuid, name, memory=memory)
        self._nvml: Any = None
        with suppress(ImportError):
            import pynvml

            with suppress(pynvml.NVMLError):  # no library, or a slice of a GPU (MIG)
                pynvml.nvmlInit()
                self._handle = pynvml.nvmlDeviceGetHandleByUUID(uuid)
                self._nvml = pynvml

    def __call__(self) -> Gpu:
        """Ask the driver."""
        nvml = self._nvml
        if nvml is None:
            return self._known
        memory = self._asked(nvml.nvmlDeviceGetMemoryInfo)
        busy = self._asked(nvml.nvmlDeviceGetUtilizationRates)
        power = self._asked(nvml.nvmlDeviceGetPowerUsage)
        slowed = self._asked(nvml.nvmlDeviceGetCurrentClocksThrottleReasons)
        heat = nvml.nvmlClocksThrottleReasonSwThermalSlowdown | nvml.nvmlClocksThrottleReasonHwThermalSlowdown
        return Gpu(
            self._known.id,
            self._known.name,
            load=busy.gpu / 100 if busy else None,
            memory=memory.total if memory else self._known.memory,
            memory_used=_rounded(memory.used) if memory else None,
            power=_rounded(power / 1000) if power is not None else None,
            temperature=self._asked(nvml.nvmlDeviceGetTemperature, nvml.NVML_TEMPERATURE_GPU),
            throttled=bool(slowed & heat) if slowed is not None else None,
        )

    def _asked(self, question: Callable[..., object], *more: object) -> Any:
        """The driver's answer, or None."""
        with suppress(self._nvml.NVMLError):
            return question(self._handle, *more)
        return None


class AppleGpu:
    """The GPU of a Mac with Apple silicon. It shares the host's memory; macOS reports its power only to root."""

    def __init__(self, name: str, memory: int) -> None:
        self._told = Gpu("", name, memory=memory)
        self._asked_at = -IOREG_EVERY

    def __call__(self) -> Gpu:
        """Take a new reading if the last one is at least `IOREG_EVERY` seconds old; return the newest."""
        if time.monotonic() - self._asked_at >= IOREG_EVERY:
            self._asked_at = time.monotonic()
            with suppress(OSError, subprocess.SubprocessError, ValueError, ExpatError):  # cut-off XML, too
                listed = subprocess.run(IOREG, capture_output=True, timeout=IOREG_WITHIN, check=False).stdout
                self._told = _with_statistics(self._told, listed)
        return self._told


def _with_statistics(gpu: Gpu, listed: bytes) -> Gpu:
    """`gpu` with the figures that ``ioreg`` lists for the first accelerator. Raises ValueError and ExpatError."""
    accelerators = plistlib.loads(listed)
    found: dict[str, Any] = accelerators[0].get("PerformanceStatistics", {}) if accelerators else {}
    busy, used = found.get("Device Utilization %"), found.get("In use system memory")
    return Gpu(
        gpu.id,
        gpu.name,
        load=None if busy is None else busy / 100,
        memory=gpu.memory,
        memory_used=None if used is None else _rounded(used),
    )


def _rounded(value: float) -> int:
    """Round to three significant digits, so that the readings of an idle GPU stay equal."""
    return round(float(f"{value:.3g}"))
