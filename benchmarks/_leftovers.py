"""What a cluster uses of the machine, so that growth is seen: processes, descriptors, ports, threads, memory, files."""

from __future__ import annotations

import gc
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from allranks import Cluster

MORE_DESCRIPTORS, MORE_THREADS = 6, 4
"""Allowed above the first count: pools and caches fill while they are used."""
MORE_MEMORY = 96 << 20
"""Bytes by which a process may grow: a ring keeps 32 MiB per rank and connection, and malloc keeps freed memory."""


@dataclass(frozen=True)
class Usage:
    """What one process uses now."""

    descriptors: int
    threads: int
    memory: int

    @classmethod
    def of(cls, pid: int) -> Usage:
        process = psutil.Process(pid)
        with process.oneshot():
            return cls(process.num_fds(), process.num_threads(), process.memory_info().rss)

    def grown(self, first: Usage) -> list[str]:
        """Each figure that has grown since `first`, in words."""
        said = []
        if self.descriptors > first.descriptors + MORE_DESCRIPTORS:
            said.append(f"{first.descriptors} to {self.descriptors} descriptors")
        if self.threads > first.threads + MORE_THREADS:
            said.append(f"{first.threads} to {self.threads} threads")
        if self.memory > first.memory + MORE_MEMORY:
            said.append(f"{first.memory >> 20} to {self.memory >> 20} MiB")
        return said


class Leftovers:
    """Compares what there is after each round with what there was at the first look."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        assert cluster._live.ranks is not None and cluster._live.ranks.host._process is not None
        self._host = psutil.Process(cluster._live.ranks.host._process.pid)
        self._first: dict[int, Usage] = {}
        self._others = {process.pid for process in self._children()} - {process.pid for process in self._processes()}
        self._shape: tuple[int, int, int] | None = None

    def look(self) -> list[str]:
        """In words, everything that has grown; processes that are new are only learnt."""
        gc.collect()
        said = []
        for name, pid in self._named():
            usage = Usage.of(pid)
            said += [f"{name}: {what}" for what in usage.grown(self._first.setdefault(pid, usage))]
        processes = self._processes()
        shape = (len(processes), _listening(processes), self._files())
        self._shape = self._shape or shape
        for what, first, now in zip(("processes", "listening ports", "files"), self._shape, shape):
            if now > first:
                said.append(f"{first} to {now} {what}")
        strangers = [process for process in self._children() if not self._is_known(process)]
        said += [f"left: {_words(process)}" for process in strangers if process not in processes]
        return said

    def _is_known(self, process: psutil.Process) -> bool:
        """Whether it, or what started it, was there before: a browser of other tests starts processes of its own."""
        try:
            return bool(self._others & {process.pid, *(each.pid for each in process.parents())})
        except psutil.Error:
            return True  # it has ended

    def _named(self) -> list[tuple[str, int]]:
        ranks = self._cluster._live.ranks
        assert ranks is not None
        named = [("the notebook", os.getpid()), ("the host process", self._host.pid)]
        return named + [(f"rank {rank.rank}", rank.pid) for rank in ranks.monitor.ranks if rank.pid]

    def _processes(self) -> list[psutil.Process]:
        """The host process and everything under it."""
        return [self._host, *self._host.children(recursive=True)]

    @staticmethod
    def _children() -> list[psutil.Process]:
        return psutil.Process().children(recursive=True)

    def _files(self) -> int:
        """Files of the cluster, without those a world has one of for each generation."""
        ranks = self._cluster._live.ranks
        assert ranks is not None
        return sum(1 for path in Path(ranks.host.directory).rglob("*") if not path.name.startswith("ring-"))


def _listening(processes: Sequence[psutil.Process]) -> int:
    count = 0
    for process in processes:
        try:
            count += sum(1 for each in process.net_connections("tcp") if each.status == psutil.CONN_LISTEN)
        except psutil.Error:
            continue
    return count


def _words(process: psutil.Process) -> str:
    try:
        return f"{process.pid} {' '.join(process.cmdline())[:120]}"
    except psutil.Error:
        return f"{process.pid} (gone)"
