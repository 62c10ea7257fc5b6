"""Copy a file or a folder from one host to all others, from host to host.

One rank of each host takes part. The hosts form a chain, in the order of the ranks, so that neighbours in a ring stay
neighbours. Each host pulls blocks from the host before it, over the addresses that the world uses, and passes them on.
So the content crosses every link once, and all links transfer at the same time. If a connection breaks, the two hosts
reopen it without the notebook, which only asks for their progress and may be disconnected for a while. If the source is
the notebook's machine and no rank runs there, the notebook itself sends the first host its blocks.

Nothing is put in place until every host has all content, with the same digests as on the source.
"""

from __future__ import annotations

import os
import secrets
import stat
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, wait
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Literal, TypeVar

import msgspec

from allranks.errors import CannotCopy, UsageError
from allranks.head.state.known_rank import Rank
from allranks.head.world.ranks import Ranks
from allranks.lifeline.open_questions import Reply, RequestFailed
from allranks.machine.shared_records import look_for
from allranks.machine.shared_tree import (
    CONTENT,
    DIGEST,
    ContentChanged,
    Manifest,
    SharedFile,
    SharedTree,
    TreeEntry,
    WantedBlock,
    error_text,
    files_of,
    listed,
)
from allranks.messages.requests import (
    AcceptShare,
    Answer,
    AskShare,
    DigestShare,
    EndShare,
    FindShare,
    GiveBlocks,
    NameShare,
    Nothing,
    OfferShare,
    PlaceShare,
    PullShare,
    Question,
    ShareAccepted,
    ShareDigests,
    ShareFound,
    ShareOffered,
    ShareState,
)
from allranks.messages.requests.share_requests import NOT_PUT
from allranks.messages.wire import Buffer
from allranks.notebook.transfer_progress import SHOW_EVERY, wait_and_show
from allranks_backends.plan import alike
from allranks_widgets import human_bytes

from .sync_result import files_text, names
from .transfer import FileTransfer

SILENT_FOR = 180.0
"""Seconds without an answer from a host's rank after which the share fails. Until then, the rank continues."""
FEEDERS = 2
"""Number of messages with blocks that this machine sends at a time, if it is the source and no rank runs on it."""
ENDS_WITHIN = 2.0
"""Seconds to wait for the hosts to close their ports."""
AGAIN = "What has arrived was kept: the same %distributed share again sends the rest."
DIED = "{}: rank {}, which takes part for its host, has died. %distributed heal replaces it. {}"

A = TypeVar("A", bound=Answer)

_manifests = msgspec.msgpack.Decoder(Manifest)


@dataclass(frozen=True)
class HostShare:
    """A host's copy of the shared file or folder."""

    folder: str
    """The path of the copy."""
    files: int = 0
    """Number of files, links and folders that the host lacked."""
    nbytes: int = 0
    """Bytes that were sent to the host."""
    kept: int = 0
    """Bytes that the host had already, from a stopped share or another source; they were compared by digest."""
    same: bool = False
    """Whether the host has the source's own files, on a file system that both mount."""
    with_host: str = ""
    """The host whose copy this host shares; empty if it shares no other host's copy."""
    unnamed: str = ""
    """Why `allranks.shared` does not find the copy; empty if it does."""


