"""The manufacturer's names of this machine and its processor."""

from __future__ import annotations

import subprocess
import sys
from contextlib import suppress


def model() -> dict[str, str]:
    """The names of the machine and its processor; empty if the system does not report them."""
    if sys.platform == "darwin":  # not tested on macOS
        return {"model": _sysctl("hw.model"), "chip": _sysctl("machdep.cpu.brand_string")}
    chip = ""
    with suppress(OSError), open("/proc/cpuinfo") as file:
        chip = next((line.partition(":")[2].strip() for line in file if line.startswith("model name")), "")
    name = ""
    with suppress(OSError), open("/sys/devices/virtual/dmi/id/product_name") as file:
        name = file.read().strip()
    return {"model": name, "chip": chip}


def _sysctl(name: str) -> str:
    try:
        return subprocess.run(["sysctl", "-n", name], capture_output=True, text=True, timeout=2).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return ""
