"""Bring files of ranks to the notebook's machine: one copy of what is equal, one for each rank of what differs."""

from __future__ import annotations

import os
import shutil
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from allranks.errors import CannotCopy, UsageError
from allranks.head.world.ranks import Ranks
from allranks.messages.questions import Reply, RequestFailed
from allranks.messages.requests import (
    Answer,
    DigestFile,
    FileRead,
    FilesFound,
    FindFiles,
    FoundFile,
    Question,
    ReadFile,
)
from allranks.messages.transfers import CHUNK
from allranks.notebook.transfer_progress import SHOW_EVERY, wait_and_show
from allranks_backends.plan import rank_label
from allranks_widgets import human_bytes

from .result import files_text, names

TARGET = "fetched"
"""The folder beside the notebook for what is fetched; its `.gitignore` keeps it from being sent to hosts."""
AHEAD = 8
"""Parts that are asked for ahead of those that have come."""
WITHIN = 120.0
"""Seconds a rank gets to answer."""

A = TypeVar("A", bound=Answer)


@dataclass
class FetchResult:
    """What was fetched."""

    target: Path
    files: Mapping[str, Sequence[int]]
    """The ranks that have each file, by its path below `target`."""
    nbytes: int = 0
    without: Sequence[int] = ()
    """Ranks that have no such file."""

    def __str__(self) -> str:
        said = f"{files_text(len(self.files), self.nbytes)} fetched to {self.target}: {names(list(self.files))}."
        some = f" {rank_label(list(self.without))} had none." if self.without else ""
        return said + some

    __repr__ = __str__


@dataclass
class _Copy:
    """One file to be fetched."""

    path: str
    """Below the target."""
    found: FoundFile
    ranks: list[int]
    """Those that have it; the first one sends it."""


@dataclass
class _Source:
    """What one rank sends."""

    copies: list[_Copy] = field(default_factory=list)
    total: int = 0
    moved: int = 0


