"""Keep a copy of the notebook's working folder on each host whose ranks do not have the folder itself.

One rank of each host receives the files for all of its ranks. Hosts that share a folder get one copy. Files are first
sent to all hosts and only then put in place, so that if one host cannot store them, all hosts keep their old files.
"""

from __future__ import annotations

import hashlib
import itertools
import os
import platform
import secrets
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace

from allranks.errors import CannotCopy, UsageError
from allranks.head.state.known_rank import Rank
from allranks.head.world.ranks import Ranks
from allranks.lifeline.open_questions import Reply, RequestFailed
from allranks.lifeline.transfers import CHUNK
from allranks.messages.requests import (
    BeginFiles,
    CommitFiles,
    DropFiles,
    EnterFolder,
    FileEntry,
    FolderOpened,
    Nothing,
    OpenFolder,
    Piece,
    PutPieces,
)
from allranks.messages.requests.file_requests import CHANGED
from allranks_backends.plan import alike
from allranks_widgets import human_bytes

from .notebook_folder import LINK, Contents, Folder, Stamp
from .sync_result import HostSync, SyncResult, files_text, names
from .transfer import FileTransfer, batches

TRIES = 5
"""Maximum number of attempts to sync while files are being changed."""
WITHIN = 600.0
"""Timeout, in seconds, for a host's answer: putting many files in place may take long."""


@dataclass
class _There:
    """The known state of the folder on one host."""

    opened: FolderOpened
    rank: int
    """The rank that receives files for the host."""
    files: dict[str, Stamp] = field(default_factory=dict)
    refused: dict[str, tuple[Stamp | None, str]] = field(default_factory=dict)
    """Files that the host left as they were: the stamp of the notebook's file (None: it is gone), and why.

    Without ``overwrite``, such a file is not sent again until the notebook's file changes.
    """
    leader: str = ""
    """The other host that receives the files, if this host shares a folder with it; else empty."""


class FileChanged(CannotCopy):
    """A file was changed while it was read; the folder must be read again."""