@dataclass
class ShareResult:
    """The result of a share: its files, and their path on each host."""

    name: str
    """The name by which `allranks.shared` finds the files."""
    source: str
    """The host that had the files."""
    hosts: Mapping[str, HostShare]
    files: int
    nbytes: int
    """Total bytes of the files."""
    seconds: float
    left_out: Mapping[str, str] = field(default_factory=dict)
    """Files that are not shared, and why."""
    missed: Sequence[str] = ()
    """Hosts that got nothing, since their ranks are dead."""

    @property
    def rate(self) -> float:
        """Bytes received a second on the host that received most, averaged over the whole share."""
        return max((each.nbytes for each in self.hosts.values()), default=0) / self.seconds

    def __str__(self) -> str:
        sent = [host for host, each in self.hosts.items() if each.files]
        lines = [f"{self.name}: {files_text(self.files, self.nbytes)}, on {self.source} and shared with {_all(sent)}"]
        if sent:
            lines[0] += f" in {self.seconds:.1f} s ({human_bytes(self.rate)}/s)."
        else:
            others = [host for host in self.hosts if host != self.source]
            there = f"{_all(others)} had all of it already" if others else "all ranks run there"
            lines[0] = (
                f"{self.name}: {files_text(self.files, self.nbytes)} on {self.source}; {there}. Nothing was sent."
            )
        for said, hosts in alike({host: self._said(host, each) for host, each in self.hosts.items()}).items():
            lines.append(f"{', '.join(hosts)}: {said}")
        for why, paths in alike(self.left_out).items():
            lines.append(f"Not shared: {names(paths)}: {why}.")
        if self.missed:
            lines.append(
                f"Not sent to {_all(self.missed)}: its ranks are dead. Run %distributed heal, then the share again."
            )
        return "\n".join(lines)

    __repr__ = __str__

    def _said(self, host: str, there: HostShare) -> str:
        said = there.folder
        if there.same:
            said += f" (the same files as on {self.source})"
        elif there.with_host:
            said += f" (shared with {there.with_host})"
        elif there.files and there.kept:
            said += f" ({human_bytes(there.kept)} were there already)"
        return said + (f". A cell must use this path: {there.unnamed}" if there.unnamed else "")


@dataclass
class _Receiver:
    """A host whose progress is watched: a receiver, or the source."""

    host: str
    rank: int
    accepted: ShareAccepted
    state: ShareState = field(default_factory=lambda: ShareState("receives", 0, 0))
    asked: Future[Reply[ShareState]] | None = None
    answered_at: float = field(default_factory=time.monotonic)
    began_at: float = field(default_factory=time.monotonic)

    @property
    def total(self) -> int:
        return self.accepted.nbytes + self.accepted.compared


