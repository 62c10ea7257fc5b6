"""Pretended Macs with cables: what their ranks need in the environment, what they hold, and what goes wrong."""

from __future__ import annotations

import json
import mmap
import os
import shutil
import struct
import tempfile
from collections.abc import Iterable
from pathlib import Path

from .build import Built

COUNTS = ("contexts", "domains", "queues", "pairs", "regions", "violations")
"""The fields of ``Held`` in verbs.h."""
HOOK = Path(__file__).parent / "hook"
CUT, FAIL_NEXT = 0, 4
"""Where the fields of ``Faults`` in verbs.h are."""


class Lab:
    """`ranks` Macs with `wires` cables between every two."""

    def __init__(self, built: Built, ranks: int, wires: int = 1, fewer: frozenset[int] = frozenset()) -> None:
        """Between the two ranks that are `fewer` there is one cable."""
        self.folder = Path(tempfile.mkdtemp(prefix="jaccl-lab-", dir="/dev/shm"))
        self.ranks, self.wires, self._fewer, self._built = ranks, wires, fewer, built

    def close(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)

    @staticmethod
    def device(rank: int, peer: int, wire: int = 0) -> str:
        """Name of the device by which `rank` reaches `peer`."""
        return f"rdma_r{rank}p{peer}w{wire}"

    def env(self, **more: str) -> dict[str, str]:
        """The environment of all processes of a cluster, the notebook's first of all."""
        pairs = [(one, other) for one in range(self.ranks) for other in range(self.ranks) if one != other]
        names = [self.device(one, other, wire) for one, other in pairs for wire in range(self.wires)]
        devices = [f"{name}=169.254.{place // 256}.{place % 256}" for place, name in enumerate(names)]
        return {
            "LAB_RDMA_DIR": str(self.folder),
            "LAB_RDMA_DEVICES": ",".join(devices),
            "LAB_RDMA_LIBRARY": str(self._built.verbs),
            "LAB_GLUE": str(self._built.glue),
            "PYTHONPATH": os.pathsep.join(filter(None, [str(HOOK), os.environ.get("PYTHONPATH", "")])),
            **more,
        }

    def hostfile(self) -> Path:
        """This machine, once for each rank, with the devices of its row."""
        rows = [[self._entry(rank, peer) for peer in range(self.ranks)] for rank in range(self.ranks)]
        file = self.folder / "hosts.json"
        file.write_text(json.dumps([{"ssh": "localhost", "ips": ["127.0.0.1"], "rdma": row} for row in rows]))
        return file

    def _entry(self, rank: int, peer: int) -> list[str] | None:
        if rank == peer:
            return None
        wires = 1 if {rank, peer} == self._fewer else self.wires
        return [self.device(rank, peer, wire) for wire in range(wires)]

    def held(self, pids: Iterable[int | None] | None = None) -> dict[str, int]:
        """What these processes have not given back, or all that there ever were: names of resources to counts."""
        files = self.folder.glob("held-*") if pids is None else [self.folder / f"held-{pid}" for pid in pids]
        found = [struct.unpack("6I", file.read_bytes()) for file in files if file.exists()]
        return {
            name: sum(each[place] for each in found)
            for place, name in enumerate(COUNTS)
            if any(e[place] for e in found)
        }

    def set_fault(self, device: str, field: int, value: int) -> None:
        """Have this device fail (see ``Faults``)."""
        with open(self.folder / f"dev-{device}", "r+b") as file, mmap.mmap(file.fileno(), 8) as fields:
            fields[field : field + 4] = struct.pack("I", value)
