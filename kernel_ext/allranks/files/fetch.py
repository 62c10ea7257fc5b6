"""Fetch files from ranks to the notebook's machine: one copy of equal files, one for each rank if they differ."""

from __future__ import annotations

import os
import re
import shutil
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import BinaryIO

from allranks.errors import CannotCopy, UsageError
from allranks.head.state.known_rank import Rank
from allranks.head.state.shared_advice import HEALS, died_text
from allranks.head.world.ranks import Ranks
from allranks.lifeline.open_questions import RequestFailed
from allranks.lifeline.transfers import CHUNK
from allranks.messages.requests import (
    DigestFiles,
    FilePart,
    FilesFound,
    FileState,
    FindFiles,
    FoundFile,
    ReadParts,
)
from allranks.messages.wire import Buffer
from allranks_backends.plan import rank_label
from allranks_widgets import human_bytes

from .sync_result import files_text, names
from .transfer import FileTransfer, batches

COMPARED_IN_ONE = 64 * 2**20
"""Maximum total bytes of the files whose digests one message asks for, unless it asks for one larger file."""
_OF_RANK = re.compile(r"rank-\d+(/|$)")
"""Matches the folder for one rank, and each path in it."""
TARGET = "fetched"
"""The folder beside the notebook for fetched files; its `.gitignore` keeps it from being sent to hosts."""


@dataclass
class FetchResult:
    """The result of a fetch."""

    target: Path
    files: Mapping[str, Sequence[int]]
    """The ranks that have each file, by its path below `target`."""
    nbytes: int = 0
    without: Sequence[int] = ()
    """Ranks that have no matching file."""

    def __str__(self) -> str:
        said = f"{files_text(len(self.files), self.nbytes)} fetched to {self.target}: {names(list(self.files))}."
        some = f" {rank_label(list(self.without))} had none." if self.without else ""
        return said + some

    __repr__ = __str__


@dataclass
class _Copy:
    """One file to be fetched."""

    path: str
    """Relative to the target."""
    found: FoundFile
    ranks: list[int]
    """The ranks that have the file; the first one sends it."""


