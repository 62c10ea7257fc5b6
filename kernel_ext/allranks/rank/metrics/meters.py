"""Resource use of this process and its host: memory, CPU time, links; whether the main thread is blocked."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import psutil

from allranks.machine.model_names import model
from allranks.messages.events import Gpu, LinkReading, Machine, Memory, OpTotals
from allranks.rank.collectives.ledger import Ledger

from .gpu import GpuMeter
from .hardware import Hardware
from .link_stats import LinkStats, interface_of
from .traffic import Traffic


@dataclass(frozen=True)
class MeterReading:
    """All readings at one moment."""

    memory: Memory
    cpu: float
    """CPU time since the last reading, as a share of one core."""
    effective: float
    """Bytes a second that collectives were asked to move."""
    ops: tuple[OpTotals, ...]
    links: tuple[LinkReading, ...]
    stalled: float | None
    """See `LinkStats.stalled`."""
    machine: Machine | None
    gpu: Gpu | None


class Meters:
    """Cheap readings, which the agent takes every 0.5 to 2 seconds, or every 10 while the rank does nothing."""

    def __init__(self, ledger: Ledger | None = None) -> None:
        self._process = psutil.Process()
        self.wire = LinkStats()
        self.traffic = Traffic(ledger or Ledger())
        self.tells_of_host = False
        self.address: str | None = None
        """The address at which the other hosts reach this one."""
        self.cuda = False
        """Whether MLX computes on an NVIDIA GPU; MLX waits for the GPU without a lock."""
        self._moved: tuple[str, int, int, float] | None = None
        self._machine: dict[str, Any] = {}
        self._hardware = Hardware()
        self._gpu = GpuMeter()
        self._cpu = self._cpu_seconds()
        self._at = time.monotonic()

    def read(self, *, seldom: bool = False) -> MeterReading:
        """Take all readings for a report; with `seldom`, those that cost most only now and then (see `Hardware`)."""
        machine = self.machine(seldom=seldom) if self.tells_of_host else None
        links = tuple(self.wire.read())
        stalled = self.wire.stalled(links)
        gpu = self._gpu.read(tells_of_host=self.tells_of_host)
        return MeterReading(self.memory(), round(self.cpu(), 2), *self.traffic.read(), links, stalled, machine, gpu)

    def machine(self, *, seldom: bool = False) -> Machine:
        """The host: model, chip, cores, memory in bytes, load as a share of all cores, swapping, temperature, traffic.

        Load, swapping and traffic refer to the time since the last call. The used memory and the load are rounded, so
        that the reports of an idle host stay equal.
        """
        if not self._machine:
            self._machine = {**model(), "cores": psutil.cpu_count()}
        memory, used = self.host_memory()
        return Machine(
            **self._machine,
            memory=memory,
            memory_used=used,
            load=round(psutil.cpu_percent(None) / 100, 1),
            **self._hardware.read(seldom=seldom),
            **self._network(),
        )

    def host_memory(self) -> tuple[int, int]:
        """Bytes of the host's memory, and bytes in use, rounded."""
        memory, used = self._hardware.memory()
        return memory, round(used, 3 - len(str(memory)))

    def _network(self) -> dict[str, Any]:
        """Traffic, since the last call, of the interface that connects this host to the others."""
        name = interface_of(self.address) if self.address else None
        counted = psutil.net_io_counters(pernic=True).get(name) if name else None
        if name is None or counted is None:
            self._moved = None
            return {}
        now, before = time.monotonic(), self._moved
        self._moved = (name, counted.bytes_sent, counted.bytes_recv, now)
        found: dict[str, Any] = {"interface": name}
        if before is not None and before[0] == name and now > before[3]:
            # Two significant digits, so that the keep-alives of an idle host do not count as a change.
            found["sent_rate"] = float(f"{(counted.bytes_sent - before[1]) / (now - before[3]):.2g}")
            found["received_rate"] = float(f"{(counted.bytes_recv - before[2]) / (now - before[3]):.2g}")
        return found

    def memory(self) -> Memory:
        """Bytes: the process's resident memory; MLX's active, peak and cached memory (None before mlx is imported)."""
        mx = sys.modules.get("mlx.core")
        asked = ("get_active_memory", "get_peak_memory", "get_cache_memory")
        imported = all(hasattr(mx, name) for name in asked)  # the main thread may be importing it
        return Memory(self._process.memory_info().rss, *(getattr(mx, name)() if imported else None for name in asked))

    def cpu(self) -> float:
        """CPU time of this process since the last call, as a share of one core."""
        used, now = self._cpu_seconds(), time.monotonic()
        share = (used - self._cpu) / max(now - self._at, 1e-9)
        self._cpu, self._at = used, now
        return share

    def used(self) -> float:
        """Seconds of CPU time of this process since the last call of `cpu`."""
        return self._cpu_seconds() - self._cpu

    def _cpu_seconds(self) -> float:
        times = os.times()
        return times.user + times.system

    def main_thread_asleep(self) -> bool | None:
        """Whether the main thread waits on a lock, as it does inside a collective; None if that cannot be determined.

        Linux shows in ``/proc`` which system call a thread is in: futex for a lock, another for ``time.sleep`` or a
        read. Hardened kernels may hide the system call; then only the thread's state is read. macOS has no ``/proc``.
        """
        # The main thread's id equals the process's; threading's native_id is still the parent's after a fork (3.11).
        task = f"/proc/self/task/{os.getpid()}"
        try:
            with open(f"{task}/syscall") as file:
                call = file.read().split()
            if call[0] == _FUTEX:
                return True
            return None if self.cuda and _may_wait_for_cuda(call) else False
        except (OSError, IndexError):
            pass
        try:
            with open(f"{task}/stat") as file:
                return file.read().rpartition(")")[2].split()[0] == "S"
        except (OSError, IndexError):
            return None


def _may_wait_for_cuda(call: Sequence[str]) -> bool:
    """Whether a thread in this system call (a line of ``/proc/self/task/*/syscall``) may wait for a GPU.

    MLX 0.32.4 waits for the GPU in CUDA's driver (``cudaEventSynchronize`` of a blocking event, which polls, or
    ``cudaStreamSynchronize``, which spins), and for the CPU's collectives in ``cuda::atomic_ref::wait``, which yields
    and naps. Read in the sources; not seen on a GPU. Python's ``time.sleep`` differs: it sleeps until a point in time.
    """
    number, flags = call[0], call[2] if len(call) > 2 else ""
    return number in _CUDA_WAITS or (number == _CLOCK_NANOSLEEP and flags == "0x0")


_ARM = os.uname().machine == "aarch64"
_FUTEX = "98" if _ARM else "202"
_CLOCK_NANOSLEEP = "115" if _ARM else "230"
_CUDA_WAITS = frozenset({"running", *(("73", "124", "101", "29") if _ARM else ("7", "271", "24", "35", "16"))})
"""``running`` (spinning), and the numbers of ppoll (on x86-64 also poll), sched_yield, nanosleep and ioctl."""