class FolderSync:
    """The copies of `folder` on other hosts.

    `works_in` is the working folder of ranks without a copy. `named`: whether the user chose it; then the copies are
    made there. `placed` is filled with the folder of each host's copy; ranks that start later begin in it.
    """

    def __init__(self, folder: Folder, *, works_in: str, named: bool, placed: dict[str, str]) -> None:
        self.folder = folder
        self._works_in, self._named = works_in, named
        self._cwds = dict[str, str]()
        """The working folder of each host for which the user named one."""
        self._token, self._numbers = secrets.token_hex(8), itertools.count(1)
        self._there: dict[str, _There] = {}
        self._placed = placed
        self.putting_in_place = False
        """Whether hosts have begun to put the files of the last sync in place."""

    def _target(self, host: str) -> str:
        """The folder of the copy on a host: if none was named, a separate one for each notebook's folder."""
        if self._named or host in self._cwds:
            return self._cwd(host)
        return f"~/allranks/{self.folder.path.name}-{self._origin}"

    def _cwd(self, host: str) -> str:
        """The working folder of a host's ranks if the host has no copy."""
        return self._cwds.get(host, self._works_in)

    @property
    def _origin(self) -> str:
        """An id of the notebook's folder that differs from the ids of other folders and machines."""
        path = f"{platform.node()}:{self.folder.path}"
        return hashlib.sha256(path.encode(errors="surrogateescape")).hexdigest()[:8]

    def forget(self) -> None:
        """Forget the state of all hosts, so that the next sync asks them again."""
        self._there.clear()

    def bring(
        self, ranks: Ranks, *, overwrite: bool, progress: Callable[[str], None], go_on: Callable[[], None]
    ) -> SyncResult:
        """Bring all copies up to date. Raises UsageError, CannotCopy, and what `go_on` raises.

        If an error is raised before `putting_in_place` is set, no host's files have changed. `progress` is called with
        a line before files are sent to hosts whose state was unknown, as it is at the first sync.
        """
        for tries_left in reversed(range(TRIES)):
            self.putting_in_place = False
            try:
                contents = self.folder.scan(go_on)
                transfer = FileTransfer(ranks, go_on, self._explained, WITHIN)
                return self._bring(transfer, contents, overwrite, progress)
            except FileChanged:
                if not tries_left:
                    raise
        raise AssertionError

    def _bring(
        self, transfer: FileTransfer, contents: Contents, overwrite: bool, progress: Callable[[str], None]
    ) -> SyncResult:
        first, shown = self._open(transfer, contents), transfer.ranks.monitor.shown_as
        for there in self._leaders().values():  # a file that is not ours is reported only if the notebook has it
            there.refused = {
                path: (stamp, why)
                for path, (stamp, why) in there.refused.items()
                if path in contents.files or why == CHANGED
            }
        plans = {host: self._plan(there, contents, overwrite) for host, there in self._leaders().items()}
        plans = {host: plan for host, plan in plans.items() if plan.send or plan.remove}
        for (count, nbytes), group in _alike_plans({host: plan for host, plan in plans.items() if host in first}):
            if count:
                paths = plans[group[0]].send
                progress(f"Sending {files_text(count, nbytes)} to {', '.join(map(shown, group))}: {names(paths)}")
        done = self._send(transfer, contents, plans, overwrite) if plans else {}
        self._place(transfer)
        order = dict.fromkeys(rank.host for rank in transfer.ranks.monitor.ranks)
        results = {host: self._result(host, done, shown) for host in order if host in self._there}
        return SyncResult({shown(host): result for host, result in results.items()}, contents)

    def _result(self, host: str, done: Mapping[str, HostSync], shown: Callable[[str], str]) -> HostSync:
        there = self._there[host]
        refused = {path: why for path, (_, why) in there.refused.items()}
        nothing = HostSync(there.opened.folder, same=there.opened.same, with_host=shown(there.leader))
        return replace(done.get(host, nothing), refused={} if there.leader else refused)

    # What each host has.

    def _open(self, transfer: FileTransfer, contents: Contents) -> list[str]:
        """Ask the hosts whose state is not known which files they have; return these hosts.

        Raises CannotCopy, and UsageError if this machine's ranks work in a folder below the notebook's.
        """
        alive = dict[str, int]()
        for rank in transfer.ranks.monitor.ranks:
            if rank.dead is None:
                alive.setdefault(rank.host, rank.rank)
        known = {host: there for host, there in self._there.items() if host in alive}
        self._there = {host: there for host, there in known.items() if not there.leader or there.leader in known}
        for host, there in self._there.items():
            there.rank = alive[host]
        here = transfer.ranks.reached.here.name
        self._cwds = {each.name: each.cwd for each in transfer.ranks.hosts if each.cwd}
        works_in = os.path.expanduser(self._cwd(here))
        if here in alive and self._is_inside(works_in):
            raise UsageError(
                f"--cwd {works_in} lies in the notebook's folder {self.folder.path}, which would be copied into "
                "itself: choose another."
            )
        if here in alive and os.path.realpath(works_in) == os.path.realpath(self.folder.path):
            self._there[here] = _There(FolderOpened(works_in, same=True), alive[here])
        new = {host: rank for host, rank in alive.items() if host not in self._there}
        if not new:
            return []
        sample = self.folder.sample(contents.files)
        questions = {
            rank: OpenFolder(
                here=self._cwd(host),
                sample=sample,
                folder=self._target(host),
                origin=self._origin,
                forget=self._token,
            )
            for host, rank in new.items()
        }
        opened = transfer.answers(questions)
        leaders = {there.opened.identity: host for host, there in self._leaders().items()}
        for host, receiver in new.items():
            answer = opened[receiver]
            there = self._there[host] = _There(answer, receiver)
            if not answer.same and leaders.setdefault(answer.identity, host) != host:
                there.leader = leaders[answer.identity]
            there.files = {os.fsdecode(each.path): _stamp(each) for each in answer.files}
            there.refused = {os.fsdecode(each.path): (_stamp(each), CHANGED) for each in answer.changed}
            if answer.made:
                self._placed.pop(host, None)  # its ranks must leave the old folder, which was removed
        return list(new)

    def _is_inside(self, works_in: str) -> bool:
        target, folder = os.path.realpath(works_in), os.path.realpath(self.folder.path)
        return target != folder and os.path.commonpath([target, folder]) == folder

    def _leaders(self) -> dict[str, _There]:
        """The hosts that receive files: one for each copy of the folder."""
        return {host: there for host, there in self._there.items() if not (there.opened.same or there.leader)}

    def _plan(self, there: _There, contents: Contents, overwrite: bool) -> _Plan:
        send = [
            path
            for path, stamp in contents.files.items()
            if there.files.get(path) != stamp and (overwrite or there.refused.get(path, (None, ""))[0] != stamp)
        ]
        missing = [path for path in there.files if path not in contents.files and path not in contents.left_out]
        if overwrite:
            missing += [path for path in there.refused if path not in contents.files]
        remove = [path for path in missing if self._is_gone(path, contents)]
        return _Plan(send, sum(contents.files[path].size for path in send), remove)

    def _is_gone(self, path: str, contents: Contents) -> bool:
        """Whether the file no longer exists: it is missing, now a folder, or below a path that is now a file or a link.

        An unreachable file server, or a folder that cannot be read, does not count.
        """
        file, parts = self.folder.path / path, path.split("/")
        if any("/".join(parts[:end]) in contents.files for end in range(1, len(parts))):
            return True
        try:
            return stat.S_ISDIR(os.lstat(file).st_mode)
        except OSError as error:
            return isinstance(error, FileNotFoundError | NotADirectoryError)

    # Sending.

    def _send(
        self, transfer: FileTransfer, contents: Contents, plans: Mapping[str, _Plan], overwrite: bool
    ) -> dict[str, HostSync]:
        name = f"{self._token}-{next(self._numbers)}"
        hosts = {self._there[host].rank: host for host in plans}
        folders = {rank: self._there[host].opened.folder for rank, host in hosts.items()}

        def put(rank: int) -> None:
            pieces = self._pieces(plans[hosts[rank]], contents)
            messages = batches(pieces, CHUNK, lambda each: len(each[1]))  # each fits in one frame
            questions = (
                (PutPieces(folder=folders[rank], transfer=name, pieces=list(each)), data)
                for each, data in (zip(*message, strict=True) for message in messages)
            )
            for _ in transfer.stream(rank, questions):
                pass

        try:
            for host, plan in plans.items():
                if plan.nbytes > (free := self._there[host].opened.free):
                    need, named = human_bytes(plan.nbytes), transfer.ranks.monitor.shown_as(host)
                    raise CannotCopy(f"{named}: {need} are to be sent, and {human_bytes(free)} are free there.")
            transfer.answers({rank: BeginFiles(folder=folder, transfer=name) for rank, folder in folders.items()})
            transfer.move({rank: plans[host].nbytes for rank, host in hosts.items()}, put, "sent")
        except BaseException:
            for rank, host in hosts.items():
                self._there.pop(host)  # the next sync asks again what the host has
                transfer.ranks.ask([rank], DropFiles(folder=folders[rank], transfer=name))
            raise
        return self._commit(transfer, name, contents, plans, overwrite)

    def _pieces(self, plan: _Plan, contents: Contents) -> Iterator[tuple[Piece, bytes]]:
        """The content of all files to send."""
        for number, path in enumerate(plan.send):
            offset = 0
            for data in self._content(path, contents.files[path], plan):
                yield Piece(number, offset), data
                offset += len(data)

    def _content(self, path: str, stamp: Stamp, plan: _Plan) -> Iterator[bytes]:
        """The file's content in parts; none if the file is gone. Raises CannotCopy, and FileChanged."""
        file = self.folder.path / path
        try:
            if stamp.mode == LINK:
                yield os.fsencode(os.readlink(file))
                return
            left = stamp.size
            with open(file, "rb") as content:
                while left and (data := content.read(min(CHUNK, left))):
                    left -= len(data)
                    yield data
                now = os.fstat(content.fileno())
        except FileNotFoundError:
            plan.vanished.add(path)
            return
        except OSError as error:
            raise CannotCopy(
                f"{path} cannot be read here ({error.strerror}). Name it in .gitignore, or let it be read."
            ) from None
        # A growing log may be sent in part, but a module must be as the user has saved it.
        changed = (now.st_size, now.st_mtime_ns) != (stamp.size, stamp.mtime_ns)
        if left or (changed and path.endswith(".py")):
            raise FileChanged(
                f"{path} was changed each time it was read. Name it in .gitignore, or run the cell again."
            )

    def _commit(
        self,
        transfer: FileTransfer,
        name: str,
        contents: Contents,
        plans: Mapping[str, _Plan],
        overwrite: bool,
    ) -> dict[str, HostSync]:
        """Put the files in place on all hosts."""

        def question(host: str) -> CommitFiles:
            plan = plans[host]
            files = [
                (number, FileEntry(os.fsencode(path), *contents.files[path]))
                for number, path in enumerate(plan.send)
                if path not in plan.vanished
            ]
            remove = [os.fsencode(path) for path in plan.remove]
            return CommitFiles(
                folder=self._there[host].opened.folder,
                origin=self._origin,
                transfer=name,
                files=files,
                remove=remove,
                overwrite=overwrite,
            )

        self.putting_in_place = True
        try:
            of_rank = {self._there[host].rank: host for host in plans}
            answers = transfer.answers(
                {rank: question(host) for rank, host in of_rank.items()},
                lambda rank: f"puts {len(plans[of_rank[rank]].send):,} files in place",
            )
        except BaseException:
            for host in plans:
                self._there.pop(host)  # the next sync asks again what each host has
            raise
        results = {}
        for host, plan in plans.items():
            there = self._there[host]
            refused = {os.fsdecode(path): why for path, why in answers[there.rank].refused}
            sent = [path for path in plan.send if path not in refused and path not in plan.vanished]
            there.files |= {path: contents.files[path] for path in sent}
            for path in (*plan.remove, *sent):
                there.refused.pop(path, None)
            there.refused |= {path: (contents.files.get(path), why) for path, why in refused.items()}
            for path in plan.remove:
                there.files.pop(path, None)
            nbytes = sum(contents.files[path].size for path in sent)
            removed = [path for path in plan.remove if path not in refused]
            results[host] = HostSync(there.opened.folder, sent, nbytes, removed, refused)
        return results

    # Where ranks work.

    def _place(self, transfer: FileTransfer) -> None:
        """Make the idle ranks of hosts with a new copy enter it; ranks that start later begin in it.

        If a rank is busy, its host stays out of `placed`, so that the next sync tries again.
        """
        ranks = transfer.ranks
        folders = {host: there.opened.folder for host, there in self._there.items() if not there.opened.same}
        new = {host: folder for host, folder in folders.items() if self._placed.get(host) != folder}
        members = [rank for rank in ranks.monitor.ranks if rank.host in new and rank.dead is None]
        busy = {rank.rank for rank in ranks.monitor.busy([rank.rank for rank in members])}
        asked: dict[int, Future[Reply[Nothing]]] = {}
        for rank in members:
            if rank.rank not in busy:
                asked |= ranks.ask([rank.rank], EnterFolder(folder=new[rank.host]))
        transfer.settled(asked)
        later = {rank.host for rank in members if rank.rank not in asked}
        self._placed.update({host: folder for host, folder in new.items() if host not in later})

    def _explained(self, rank: Rank, host: str, error: Exception | None) -> str:
        """The message, with advice, for a rank's error, or for a dead rank (None)."""
        if error is None:
            return f"{host}: rank {rank.rank}, which receives for its host, has died. %distributed heal replaces it."
        if isinstance(error, RequestFailed):
            there = self._there.get(rank.host)
            return f"{host}: {_with_advice(str(error), there.opened.folder if there else self._target(rank.host))}"
        why = str(error) or f"no answer within {WITHIN:g} s"
        has = "it may have some of the new files" if self.putting_in_place else "it has what it had"
        return f"{host}: {why}; {has}. Run the cell again once %distributed status shows its ranks."


@dataclass(frozen=True)
class _Plan:
    send: Sequence[str]
    nbytes: int
    remove: Sequence[str]
    vanished: set[str] = field(default_factory=set)
    """Files that no longer existed when they were to be sent."""


def _alike_plans(plans: Mapping[str, _Plan]) -> Iterable[tuple[tuple[int, int], list[str]]]:
    """Groups of hosts that get the same number of files and bytes."""
    return alike({host: (len(plan.send), plan.nbytes) for host, plan in plans.items()}).items()


def _with_advice(said: str, folder: str) -> str:
    advice = ""
    if "No such file" in said:
        advice = f" Its folder {folder} was removed: run the cell again, which makes it again."
    elif "No space left" in said:
        advice = f" Make room on its disk ({folder}), or choose another folder with --cwd."
    elif "Read-only" in said or "Permission denied" in said or "never synced" in said:
        advice = " Choose a folder that its user may write in with --cwd."
    return f"{said}.{advice}"


def _stamp(entry: FileEntry) -> Stamp:
    return Stamp(entry.size, entry.mtime_ns, entry.mode)