class Fetch:
    """One fetch from these ranks. `go_on` is called often, and may raise."""

    def __init__(self, ranks: Ranks, chosen: Sequence[int], target: Path, go_on: Callable[[], None]) -> None:
        self._ranks, self._chosen, self._target, self._go_on = ranks, chosen, target, go_on
        self._stop = threading.Event()

    def run(self, pattern: str, *, overwrite: bool) -> FetchResult:
        """Raises UsageError where no rank has such a file, or it is here already; CannotCopy; what `go_on` raises."""
        asked = {rank: FindFiles(pattern=os.fsencode(pattern)) for rank in self._chosen}
        found = self._answers(asked)
        if more := sum(each.more for each in found.values()):
            raise UsageError(f"{more:,} files too many match {pattern}: name fewer.")
        copies = self._copies(found)
        if not copies:
            folders = {os.fsdecode(each.folder) for each in found.values()}
            raise UsageError(f"no rank has a file {pattern} (they work in {', '.join(sorted(folders))}).")
        self._refuse(copies, overwrite)
        self._fetch(copies)
        without = [rank for rank, each in found.items() if not each.files]
        nbytes = sum(each.found.size for each in copies)
        return FetchResult(self._target, {each.path: each.ranks for each in copies}, nbytes, without)

    # Which files.

    def _copies(self, found: Mapping[int, FilesFound]) -> list[_Copy]:
        """Each file once; under the number of its rank where files of one path differ."""
        by_path = dict[str, list[_Copy]]()
        for rank, answer in found.items():
            host = self._ranks.monitor.ranks[rank].host
            ours = os.fsencode(self._target) + b"/" if host == self._ranks.reached.here.name else None
            for each in answer.files:
                if ours is not None and each.path.startswith(ours):
                    continue  # what was fetched before
                path = _name(each)
                copies = by_path.setdefault(path, [])
                same = next((one for one in copies if self._is_one_file(one, host, each)), None)
                if same is not None:
                    same.ranks.append(rank)
                else:
                    copies.append(_Copy(path, each, [rank]))
        self._merge_equal(by_path)
        for path, copies in by_path.items():
            if len(copies) > 1:
                for one in copies:
                    one.path = f"rank-{one.ranks[0]}/{path}"
        return [one for copies in by_path.values() for one in copies]

    def _is_one_file(self, copy: _Copy, host: str, found: FoundFile) -> bool:
        theirs = self._ranks.monitor.ranks[copy.ranks[0]].host
        return theirs == host and copy.found.identity == found.identity

    def _merge_equal(self, by_path: Mapping[str, list[_Copy]]) -> None:
        """Of files with one path whose content is equal, keep one."""
        for copies in by_path.values():
            if len(copies) < 2 or len({each.found.size for each in copies}) > 1:
                continue
            asked = {each.ranks[0]: DigestFile(path=each.found.path) for each in copies}
            digests = {rank: answer.digest for rank, answer in self._answers(asked).items()}
            if len(set(digests.values())) == 1:
                copies[0].ranks += [rank for each in copies[1:] for rank in each.ranks]
                del copies[1:]

    def _refuse(self, copies: Sequence[_Copy], overwrite: bool) -> None:
        """Before anything is written. Raises UsageError and CannotCopy."""
        there = [each.path for each in copies if os.path.lexists(self._target / each.path)]
        if there and not overwrite:
            raise UsageError(f"{names(there)} in {self._target}: already there. --overwrite replaces it.")
        try:
            self._target.mkdir(parents=True, exist_ok=True)
            if self._target.name == TARGET:
                with suppress(FileExistsError), open(self._target / ".gitignore", "x") as file:
                    file.write("*\n")
            free = shutil.disk_usage(self._target).free
        except OSError as error:
            raise UsageError(f"{self._target}: {error.strerror}.") from None
        if (need := sum(each.found.size for each in copies)) > free:
            raise CannotCopy(f"{human_bytes(need)} are to be fetched, and {human_bytes(free)} are free here.")

    # Fetching.

    def _fetch(self, copies: Sequence[_Copy]) -> None:
        sources = dict[int, _Source]()
        for each in copies:
            source = sources.setdefault(each.ranks[0], _Source())
            source.copies.append(each)
            source.total += each.found.size

        def line(rank: int) -> str:
            source = sources[rank]
            return f"{human_bytes(source.moved)} of {human_bytes(source.total)} fetched"

        with ThreadPoolExecutor(len(sources)) as threads:
            under_way = {rank: threads.submit(self._all_of, rank, source) for rank, source in sources.items()}

            def over() -> bool:
                return not wait(under_way.values(), SHOW_EVERY, "FIRST_EXCEPTION").not_done or any(
                    each.done() and each.exception() for each in under_way.values()
                )

            try:
                wait_and_show(over, sources, line, self._go_on)
            finally:
                self._stop.set()
        failed = [error for each in under_way.values() if (error := each.exception())]
        if others := [error for error in failed if not isinstance(error, CannotCopy)]:
            raise others[0]
        if failed:
            raise CannotCopy("\n".join(dict.fromkeys(map(str, failed))))

    def _all_of(self, rank: int, source: _Source) -> None:
        for copy in source.copies:
            if self._stop.is_set():
                return
            self._one(rank, source, copy)

    def _one(self, rank: int, source: _Source, copy: _Copy) -> None:
        """Fetch one file; nothing is left of one that is not whole."""
        target = self._target / copy.path
        part = target.with_name(f".{target.name}.part")
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            with open(part, "wb") as file:
                whole = self._parts(rank, source, copy, file.write)
            if not whole:
                return
            os.utime(part, ns=(copy.found.mtime_ns, copy.found.mtime_ns))
            os.replace(part, target)
        except OSError as error:
            raise CannotCopy(f"{target} cannot be written here ({error.strerror}).") from None
        finally:
            with suppress(OSError):
                part.unlink()

    def _parts(self, rank: int, source: _Source, copy: _Copy, write: Callable[[bytes], object]) -> bool:
        """Write all parts in order; returns False if it was stopped. Raises CannotCopy."""
        under_way, offset = deque[Future[Reply[FileRead]]](), 0
        while under_way or offset < copy.found.size:
            while offset < copy.found.size and len(under_way) < AHEAD:
                question = ReadFile(path=copy.found.path, offset=offset, count=CHUNK)
                under_way.append(self._ask(rank, question))
                offset += CHUNK
            answer = under_way.popleft()
            while not answer.done():
                if self._stop.is_set():
                    return False
                wait([answer], SHOW_EVERY)
            reply = self._settled(rank, answer)
            if (reply.answer.size, reply.answer.mtime_ns) != (copy.found.size, copy.found.mtime_ns):
                raise CannotCopy(
                    f"rank {rank}: {os.fsdecode(copy.found.path)} was changed while it was fetched. Try again."
                )
            for data in reply.buffers:
                write(bytes(data))
                source.moved += len(data)
        return True

    # Asking.

    def _ask(self, rank: int, question: Question[A]) -> Future[Reply[A]]:
        asked = self._ranks.ask([rank], question)
        if rank not in asked:
            raise CannotCopy(f"rank {rank} has died ({self._ranks.monitor.ranks[rank].dead}).")
        return asked[rank]

    def _answers(self, asked: Mapping[int, Question[A]]) -> dict[int, A]:
        futures = {rank: self._ask(rank, question) for rank, question in asked.items()}
        wait_and_show(lambda: not wait(futures.values(), SHOW_EVERY).not_done, futures, lambda _: "", self._go_on)
        return {rank: self._settled(rank, answer).answer for rank, answer in futures.items()}

    def _settled(self, rank: int, answer: Future[Reply[A]]) -> Reply[A]:
        try:
            return answer.result(WITHIN)
        except RequestFailed as error:
            raise CannotCopy(f"rank {rank}: {error}.") from None
        except (ConnectionError, TimeoutError) as error:
            raise CannotCopy(f"rank {rank}: {error or 'no answer'}. Try again.") from None


def _name(found: FoundFile) -> str:
    """Its path below the target. Raises CannotCopy for one that leads elsewhere, which no rank of ours sends."""
    name = os.path.normpath(os.fsdecode(found.name))
    if os.path.isabs(name) or name.split("/")[0] == "..":
        raise CannotCopy(f"{name} leads out of the folder for what is fetched.")
    return name