class Fetch:
    """One fetch of files from the `chosen` ranks to `target`. `go_on` is called often, and may raise."""

    def __init__(self, ranks: Ranks, chosen: Sequence[int], target: Path, go_on: Callable[[], None]) -> None:
        self._ranks, self._chosen, self._target = ranks, chosen, target
        self._go_on, self._transfer = go_on, FileTransfer(ranks, go_on, _explained)

    def run(self, pattern: str, *, overwrite: bool) -> FetchResult:
        """Fetch the files that match `pattern`.

        Raises UsageError if no rank has such a file, if too many match, if the target folder cannot be made, or if a
        file exists there already and `overwrite` is not set; CannotCopy; and what `go_on` raises.
        """
        found = self._transfer.answers(dict.fromkeys(self._chosen, FindFiles(pattern=os.fsencode(pattern))))
        if any(each.more for each in found.values()):
            most = max(len(each.files) for each in found.values())
            raise UsageError(
                f"{most + max(each.more for each in found.values()):,} files of a rank match {pattern}, and at most "
                f"{most:,} are fetched at a time. Name fewer, or pack them there first, into a tar file for instance."
            )
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
        """The files to fetch, one copy of equal files. If files with one path differ, each goes to a rank's folder."""
        by_path = dict[str, list[_Copy]]()
        for rank, answer in found.items():
            host = self._ranks.monitor.ranks[rank].host
            # A host may mount the notebook's folder.
            is_here = host == self._ranks.reached.here.name or self._target.name == TARGET
            ours = os.fsencode(self._target) + b"/" if is_here else None
            for each in answer.files:
                if ours is not None and each.path.startswith(ours):
                    continue  # fetched before
                path = _name(each)
                copies = by_path.setdefault(path, [])
                same = next((one for one in copies if self._is_one_file(one, host, each)), None)
                if same is not None:
                    same.ranks.append(rank)
                else:
                    copies.append(_Copy(path, each, [rank]))
        self._merge_equal(by_path)
        for path in _by_rank(by_path):
            for one in by_path[path]:
                one.path = f"rank-{one.ranks[0]}/{path}"
        return [one for copies in by_path.values() for one in copies]

    def _is_one_file(self, copy: _Copy, host: str, found: FoundFile) -> bool:
        theirs = self._ranks.monitor.ranks[copy.ranks[0]].host
        return theirs == host and copy.found.identity == found.identity

    def _merge_equal(self, by_path: Mapping[str, list[_Copy]]) -> None:
        """For each path, keep one copy if the content of all its copies is equal."""
        alike = [each for each in by_path.values() if len(each) > 1 and len({copy.found.size for copy in each}) == 1]
        of_rank = defaultdict[int, list[_Copy]](list)
        for copies in alike:
            for each in copies:
                of_rank[each.ranks[0]].append(each)
        digests = self._digests(of_rank) if of_rank else {}
        for copies in alike:
            if len({digests[id(each)] for each in copies}) == 1:
                copies[0].ranks += [rank for each in copies[1:] for rank in each.ranks]
                del copies[1:]

    def _digests(self, of_rank: Mapping[int, Sequence[_Copy]]) -> dict[int, bytes]:
        """The digest of each copy in `of_rank`, by the copy's ``id``."""
        found = dict[int, bytes]()
        transfer = FileTransfer(self._ranks, self._go_on, _explained)
        compared = dict.fromkeys(of_rank, 0)

        def compare(rank: int) -> None:
            together = batches(of_rank[rank], COMPARED_IN_ONE, lambda each: each.found.size)
            questions = ((DigestFiles(paths=[each.found.path for each in some]), ()) for some in together)
            copies = iter(of_rank[rank])
            for reply in transfer.stream(rank, questions):
                for digest in reply.answer.digests:
                    found[id(next(copies))] = digest
                compared[rank] += len(reply.answer.digests)

        def line(rank: int) -> str:
            return f"{compared[rank]:,} of {len(of_rank[rank]):,} files compared"

        transfer.move(compared, compare, "", line)
        return found

    def _refuse(self, copies: Sequence[_Copy], overwrite: bool) -> None:
        """Make the target folder.

        Raises UsageError if that fails, or if a file exists there and `overwrite` is not set; CannotCopy if the disk
        lacks space.
        """
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
        sources = defaultdict[int, list[_Copy]](list)
        for each in copies:
            sources[each.ranks[0]].append(each)

        def all_of(rank: int) -> None:
            # One stream, with many small files in a message, so that the next files arrive while one is written.
            parts = [_parts(copy) for copy in sources[rank]]
            together = batches(chain.from_iterable(parts), CHUNK, lambda part: part.count)
            replies = self._transfer.stream(rank, ((ReadParts(parts=some), ()) for some in together))
            read = (each for reply in replies for each in zip(reply.answer.files, reply.buffers, strict=True))
            for copy, own in zip(sources[rank], parts, strict=True):
                self._one(rank, copy, islice(read, len(own)))

        nbytes = {rank: sum(each.found.size for each in source) for rank, source in sources.items()}
        self._transfer.move(nbytes, all_of, "fetched")

    def _one(self, rank: int, copy: _Copy, parts: Iterable[tuple[FileState, Buffer]]) -> None:
        """Write one file; an incomplete file is removed."""
        target = self._target / copy.path
        part = target.with_name(f".{target.name}.part")
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            with open(part, "wb") as file:
                self._write_parts(rank, copy, parts, file)
            os.utime(part, ns=(copy.found.mtime_ns, copy.found.mtime_ns))
            os.replace(part, target)
        except OSError as error:
            raise CannotCopy(f"{target} cannot be written here ({error.strerror}).") from None
        finally:
            with suppress(OSError):
                part.unlink()

    @staticmethod
    def _write_parts(rank: int, copy: _Copy, parts: Iterable[tuple[FileState, Buffer]], file: BinaryIO) -> None:
        found = copy.found
        for now, data in parts:
            if (now.size, now.mtime_ns) != (found.size, found.mtime_ns):
                raise CannotCopy(f"rank {rank}: {os.fsdecode(found.path)} was changed while it was fetched. Try again.")
            file.write(data)


def _by_rank(by_path: Mapping[str, Sequence[_Copy]]) -> list[str]:
    """The paths whose files go to a folder for each rank: the files differ, or another rank has a folder there.

    If there is such a path, the paths that begin like a rank's folder (``rank-0/``) are returned as well, so that no
    two files get the same path.
    """
    folders = set[str]()
    for path in by_path:
        folder = os.path.dirname(path)
        while folder and folder not in folders:
            folders.add(folder)
            folder = os.path.dirname(folder)
    found = {path for path, copies in by_path.items() if len(copies) > 1 or path in folders}
    return [path for path in by_path if path in found or (found and _OF_RANK.match(path))]


def _parts(copy: _Copy) -> list[FilePart]:
    """The parts in which the file is read; an empty file also has one."""
    path, size = copy.found.path, copy.found.size
    return [FilePart(path, offset, min(CHUNK, size - offset)) for offset in range(0, max(size, 1), CHUNK)]


def _explained(rank: Rank, _host: str, error: Exception | None) -> str:
    if error is None:
        return f"{died_text([rank])}. {HEALS}."
    again = "" if isinstance(error, RequestFailed) else " Try again, or fetch from the others with -r."
    return f"rank {rank.rank}: {error}.{again}"


def _name(found: FoundFile) -> str:
    """The file's path below the target. Raises CannotCopy if the path leads out of it; our ranks send no such path."""
    name = os.path.normpath(os.fsdecode(found.name))
    if os.path.isabs(name) or name.split("/")[0] == "..":
        raise CannotCopy(f"{name} leads out of the folder for what is fetched.")
    return name