class HeadShare:
    """The notebook's end of one share between the hosts of `ranks`. `go_on` is called often, and may raise."""

    def __init__(self, ranks: Ranks, go_on: Callable[[], None]) -> None:
        self._ranks, self._go_on, self._shown = ranks, go_on, ranks.monitor.shown_as
        self._transfer, self._key = secrets.token_hex(8), secrets.token_bytes(32)
        self._members = dict[str, int]()
        """By host, the rank that takes part for it."""
        for rank in ranks.monitor.ranks:
            if rank.dead is None:
                self._members.setdefault(rank.host, rank.rank)
        self._files_here = dict[int, SharedFile]()
        """The files to send, if this machine is the source and no rank runs on it."""
        self._tree_here: SharedTree | None = None
        """The tree that was found on this machine, if no rank runs on it."""
        self._stop = threading.Event()
        self._phase: Literal["sending", "placing", "placed"] = "sending"

    def stopped(self) -> str:
        """The message for a user who has stopped the share."""
        if self._phase == "sending":
            return f"stopped before all hosts had it. {AGAIN}"
        if self._phase == "placing":
            return "stopped while it was put in place: all hosts may have it, or some. Run the share again."
        return "stopped once it was in place on all hosts. Run the share again for allranks.shared to find it."

    def run(self, path: str, *, source: str | int | None, to: str | None, overwrite: bool) -> ShareResult:
        """Share the file or folder at `path`.

        Raises UsageError if no host has it, if hosts have different versions, if there is nothing in it to share, if
        files are in the way, or for an unknown `source`; CannotCopy; and what `go_on` raises.
        """
        began = time.monotonic()
        source, found = self._source(path, source)
        chain = self._chain(source)
        try:
            offered, manifest = self._offered(source, found, len(chain) > 1)
            if not manifest.entries:
                raise UsageError(f"{self._shown(source)}: there is nothing to share in {path}.")
            accepted = self._accepted(chain, offered, manifest, to, overwrite=overwrite)
            receivers = self._pull(chain, offered, accepted)
            self._follow(source, receivers)
            self._compare(source, receivers, manifest)
            self._phase = "placing"
            self._place(receivers)
            self._phase = "placed"
        finally:
            self._end()
        seconds = time.monotonic() - began
        hosts = self._results(source, found, chain, accepted, receivers)
        called = self._name(path, offered, hosts)
        files = [entry for entry in manifest.entries if not stat.S_ISDIR(entry.mode)]
        left_out = {os.fsdecode(each): why for each, why in manifest.left_out}
        ranks = self._ranks.monitor.ranks
        missed = dict.fromkeys(self._shown(rank.host) for rank in ranks if rank.host not in self._members)
        total = sum(map(_size, files))
        shown = {self._shown(host): each for host, each in hosts.items()}
        return ShareResult(called, self._shown(source), shown, len(files), total, seconds, left_out, [*missed])

    # Who takes part.

    def _source(self, path: str, named: str | int | None) -> tuple[str, bytes]:
        """The host to share from, and the path there.

        A host with an original is preferred to one with a copy that an earlier share made; of several, the notebook's
        machine is preferred if ranks run on it. Raises UsageError if no host has the path, if the originals differ, or
        if `named` is no known rank or host; and CannotCopy.
        """
        here = self._ranks.reached.here.name
        asked = list(self._members) if named is None else [self._host_of(named)]
        question = FindShare(transfer=self._transfer, path=os.fsencode(path))
        replies = self._replies(dict.fromkeys((host for host in asked if host in self._members), question))
        found = {host: reply.answer for host, reply in replies.items()}
        if here not in self._members and (named is None or asked == [here]):
            copy, self._tree_here = look_for(os.fsencode(path))
            found[here] = ShareFound(**asdict(copy))
        having = {host: each for host, each in found.items() if each.path}
        if having:
            # A copy that a share made may be older than the original.
            own = {host: each for host, each in having.items() if not each.placed}
            if len({each.state for each in own.values()}) > 1:
                differ = _all([*map(self._shown, own)])
                raise UsageError(f"{path} is not the same on {differ}. Name the one to share with --from HOST.")
            candidates = own or having
            first = here if here in candidates and here in self._members else next(iter(candidates))
            return first, having[first].path
        folders = alike({host: os.fsdecode(each.working) for host, each in found.items()})
        looked = ", ".join(f"{folder} on {', '.join(map(self._shown, hosts))}" for folder, hosts in folders.items())
        raise UsageError(
            f"no host has {path}: it is neither a path (relative ones begin at {looked}) nor in the Hugging Face cache."
        )

    def _host_of(self, named: str | int) -> str:
        """The host that `named` means: by a rank, by the name that status shows, or by the name for ssh.

        Raises UsageError if there is no such rank or host.
        """
        number = int(named) if str(named).isdigit() else None
        ranks = self._ranks.monitor.ranks
        host = ranks[number].host if number is not None and number < len(ranks) else str(named)
        known = dict.fromkeys([*self._members, self._ranks.reached.here.name])
        shown = {self._shown(each): each for each in known}
        if host not in known and host not in shown:
            raise UsageError(f"--from {named}: no such rank or host. Hosts: {', '.join(shown)}")
        return host if host in known else shown[host]

    def _chain(self, source: str) -> list[str]:
        """The source and all hosts with live ranks, in the order of the ranks, starting at the source."""
        hosts = list(self._members)
        if source not in hosts:
            return [source, *hosts]
        first = hosts.index(source)
        return hosts[first:] + hosts[:first]

    def _addresses(self, host: str) -> list[str]:
        """The addresses at which other hosts reach the host."""
        assert self._ranks.plan is not None
        return list(self._ranks.plan.placements[self._members[host]].host.addresses)

    def _offered(self, source: str, path: bytes, wanted: bool) -> tuple[ShareOffered, Manifest]:
        """The source's offer and manifest. Raises CannotCopy.

        If `wanted` and a rank runs on the source, the rank then listens for the next host.
        """
        if source in self._members:
            addresses = self._addresses(source) if wanted else []
            offer = OfferShare(transfer=self._transfer, key=self._key, path=path, addresses=addresses)
            reply = self._replies({source: offer}, doing="reads what is to be shared")[source]
            return reply.answer, _manifests.decode(reply.buffers[0])
        try:
            found, manifest = self._tree_here or listed(path)
        except OSError as error:
            raise CannotCopy(f"{self._shown(source)}: {_explained(error_text(error), reads=True)}") from None
        self._files_here = files_of(found, manifest, self._key)
        return ShareOffered(found.name, found.parent_elsewhere, found.repo, []), manifest

    def _accepted(
        self,
        chain: Sequence[str],
        offered: ShareOffered,
        manifest: Manifest,
        to: str | None,
        *,
        overwrite: bool,
    ) -> dict[str, ShareAccepted]:
        """Ask each host except the source to prepare to receive, and return the answers by host.

        Raises UsageError if files are in the way, and CannotCopy if a host fails or its disk lacks space.
        """
        replies = self._replies(
            {
                host: AcceptShare(
                    transfer=self._transfer,
                    key=self._key,
                    name=offered.name,
                    parent=offered.parent if to is None else os.fsencode(to),
                    repo=offered.repo if to is None else "",
                    addresses=self._addresses(host) if host != chain[-1] else [],
                    overwrite=overwrite,
                )
                for host in chain[1:]
            },
            [msgspec.msgpack.encode(manifest)],
            "looks what is there already",
        )
        accepted = {host: reply.answer for host, reply in replies.items()}
        if refused := alike({host: tuple(each.refused) for host, each in accepted.items() if each.refused}):
            lines = [
                f"{', '.join(map(self._shown, hosts))}: {_in_the_way(why, accepted[hosts[0]], self._shown(chain[0]))}"
                for why, hosts in refused.items()
            ]
            raise UsageError("\n".join(lines))
        for host, each in accepted.items():
            if each.nbytes - each.kept > each.free and each.identity:
                need, free = human_bytes(each.nbytes - each.kept), human_bytes(each.free)
                raise CannotCopy(f"{self._shown(host)}: {need} are to be sent, and {free} are free there.")
        return accepted

    def _pull(
        self, chain: Sequence[str], offered: ShareOffered, accepted: Mapping[str, ShareAccepted]
    ) -> list[_Receiver]:
        """Make each host with a copy of its own pull from the previous such host in the chain, or from the source.

        Returns these hosts. Raises CannotCopy.
        """
        leaders = {each.identity: host for host, each in accepted.items() if each.identity and not each.taken}
        receivers, before, ports = list[_Receiver](), chain[0], offered.ports
        pulls = dict[str, Question[Nothing]]()
        for host in chain[1:]:
            each = accepted[host]
            if each.taken and each.identity not in leaders:
                raise CannotCopy(f"{self._shown(host)}: another share to {os.fsdecode(each.folder)} is under way.")
            if each.same or self._leader(host, accepted):
                continue
            if before in self._members and not ports:
                raise CannotCopy(f"{self._shown(before)} has no address at which {self._shown(host)} could reach it.")
            receivers.append(_Receiver(host, self._members[host], each))
            pulls[host] = PullShare(transfer=self._transfer, host=self._shown(before), ports=ports)
            before, ports = host, each.ports
        self._replies(pulls, doing="begins to receive")
        return receivers

    @staticmethod
    def _leader(host: str, accepted: Mapping[str, ShareAccepted]) -> str:
        """The other host that receives for `host`, if both share the folder; empty if there is none."""
        identity = accepted[host].identity
        if not identity:
            return ""
        writing = [each for each, other in accepted.items() if other.identity == identity and not other.taken]
        return next((each for each in writing[:1] if each != host), "")

    # Receiving.

    def _follow(self, source: str, receivers: Sequence[_Receiver]) -> None:
        """Wait until all receivers have everything, and show their progress. Raises CannotCopy as soon as one fails.

        If this machine is the source and no rank runs on it, threads send the first receiver its blocks meanwhile.
        """
        by_rank, pause = {each.rank: each for each in receivers}, threading.Event()
        watched = list(receivers)
        if source in self._members:
            watched.append(_Receiver(source, self._members[source], ShareAccepted(b"")))
        elif receivers:
            for _ in range(FEEDERS):
                threading.Thread(
                    target=self._feed, args=(receivers[0].rank,), name="allranks-share", daemon=True
                ).start()

        def over() -> bool:
            for each in watched:
                self._look(each)
            if all(each.state.state != "receives" for each in receivers):
                return True
            pause.wait(SHOW_EVERY)
            return False

        def line(rank: int) -> str:
            each = by_rank[rank]
            done = f"{human_bytes(each.state.moved + each.state.checked)} of {human_bytes(each.total)}"
            seconds = time.monotonic() - each.began_at
            return f"{done} received ({human_bytes(each.state.moved / seconds)}/s)"

        wait_and_show(over, by_rank, line, self._go_on)

    def _feed(self, rank: int) -> None:
        """Send the rank the blocks that it wants, from this machine."""
        given, failed, again = dict[WantedBlock, bytes](), "", True
        while not self._stop.is_set():
            uuid = self._ranks.monitor.ranks[rank].uuid
            question = GiveBlocks(transfer=self._transfer, given=list(given), failed=failed, again=again)
            asked, again = self._ranks.lifeline.ask(uuid, question, list(given.values())), False
            while not wait([asked], SHOW_EVERY).done and not self._stop.is_set():
                pass
            if self._stop.is_set():
                asked.cancel()
                return
            try:
                wanted = asked.result().answer.wanted
                given = {each: self._block(*each) for each in wanted}
            except ConnectionError:
                given, again = {}, True
                self._stop.wait(1.0)
            except RequestFailed:
                return  # `_follow` also gets the error
            except (OSError, ContentChanged) as error:
                given, failed = {}, error_text(error)

    def _block(self, kind: int, file: int, block: int) -> bytes:
        digest, data = self._files_here[file].block(block)
        return digest + data if kind == CONTENT else digest

    def _look(self, receiver: _Receiver) -> None:
        """Take the receiver's answer about its progress, and ask again. Raises CannotCopy."""
        rank, host = self._ranks.monitor.ranks[receiver.rank], self._shown(receiver.host)
        if rank.dead is not None:
            raise CannotCopy(DIED.format(host, receiver.rank, AGAIN))
        if receiver.asked is not None and receiver.asked.done():
            try:
                receiver.state, receiver.answered_at = receiver.asked.result().answer, time.monotonic()
            except ConnectionError:
                pass  # the rank continues on its own; it is asked again until `SILENT_FOR` has passed
            except RequestFailed as error:
                raise CannotCopy(f"{host}: {error}. {AGAIN}") from None
            receiver.asked = None
        if receiver.asked is None:  # also a rank that has everything: it passes blocks on only while it is asked
            receiver.asked = self._ranks.lifeline.ask(rank.uuid, AskShare(transfer=self._transfer))
        if receiver.state.state == "failed":
            why, other = receiver.state.why, receiver.state.elsewhere
            raise CannotCopy(f"{other or host}: {_explained(why, reads=bool(other))} {AGAIN}")
        if time.monotonic() - receiver.answered_at > SILENT_FOR:
            raise CannotCopy(f"{host}: no answer for {SILENT_FOR:.0f} s. {AGAIN}")

    def _compare(self, source: str, receivers: Sequence[_Receiver], manifest: Manifest) -> None:
        """Compare the digests of the received files with the source's. Raises CannotCopy."""
        received = [each for each in receivers if each.total]
        theirs = self._replies(
            {each.host: DigestShare(transfer=self._transfer) for each in received}, doing="computes checksums"
        )
        wanted = sorted({number for reply in theirs.values() for number in reply.answer.files})
        if not wanted:
            return
        if source in self._members:
            question = DigestShare(transfer=self._transfer, files=wanted)
            right = _digests(self._replies({source: question}, doing="computes checksums")[source])
        else:
            right = {number: self._files_here[number].digest() for number in wanted}
        before = dict(zip([each.host for each in receivers], [source, *(each.host for each in receivers)]))
        for host, reply in theirs.items():
            for number, digest in _digests(reply).items():
                if digest != right[number]:
                    path = os.fsdecode(manifest.entries[number].path)
                    here, other, first = map(self._shown, (host, before[host], source))
                    raise CannotCopy(
                        f"{here}: {path}, which came from {other}, has another checksum than on {first}. Nothing was "
                        f"put in place. Remove that file on {other}, then run the share again with --from "
                        f"{first}."
                    )

    def _place(self, receivers: Sequence[_Receiver]) -> None:
        """Put everything in place. Raises CannotCopy."""
        hosts = [each.host for each in receivers if each.accepted.missing]
        try:
            self._replies({host: PlaceShare(transfer=self._transfer) for host in hosts}, doing="puts it in place")
        except CannotCopy as error:
            others = " Other hosts may have it in place; run the share again." if len(hosts) > 1 else ""
            raise CannotCopy(f"{error}{others}") from None

    def _end(self) -> None:
        """Make all hosts end the share and close their ports. Received parts stay on the hosts."""
        self._stop.set()
        members = [self._ranks.monitor.ranks[rank] for rank in self._members.values()]
        request = EndShare(transfer=self._transfer)
        # An unreachable host ends the share once it is reached and receives the request.
        wait([self._ranks.lifeline.ask(rank.uuid, request) for rank in members if rank.dead is None], ENDS_WITHIN)

    # The result.

    def _results(
        self,
        source: str,
        found: bytes,
        chain: Sequence[str],
        accepted: Mapping[str, ShareAccepted],
        receivers: Sequence[_Receiver],
    ) -> dict[str, HostShare]:
        results = {source: HostShare(os.fsdecode(found))}
        states = {each.host: each.state for each in receivers}
        for host in chain[1:]:
            each, state = accepted[host], states.get(host)
            folder, leader = os.fsdecode(each.folder), self._leader(host, accepted)
            if state is None:
                results[host] = HostShare(folder, same=each.same, with_host=self._shown(leader))
            else:
                results[host] = HostShare(folder, each.missing, state.moved, state.checked)
        return {host: results[host] for host in dict.fromkeys([*self._members, source])}

    def _name(self, path: str, offered: ShareOffered, hosts: dict[str, HostShare]) -> str:
        """Let cells find the copies by name on all hosts; return the name."""
        called = offered.repo or os.fsdecode(offered.name)
        others = {called, called.rpartition("/")[2], os.fsdecode(offered.name), path.rstrip("/")}
        for host in self._members:
            there = hosts[host]
            question = NameShare(
                names=[os.fsencode(each) for each in sorted(others)],
                folder=os.fsencode(there.folder),
                repo=offered.repo,
            )
            try:
                self._replies({host: question})
            except CannotCopy as error:  # the files are in place even so
                hosts[host] = replace(there, unnamed=str(error))
        return called

    # Asking.

    def _replies(
        self, asked: Mapping[str, Question[A]], buffers: Sequence[Buffer] = (), doing: str = ""
    ) -> dict[str, Reply[A]]:
        """Ask each host's rank its question, with `buffers`, and return the replies by host.

        `doing` is shown for a host that takes long. Raises CannotCopy with a line for each host that failed.
        """
        reads = any(isinstance(question, OfferShare | DigestShare) for question in asked.values())
        transfer = FileTransfer(self._ranks, self._go_on, partial(_trouble, reads=reads))
        questions = {self._members[host]: question for host, question in asked.items()}
        replies = transfer.replies(questions, buffers, lambda _rank: doing)
        return {host: replies[self._members[host]] for host in asked}


def _trouble(rank: Rank, host: str, error: Exception | None, *, reads: bool) -> str:
    """The message for a host whose rank failed with `error`, or is dead (None). For `reads` see `_explained`."""
    if error is None:
        return DIED.format(host, rank.rank, "")
    if isinstance(error, RequestFailed):
        return f"{host}: {_explained(str(error), reads=reads)}"
    return f"{host}: {error}. Try again once %distributed status shows its ranks."


def _digests(reply: Reply[ShareDigests]) -> dict[int, bytes]:
    """The digests in the reply, by file number."""
    data = bytes(reply.buffers[0])
    return {number: data[place * DIGEST : (place + 1) * DIGEST] for place, number in enumerate(reply.answer.files)}


def _size(entry: TreeEntry) -> int:
    return entry.size if entry.is_file else 0


def _in_the_way(refused: Sequence[tuple[bytes, str]], there: ShareAccepted, source: str) -> str:
    paths = alike({os.fsdecode(path): why for path, why in refused})
    said = "; ".join(
        f"{names(which)} in {os.path.dirname(os.fsdecode(there.folder))}: {why}" for why, which in paths.items()
    )
    return (
        f"{said}. --overwrite replaces files with those of {source} (--from names another host), and --to another "
        "folder leaves them."
    )


def _explained(said: str, *, reads: bool = False) -> str:
    """A host's error, followed by advice. `reads`: whether the host was reading the shared files, else writing them."""
    advice = ""
    if reads:
        advice = " Let its user read it, or choose another host with --from." if "Permission denied" in said else ""
    elif "No space left" in said:
        advice = " Make room on its disk, or choose another folder with --to."
    elif "Read-only" in said or "Permission denied" in said or "never written over" in said:
        advice = " Choose a folder that its user may write in with --to."
    elif NOT_PUT in said:
        advice = " --overwrite replaces it."
    return f"{said}.{advice}"


def _all(hosts: Sequence[str]) -> str:
    """The hosts as a list: ``mac2 and mac3``."""
    return " and ".join(filter(None, [", ".join(hosts[:-1]), *hosts[-1:]]))
