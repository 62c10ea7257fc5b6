"""What is shared, from one host to the next: their parts in one process, connected over loopback."""

from __future__ import annotations

import errno
import fcntl
import itertools
import os
import socket
import stat
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest

from allranks.machine.keyed_connections import HELLO
from allranks.machine.shared_records import look_for
from allranks.machine.shared_tree import BLOCK, CONTENT, Manifest, SharedTree, TreeEntry
from allranks.messages.requests import AcceptShare, FindShare, OfferShare, ShareAccepted, ShareOffered
from allranks.messages.requests.share_requests import IN_THE_WAY, LINK_LEADS_OUT, NOT_PUT
from allranks.rank.files import share_blocks, share_link
from allranks.rank.files.share_blocks import Acceptance, ShareOffer
from allranks.rank.files.share_link import BlockLink, BlockListener, FromNotebook, ReportedByOther, Stopped
from allranks.rank.files.shared_names import give_names, shared
from tests.waiting import WITHIN, eventually

KEY = bytes(range(32))
HERE = ["127.0.0.1"]


class Hosts:
    """A source with a folder ``model``, and hosts that each get it into a folder of their own."""

    def __init__(self, root: Path) -> None:
        self.root, self.model = root, root / "source" / "model"
        self.model.mkdir(parents=True)
        self._open: list[share_blocks.RankShare] = []
        self._listening: list[BlockListener] = []

    def asked_to_offer(self) -> OfferShare:
        return OfferShare(transfer="t", key=KEY, path=os.fsencode(self.model), addresses=HERE)

    def offer(self) -> tuple[ShareOffer, ShareOffered, bytes]:
        offer, answer, manifest = ShareOffer.of(self.asked_to_offer())
        self._open.append(offer)
        return offer, answer, manifest

    def asked_to_accept(self, host: str, *, overwrite: bool = False) -> AcceptShare:
        return AcceptShare(
            transfer="t",
            key=KEY,
            name=b"model",
            parent=os.fsencode(self.root / host),
            repo="",
            addresses=HERE,
            overwrite=overwrite,
        )

    def accept(self, host: str, manifest: bytes, *, overwrite: bool = False) -> tuple[Acceptance | None, ShareAccepted]:
        acceptance, answer = Acceptance.of(self.asked_to_accept(host, overwrite=overwrite), manifest)
        if acceptance is not None:
            self._open.append(acceptance)
        return acceptance, answer

    def bring(self, host: str, ports: list[tuple[str, int]] | None = None, *, overwrite: bool = False) -> Acceptance:
        """All of it, as far as it comes."""
        offer, offered, manifest = self.offer()
        acceptance, answer = self.accept(host, manifest, overwrite=overwrite)
        assert acceptance is not None, answer
        acceptance.pull("source", ports or offered.ports)
        assert eventually(lambda: acceptance.state != "receives")
        if acceptance.state == "whole":
            numbers, digests = acceptance.digests([])
            assert not numbers or offer.digests(numbers) == (numbers, digests)
            acceptance.put_in_place()
        acceptance.end()
        offer.end()
        return acceptance

    def files(self, host: str) -> dict[str, bytes]:
        root = self.root / host / "model"
        return {str(each.relative_to(root)): each.read_bytes() for each in sorted(root.rglob("*")) if each.is_file()}

    def aside(self, host: str) -> list[Path]:
        return list((self.root / host).glob(".allranks-*/part-*"))

    def closes(self, listener: BlockListener) -> None:
        self._listening.append(listener)

    def close(self) -> None:
        for each in self._open:
            each.end()
        for listener in self._listening:
            listener.close()


@pytest.fixture
def hosts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hosts]:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    made = Hosts(tmp_path)
    yield made
    made.close()


def large(blocks: float) -> bytes:
    return os.urandom(int(blocks * BLOCK))


def test_blocks_go_through_a_chain_whoever_begins_first(hosts: Hosts) -> None:
    (hosts.model / "large").write_bytes(large(5.5))
    (hosts.model / "empty").touch()
    (hosts.model / "sub").mkdir()
    (hosts.model / "sub" / "it's \n\udcff").write_bytes(b"odd")
    (hosts.model / "link").symlink_to("sub")
    (hosts.model / "run").write_text("#!")
    (hosts.model / "run").chmod(0o750)
    offer, offered, manifest = hosts.offer()
    accepted = [hosts.accept(f"host {number}", manifest) for number in range(3)]
    chain = [acceptance for acceptance, _ in accepted if acceptance is not None]
    ports = [offered.ports, *(answer.ports for _, answer in accepted)]
    for acceptance, before in reversed(list(zip(chain, ports))):
        acceptance.pull("the one before", before)
    assert eventually(lambda: all(each.state == "whole" for each in chain))
    assert all(each.digests([]) == offer.digests(each.digests([])[0]) for each in chain)
    for number, acceptance in enumerate(chain):
        assert not (hosts.root / f"host {number}" / "model").exists(), "not before it is put in place"
        acceptance.put_in_place()
        assert hosts.files(f"host {number}") == hosts.files("source")
        there = hosts.root / f"host {number}" / "model"
        assert os.readlink(there / "link") == "sub"
        assert stat.S_IMODE((there / "run").stat().st_mode) == 0o750
        assert (there / "large").stat().st_mtime_ns == (hosts.model / "large").stat().st_mtime_ns
        assert [each.name for each in there.parent.iterdir()] == ["model"], "nothing is left aside"


def test_what_is_there_is_not_sent_and_what_was_put_there_is_replaced(hosts: Hosts) -> None:
    for name in ("same", "changes", "compared"):
        (hosts.model / name).write_bytes(name.encode())
    (hosts.root / "host" / "model").mkdir(parents=True)
    (hosts.root / "host" / "model" / "compared").write_bytes(b"compared")
    first = hosts.bring("host")
    assert (first.moved, first.checked) == (len("same") + len("changes"), len("compared"))
    (hosts.model / "changes").write_bytes(b"changed")
    os.utime(hosts.model / "changes", (1, 1))
    again = hosts.bring("host")
    assert (again.moved, again.checked) == (len("changed"), len("compared"))
    assert hosts.files("host") == hosts.files("source")
    _, _, manifest = hosts.offer()
    answer = hosts.accept("host", manifest)[1]
    assert (answer.missing, answer.nbytes, answer.compared) == (0, 0, len("compared"))


def test_what_others_have_written_there_is_not_replaced_unless_wanted(hosts: Hosts) -> None:
    (hosts.model / "size").write_bytes(b"ours")
    (hosts.model / "content").write_bytes(b"ours")
    there = hosts.root / "host" / "model"
    there.mkdir(parents=True)
    (there / "size").write_bytes(b"theirs")
    (there / "content").write_bytes(b"OURS")
    _, _, manifest = hosts.offer()
    assert hosts.accept("host", manifest)[1].refused == [(b"model/size", NOT_PUT)]
    (there / "size").unlink()
    failed = hosts.bring("host")
    assert (failed.state, failed.why) == ("failed", f"model/content: {NOT_PUT}")
    assert hosts.files("host") == {"content": b"OURS"}
    hosts.bring("host", overwrite=True)
    assert hosts.files("host") == hosts.files("source")


def test_a_tree_is_read_once_for_a_share(hosts: Hosts, monkeypatch: pytest.MonkeyPatch) -> None:
    (hosts.model / "file").write_bytes(b"1")
    read, scandir = list[bytes](), os.scandir

    def counted(path: bytes) -> object:
        read.append(path)
        return scandir(path)

    monkeypatch.setattr(os, "scandir", counted)
    shares, request = share_blocks.Shares(), hosts.asked_to_offer()
    assert shares.find(FindShare(transfer="t", path=request.path)).path == request.path
    answer, manifest = shares.offer(request)
    assert answer.name == b"model" and read == [request.path]
    assert [entry.path for entry in msgspec.msgpack.decode(manifest, type=Manifest).entries] == [b"model/file"]
    shares.end("t")
    shares.offer(msgspec.structs.replace(request, transfer="u"))
    assert read == [request.path] * 2, "of another transfer, nothing is known"
    shares.end("u")


def test_a_file_that_was_changed_there_after_it_was_shared_stays(hosts: Hosts) -> None:
    (hosts.model / "file").write_bytes(b"1")
    hosts.bring("host")
    (hosts.root / "host" / "model" / "file").write_bytes(b"theirs")
    _, _, manifest = hosts.offer()
    assert [path for path, _ in hosts.accept("host", manifest)[1].refused] == [b"model/file"]


def test_something_that_gets_in_the_way_meanwhile_stays(hosts: Hosts) -> None:
    (hosts.model / "file").write_bytes(b"1")
    acceptance = whole(hosts)
    (hosts.root / "host" / "model").mkdir()
    (hosts.root / "host" / "model" / "file").write_bytes(b"theirs")
    with pytest.raises(RuntimeError, match="model/file: another file is there"):
        acceptance.put_in_place()
    assert hosts.files("host") == {"file": b"theirs"}


def blocks_of(hosts: Hosts, change: Callable[[int, int, bytes], bytes]) -> BlockListener:
    """A source that changes what it gives: called with the file, the block, and the data."""
    offer, _, _ = hosts.offer()

    def blocks(file: int, block: int, within: float) -> tuple[bytes, bytes] | None:
        found = offer._block(file, block, within)
        assert found is not None
        return found[0], change(file, block, found[1])

    return BlockListener(HERE, KEY, blocks, lambda: None)


def test_a_damaged_block_is_asked_for_again(hosts: Hosts) -> None:
    (hosts.model / "large").write_bytes(large(3))
    damaged = itertools.count()

    def once(_file: int, block: int, data: bytes) -> bytes:
        return bytes([data[0] ^ 1]) + data[1:] if block == 1 and not next(damaged) else data

    listener = blocks_of(hosts, once)
    assert hosts.bring("host", listener.ports).state == "whole"
    assert next(damaged) == 2
    assert hosts.files("host") == hosts.files("source")
    listener.close()


def test_a_block_that_is_always_damaged_is_named_and_the_rest_kept(hosts: Hosts) -> None:
    (hosts.model / "large").write_bytes(large(3))
    listener = blocks_of(hosts, lambda _file, block, data: data[:-1] if block == 2 else data)
    failed = hosts.bring("host", listener.ports)
    assert (failed.state, failed.why) == ("failed", "block 2 of model/large arrived damaged 2 times")
    assert hosts.files("host") == {}
    listener.close()
    again = hosts.bring("host")
    assert again.state == "whole" and again.moved + again.checked == 3 * BLOCK
    assert hosts.files("host") == hosts.files("source")


def test_a_share_that_was_stopped_goes_on_where_it_was(hosts: Hosts) -> None:
    (hosts.model / "large").write_bytes(large(8))
    (hosts.model / "other").write_bytes(large(2))
    stopped = threading.Event()

    def until(_file: int, block: int, data: bytes) -> bytes:
        if block >= 4:
            stopped.wait(WITHIN)
        return data

    listener = blocks_of(hosts, until)
    _, _, manifest = hosts.offer()
    acceptance, _ = hosts.accept("host", manifest)
    assert acceptance is not None
    acceptance.pull("source", listener.ports)
    assert eventually(lambda: acceptance.moved >= 4 * BLOCK)
    acceptance.end()
    stopped.set()
    listener.close()
    assert hosts.files("host") == {} and len([each for each in hosts.aside("host") if each.stat().st_size]) == 1
    (hosts.model / "other").write_bytes(large(1))
    _, _, manifest = hosts.offer()
    _, answer = hosts.accept("other host", manifest)
    assert answer.kept == 0
    again = hosts.bring("host")
    assert again.state == "whole" and again.checked >= 4 * BLOCK and again.moved <= 5 * BLOCK
    assert hosts.files("host") == hosts.files("source") and not hosts.aside("host")


def test_parts_that_were_damaged_on_the_disk_are_sent_again(hosts: Hosts) -> None:
    (hosts.model / "large").write_bytes(large(3))
    listener = blocks_of(hosts, lambda _file, block, data: data[:-1] if block == 2 else data)
    hosts.bring("host", listener.ports)
    listener.close()
    (part,) = hosts.aside("host")
    with open(part, "r+b") as file:
        file.write(b"damaged")
    again = hosts.bring("host")
    assert again.state == "whole" and again.moved >= 2 * BLOCK
    assert hosts.files("host") == hosts.files("source")


def receiving(hosts: Hosts, blocks: int, before: int) -> tuple[Acceptance, threading.Event]:
    """A host that has received what is before this block of a file, and gets the rest once the event is set."""
    (hosts.model / "large").write_bytes(large(blocks))
    rest = threading.Event()

    def until(_file: int, block: int, data: bytes) -> bytes:
        if block >= before:
            rest.wait(WITHIN)
        return data

    listener = blocks_of(hosts, until)
    hosts.closes(listener)
    acceptance, _ = hosts.accept("host", hosts.offer()[2])
    assert acceptance is not None
    acceptance.pull("source", listener.ports)
    assert eventually(lambda: acceptance.moved >= before * BLOCK)
    return acceptance, rest


def test_a_part_that_is_removed_meanwhile_is_not_made_again_with_a_hole(hosts: Hosts) -> None:
    acceptance, rest = receiving(hosts, 8, before=4)
    (part,) = hosts.aside("host")
    part.unlink()
    rest.set()
    assert eventually(lambda: acceptance.state != "receives")
    assert (acceptance.state, acceptance.why) == ("failed", f"No such file or directory: {part}")
    acceptance.end()
    assert hosts.bring("host").state == "whole" and hosts.files("host") == hosts.files("source")


@pytest.mark.parametrize("change", [Path.unlink, lambda part: os.truncate(part, 1), lambda part: os.truncate(part, 9)])
def test_a_part_that_is_changed_after_it_has_arrived_is_not_put_in_place(
    hosts: Hosts, change: Callable[[Path], None]
) -> None:
    (hosts.model / "file").write_bytes(b"12345")
    acceptance = whole(hosts)
    (part,) = hosts.aside("host")
    change(part)
    with pytest.raises(RuntimeError, match=r"was changed by something else\. Run the share again"):
        acceptance.put_in_place()
    assert hosts.files("host") == {}


def test_a_part_that_is_too_long_is_cut(hosts: Hosts) -> None:
    acceptance, rest = receiving(hosts, 3, before=1)
    acceptance.end()
    rest.set()
    (part,) = hosts.aside("host")
    os.truncate(part, 5 * BLOCK)
    assert hosts.bring("host").state == "whole"
    assert hosts.files("host") == hosts.files("source")


@pytest.mark.parametrize("size", [0.001, 2], ids=["small", "large"])
def test_a_link_in_the_place_of_a_part_is_not_followed(hosts: Hosts, size: float) -> None:
    (hosts.model / "file").write_bytes(large(size))
    _, offered, manifest = hosts.offer()
    acceptance, _ = hosts.accept("host", manifest)
    assert acceptance is not None
    (hosts.root / "ours").write_bytes(b"ours")
    (part,) = acceptance.parts
    os.symlink(hosts.root / "ours", part.path)
    try:
        acceptance.pull("source", offered.ports)
        assert eventually(lambda: acceptance.state == "failed")
        why = acceptance.why
    except OSError as error:
        why = str(error)
    assert "symbolic links" in why
    assert (hosts.root / "ours").read_bytes() == b"ours"


@pytest.mark.parametrize("mode", [0o777, 0o750])
def test_a_folder_aside_that_others_may_write_in_is_refused(hosts: Hosts, mode: int) -> None:
    (hosts.model / "file").write_bytes(b"1")
    acceptance, _ = hosts.accept("host", hosts.offer()[2])
    assert acceptance is not None
    acceptance.end()
    (aside,) = (hosts.root / "host").glob(".allranks-*")
    assert stat.S_IMODE(aside.stat().st_mode) == 0o700
    aside.chmod(mode)
    with pytest.raises(PermissionError, match="is open to others, or theirs"):
        hosts.accept("host", hosts.offer()[2])


def test_without_locks_the_parts_of_others_stay(hosts: Hosts, monkeypatch: pytest.MonkeyPatch) -> None:
    acceptance, rest = receiving(hosts, 3, before=1)
    acceptance.end()
    rest.set()
    (part,) = hosts.aside("host")

    def no_locks(_descriptor: int, _operation: int) -> None:
        raise OSError(errno.ENOTSUP, "Operation not supported")

    monkeypatch.setattr(fcntl, "flock", no_locks)
    (hosts.model / "large").write_bytes(large(2))
    assert hosts.bring("host").state == "whole"
    assert part.exists() and hosts.files("host") == hosts.files("source")


def test_a_part_that_vanishes_while_parts_are_counted_is_no_error(
    hosts: Hosts, monkeypatch: pytest.MonkeyPatch
) -> None:
    acceptance, rest = receiving(hosts, 3, before=1)
    acceptance.end()
    rest.set()
    (part,), real = hosts.aside("host"), os.listdir
    monkeypatch.setattr(os, "listdir", lambda folder: [*real(folder), os.fsencode(part.name)])
    part.unlink()
    answer = hosts.accept("host", hosts.offer()[2])[1]
    assert (answer.kept, answer.taken) == (0, False)


def test_a_process_that_a_cell_has_forked_does_not_keep_the_lock(hosts: Hosts) -> None:
    (hosts.model / "file").write_bytes(b"1")
    _, _, manifest = hosts.offer()
    acceptance, _ = hosts.accept("host", manifest)
    assert acceptance is not None and acceptance._lock_file is not None
    inherited = os.dup(acceptance._lock_file)  # as a fork leaves it
    acceptance.end()
    assert hosts.accept("host", manifest)[1].taken is False
    os.close(inherited)


def whole(hosts: Hosts) -> Acceptance:
    """A host that has received all of it, and put nothing in place."""
    _, offered, manifest = hosts.offer()
    acceptance, answer = hosts.accept("host", manifest)
    assert acceptance is not None, answer
    acceptance.pull("source", offered.ports)
    assert eventually(lambda: acceptance.state == "whole")
    return acceptance


class Cutting:
    """A network between two hosts that cuts each of the first connections after some bytes."""

    def __init__(self, port: int, cuts: int, after: int) -> None:
        self._port, self._left, self._after = port, cuts, after
        self.cut = 0
        self._server = socket.create_server(("127.0.0.1", 0))
        self.ports = [("127.0.0.1", int(self._server.getsockname()[1]))]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                one, other = self._server.accept()[0], socket.create_connection(("127.0.0.1", self._port))
                self._left -= 1
                limit = self._after if self._left >= 0 else None
                for source, target, most in ((one, other, None), (other, one, limit)):
                    threading.Thread(target=self._pass, args=(source, target, most), daemon=True).start()

    def _pass(self, source: socket.socket, target: socket.socket, limit: int | None) -> None:
        with suppress(OSError):
            while data := source.recv(1 << 16):
                target.sendall(data)
                if limit is not None and (limit := limit - len(data)) < 0:
                    self.cut += 1
                    break
        for each in (source, target):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._server.close()


def test_a_connection_that_is_cut_is_opened_again(hosts: Hosts) -> None:
    (hosts.model / "large").write_bytes(large(12.3))
    _, offered, _ = hosts.offer()
    cutting = Cutting(offered.ports[0][1], cuts=6, after=int(1.5 * BLOCK))
    done = hosts.bring("host", cutting.ports)
    assert (done.state, done.moved) == ("whole", int(12.3 * BLOCK)) and cutting.cut
    assert hosts.files("host") == hosts.files("source")
    cutting.close()


def test_a_host_that_does_not_answer_is_named(hosts: Hosts, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(share_link, "FIRST_WITHIN", 0.0)
    (hosts.model / "file").write_bytes(b"1")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    failed = hosts.bring("host", [("127.0.0.1", port)])
    assert failed.state == "failed"
    assert failed.why.startswith(f"source (127.0.0.1 port {port}) does not answer (")


def test_the_first_address_that_answers_is_used(hosts: Hosts) -> None:
    (hosts.model / "file").write_bytes(b"1")
    _, offered, _ = hosts.offer()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    assert hosts.bring("host", [("127.0.0.1", port), *offered.ports]).state == "whole"


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A hundredth of all times, or less."""
    for name, seconds in {"SILENCE": 0.2, "GIVES_UP_AFTER": 1.0, "FIRST_WITHIN": 1.0}.items():
        monkeypatch.setattr(share_link, name, seconds)
    monkeypatch.setattr(share_link, "AGAIN_AFTER", 0.05)
    monkeypatch.setattr(share_link, "SAYS_WAIT_EVERY", 0.05)


@pytest.mark.usefixtures("impatient")
@pytest.mark.timeout(60)
def test_a_host_that_is_connected_and_says_nothing_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    go_on = threading.Event()
    monkeypatch.setattr(BlockListener, "_answer", lambda *_: go_on.wait(WITHIN))
    listener = BlockListener(HERE, KEY, lambda *_: None, lambda: None)
    with pytest.raises(share_link.Unreachable, match=r"source \(.*\) does not answer \(timed out\)"):
        BlockLink("source", listener.ports, KEY, threading.Event()).ask([(CONTENT, 0, 0)])
    go_on.set()
    listener.close()


@pytest.mark.usefixtures("impatient")
@pytest.mark.timeout(60)
@pytest.mark.parametrize("blocks", [1, 3])
@pytest.mark.parametrize("ends", [True, False])
def test_a_disk_that_is_slow_is_waited_for_and_one_that_hangs_is_not(*, ends: bool, blocks: int) -> None:
    go_on, wanted = threading.Event(), [(CONTENT, number, 0) for number in range(blocks)]

    def read(*_: object) -> tuple[bytes, bytes]:
        go_on.wait(0.5 if ends else WITHIN)
        return bytes(32), b"data"

    listener, stop = BlockListener(HERE, KEY, read, lambda: None), threading.Event()
    link = BlockLink("source", listener.ports, KEY, stop)
    if ends:
        assert [(digest, bytes(data)) for digest, data in link.ask(wanted)] == [(bytes(32), b"data")] * blocks
    else:
        with pytest.raises(ReportedByOther, match="its disk gave nothing for 1 s"):
            link.ask(wanted)
    go_on.set()
    link.close()
    listener.close()


def test_a_stranger_gets_nothing(hosts: Hosts, monkeypatch: pytest.MonkeyPatch) -> None:
    (hosts.model / "file").write_bytes(b"secret")
    _, offered, _ = hosts.offer()
    for said in (b"", bytes(32), bytes(64), os.urandom(100_000), b"GET / HTTP/1.1\r\n\r\n" * 10):
        with socket.create_connection(offered.ports[0]) as stranger:
            stranger.settimeout(WITHIN)
            with suppress(OSError):
                stranger.sendall(said)
                stranger.shutdown(socket.SHUT_WR)
            received = b""
            with suppress(ConnectionError):  # which may take away what was sent before
                while data := stranger.recv(1000):
                    received += data
            greeting = HELLO + received[len(HELLO) :]
            assert len(received) <= len(HELLO) + 32 and greeting.startswith(received[: len(HELLO)])
    with monkeypatch.context() as patch:
        patch.setattr(share_link, "FIRST_WITHIN", 0.0)
        with pytest.raises(share_link.Unreachable, match="the connection was closed"):
            BlockLink("source", offered.ports, bytes(32), threading.Event()).ask([(CONTENT, 0, 0)])
    assert hosts.bring("host").state == "whole", "strangers do not keep others from it"


def test_a_listener_that_does_not_know_the_key_is_not_believed(hosts: Hosts, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(share_link, "FIRST_WITHIN", 0.0)
    (hosts.model / "file").write_bytes(b"1")
    listener = BlockListener(HERE, bytes(32), lambda *_: (bytes(32), b"2"), lambda: None)
    failed = hosts.bring("host", listener.ports)
    assert failed.state == "failed" and "does not answer" in failed.why
    listener.close()


def test_what_the_notebook_sends_itself_is_named_again_where_it_was_lost() -> None:
    notebook, got = FromNotebook("localhost"), dict[int, object]()

    def ask(block: int) -> None:
        try:
            got[block] = notebook.ask([(CONTENT, 0, block)])[0]
        except (ReportedByOther, Stopped) as error:
            got[block] = error

    asking = [threading.Thread(target=ask, args=(block,)) for block in range(3)]
    wanted = list[tuple[int, int, int]]()
    for each in asking:
        each.start()
    while len(wanted) < 3:
        wanted += notebook.give({}, "", again=False)
    assert set(wanted) == {(CONTENT, 0, block) for block in range(3)}
    assert set(notebook.give({(CONTENT, 0, 1): (b"digest", b"data")}, "", again=True)) == {
        (CONTENT, 0, 0),
        (CONTENT, 0, 2),
    }
    asking[1].join(WITHIN)
    assert got == {1: (b"digest", b"data")}
    notebook.give({}, "it was changed", again=False)
    notebook.close()
    for each in asking:
        each.join(WITHIN)
    assert {str(got[0]), str(got[2])} == {"it was changed"}
    ask(3)
    assert isinstance(got[3], ReportedByOther)


def test_a_file_that_changes_at_the_source_fails_the_share(hosts: Hosts) -> None:
    (hosts.model / "file").write_bytes(b"1")
    _, offered, manifest = hosts.offer()
    (hosts.model / "file").write_bytes(b"22")
    acceptance, _ = hosts.accept("host", manifest)
    assert acceptance is not None
    acceptance.pull("source", offered.ports)
    assert eventually(lambda: acceptance.state == "failed")
    assert acceptance.elsewhere == "source" and "file was changed while it was shared" in acceptance.why


def test_two_that_write_to_one_folder(hosts: Hosts) -> None:
    (hosts.model / "file").write_bytes(b"1")
    _, _, manifest = hosts.offer()
    _, first = hosts.accept("host", manifest)
    none, second = hosts.accept("host", manifest)
    assert none is None and (first.taken, second.taken) == (False, True)
    assert first.identity and first.identity == second.identity


def test_a_host_that_mounts_the_sources_folder_gets_nothing(hosts: Hosts) -> None:
    (hosts.model / "file").write_bytes(b"1")
    _, _, manifest = hosts.offer()
    assert hosts.accept("source", manifest) == (None, ShareAccepted(os.fsencode(hosts.model), same=True))


def test_a_host_with_some_of_the_sources_own_files_gets_the_others(hosts: Hosts) -> None:
    """A copy of a disk image, say, has the same inodes and times."""
    for number in range(7):
        (hosts.model / str(number)).write_bytes(b"1")
    _, _, manifest = hosts.offer()
    (hosts.model / "6").unlink()
    answer = hosts.accept("source", manifest)[1]
    assert (answer.same, answer.missing) == (False, 1)


@pytest.mark.parametrize(
    "entry",
    [
        TreeEntry(b"model/../../out", stat.S_IFREG, 1, 1, 1, 1),
        TreeEntry(b"/etc/passwd", stat.S_IFREG, 1, 1, 1, 1),
        TreeEntry(b"other/file", stat.S_IFREG, 1, 1, 1, 1),
        TreeEntry(b"model//file", stat.S_IFREG, 1, 1, 1, 1),
        TreeEntry(b"model/link", stat.S_IFLNK, 1, 1, 1, 1, b"../../out"),
        TreeEntry(b"model/link", stat.S_IFLNK, 1, 1, 1, 1, b"/etc"),
    ],
)
def test_a_source_cannot_write_outside_the_folder(hosts: Hosts, entry: TreeEntry) -> None:
    with pytest.raises(PermissionError, match="leads out of the folder"):
        hosts.accept("host", msgspec.msgpack.encode(Manifest([entry], [])))


def test_a_link_there_that_leads_out_is_not_followed(hosts: Hosts) -> None:
    (hosts.model / "sub" / "deep").mkdir(parents=True)
    (hosts.model / "sub" / "deep" / "file").write_bytes(b"1")
    (hosts.root / "host" / "model").mkdir(parents=True)
    (hosts.root / "outside").mkdir()
    (hosts.root / "host" / "model" / "sub").symlink_to(hosts.root / "outside")
    for overwrite in (False, True):
        _, answer = hosts.accept("host", hosts.offer()[2], overwrite=overwrite)
        assert answer.refused == [(b"model/sub/deep/file", LINK_LEADS_OUT)]
    (hosts.root / "host" / "model" / "sub").unlink()
    acceptance = whole(hosts)
    (hosts.root / "host" / "model" / "sub").symlink_to(hosts.root / "outside")
    with pytest.raises(RuntimeError, match=LINK_LEADS_OUT):
        acceptance.put_in_place()
    assert not list((hosts.root / "outside").iterdir())


def test_a_file_in_the_place_of_a_folder_is_named_before_anything_is_sent(hosts: Hosts) -> None:
    (hosts.model / "sub").mkdir()
    (hosts.model / "sub" / "file").write_bytes(b"1")
    (hosts.root / "host" / "model").mkdir(parents=True)
    (hosts.root / "host" / "model" / "sub").write_bytes(b"theirs")
    assert hosts.accept("host", hosts.offer()[2])[1].refused == [(b"model/sub/file", IN_THE_WAY)]


def test_all_places_are_looked_at_before_the_first_is_written(hosts: Hosts) -> None:
    for name in "ab":
        (hosts.model / name).write_bytes(b"1")
    hosts.bring("host")
    for name in "ab":
        (hosts.model / name).write_bytes(b"new")
    acceptance = whole(hosts)
    (hosts.root / "host" / "model" / "b").write_bytes(b"a cell wrote this")
    with pytest.raises(RuntimeError, match="model/b: another file is there"):
        acceptance.put_in_place()
    assert hosts.files("host") == {"a": b"1", "b": b"a cell wrote this"}


def test_what_refers_to_other_files_is_put_in_place_after_them(hosts: Hosts, monkeypatch: pytest.MonkeyPatch) -> None:
    for folder in ("blobs", "refs", "snapshots/c"):
        (hosts.model / folder).mkdir(parents=True)
    (hosts.model / "blobs" / "b").write_bytes(b"w")
    (hosts.model / "refs" / "main").write_bytes(b"c")
    (hosts.model / "snapshots" / "c" / "w").symlink_to("../../blobs/b")
    acceptance, placed = whole(hosts), list[str]()
    real = os.replace

    def replace(old: bytes | str | Path, new: bytes | str | Path) -> None:
        if ".allranks" in os.fsdecode(old):
            placed.append(os.path.basename(os.fsdecode(new)))
        real(old, new)

    monkeypatch.setattr(os, "replace", replace)
    acceptance.put_in_place()
    assert placed == ["b", "w", "main"]


def test_an_end_waits_for_what_is_being_put_in_place(hosts: Hosts, monkeypatch: pytest.MonkeyPatch) -> None:
    (hosts.model / "file").write_bytes(b"1")
    acceptance, real, begun, go_on = whole(hosts), os.replace, threading.Event(), threading.Event()

    def replace(old: bytes | str | Path, new: bytes | str | Path) -> None:
        begun.set()
        assert go_on.wait(WITHIN)
        real(old, new)

    monkeypatch.setattr(os, "replace", replace)
    placing = threading.Thread(target=acceptance.put_in_place)
    placing.start()
    assert begun.wait(WITHIN)
    ending = threading.Thread(target=acceptance.end)
    ending.start()
    assert hosts.accept("host", hosts.offer()[2])[1].taken
    assert ending.is_alive()
    go_on.set()
    ending.join(WITHIN)
    placing.join(WITHIN)
    assert hosts.files("host") == {"file": b"1"} and not hosts.aside("host")
    with pytest.raises(RuntimeError, match="the share was stopped"):
        acceptance.put_in_place()


def test_parts_are_on_the_disk_before_one_is_put_in_place(hosts: Hosts, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in "ab":
        (hosts.model / name).write_bytes(b"1")
    acceptance, done = whole(hosts), list[str]()
    expected = {each.stat().st_ino for each in hosts.aside("host")}
    expected |= {each.parent.stat().st_ino for each in hosts.aside("host")}
    real, synced = os.replace, set[int]()

    def replace(old: bytes | str | Path, new: bytes | str | Path) -> None:
        if ".allranks" in os.fsdecode(old):
            done.append("placed")
            assert synced == expected
        real(old, new)

    monkeypatch.setattr(os, "replace", replace)
    monkeypatch.setattr(os, "fsync", lambda descriptor: synced.add(os.fstat(descriptor).st_ino))
    acceptance.put_in_place()
    assert done == ["placed"] * 2


def test_neither_setuid_nor_setgid_is_passed_on(hosts: Hosts) -> None:
    (hosts.model / "run").write_text("#!")
    (hosts.model / "run").chmod(0o6755)
    hosts.bring("host")
    assert stat.S_IMODE((hosts.root / "host" / "model" / "run").stat().st_mode) == 0o755


def test_an_empty_folder(hosts: Hosts) -> None:
    hosts.bring("host")
    assert list((hosts.root / "host").iterdir()) == [hosts.root / "host" / "model"]


def test_a_folder_that_is_a_link_to_another_disk_is_followed(hosts: Hosts) -> None:
    (hosts.model / "file").write_bytes(b"1")
    (hosts.root / "host").mkdir()
    (hosts.root / "disk" / "models").mkdir(parents=True)
    (hosts.root / "host" / "model").symlink_to(hosts.root / "disk" / "models")
    assert hosts.bring("host").state == "whole"
    assert (hosts.root / "disk" / "models" / "file").read_bytes() == b"1"


def test_the_home_folder_is_neither_shared_nor_written_over(hosts: Hosts, monkeypatch: pytest.MonkeyPatch) -> None:
    (hosts.model / "file").write_bytes(b"1")
    _, _, manifest = hosts.offer()
    monkeypatch.setenv("HOME", str(hosts.model))
    with pytest.raises(PermissionError, match="are never shared"):
        hosts.offer()
    (hosts.root / "host" / "model").mkdir(parents=True)
    monkeypatch.setenv("HOME", str(hosts.root / "host" / "model"))
    with pytest.raises(PermissionError, match="are never written over"):
        hosts.accept("host", manifest)


def test_a_share_whose_notebook_is_gone_ends(hosts: Hosts, monkeypatch: pytest.MonkeyPatch) -> None:
    (hosts.model / "file").write_bytes(b"1")
    offer, offered, _ = hosts.offer()
    with socket.create_connection(offered.ports[0]):
        pass
    monkeypatch.setattr(share_blocks, "FORGOTTEN_AFTER", -1.0)

    def refused() -> bool:
        try:
            socket.create_connection(offered.ports[0]).close()
        except ConnectionRefusedError:
            return True
        return False

    assert eventually(refused)
    assert (offer.progress().state, offer.progress().why) == ("failed", "the notebook was out of reach for too long")


@pytest.mark.parametrize("accepts", [False, True])
def test_a_share_that_ends_while_it_begins_leaves_nothing_open(
    hosts: Hosts, monkeypatch: pytest.MonkeyPatch, *, accepts: bool
) -> None:
    (hosts.model / "file").write_bytes(b"1")
    manifest, shares, opened = hosts.offer()[2], share_blocks.Shares(), list[share_blocks.RankShare]()
    offers, acceptances = ShareOffer.of, Acceptance.of

    def offered(request: OfferShare, tree: SharedTree | None) -> tuple[ShareOffer, ShareOffered, bytes]:
        made = offers(request, tree)
        opened.append(made[0])
        shares.end("t")
        return made

    def accepted(request: AcceptShare, manifest: bytes) -> tuple[Acceptance | None, ShareAccepted]:
        made = acceptances(request, manifest)
        assert made[0] is not None
        opened.append(made[0])
        shares.end("t")
        return made

    monkeypatch.setattr(ShareOffer, "of", offered)
    monkeypatch.setattr(Acceptance, "of", accepted)

    def begin() -> object:
        if accepts:
            return shares.accept(hosts.asked_to_accept("host"), manifest)
        return shares.offer(hosts.asked_to_offer())

    with pytest.raises(RuntimeError, match="the share was stopped"):
        begin()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(opened[0].listener.ports[0])
    if accepts:
        monkeypatch.setattr(Acceptance, "of", acceptances)
        assert not hosts.accept("host", manifest)[1].taken


def test_a_copy_that_a_share_has_put_there_is_known_until_it_changes(hosts: Hosts) -> None:
    (hosts.model / "file").write_bytes(b"1")
    (hosts.model / "link").symlink_to("file")
    hosts.bring("host")
    there = hosts.root / "host" / "model"
    source, copy = (look_for(os.fsencode(each))[0] for each in (hosts.model, there))
    assert (source.placed, copy.placed) == (False, True) and source.state == copy.state
    (there / "more").write_bytes(b"1")
    changed, _ = look_for(os.fsencode(there))
    assert not changed.placed and changed.state != copy.state
    (there / "more").unlink()
    assert look_for(os.fsencode(there))[0].placed
    (there / "file").write_bytes(b"2")
    assert not look_for(os.fsencode(there))[0].placed


def test_no_port_is_open_once_a_share_has_ended(hosts: Hosts) -> None:
    offer, offered, _ = hosts.offer()
    offer.end()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(offered.ports[0])


def test_a_name_is_found_until_its_files_are_gone(hosts: Hosts) -> None:
    with pytest.raises(FileNotFoundError, match=r"'model' was not shared to this host: run %distributed share model"):
        shared("model")
    names = ["model", "~/a/model", "..", "ü" * 300, "\udcff"]
    give_names([os.fsencode(name) for name in names], os.fsencode(hosts.model), "")
    assert {shared(name) for name in names} == {hosts.model}
    hosts.model.rename(hosts.root / "elsewhere")
    with pytest.raises(FileNotFoundError, match=r"model is no longer there: run %distributed share model"):
        shared("model")


def test_the_name_of_a_repository_is_that_of_its_snapshot(hosts: Hosts) -> None:
    for commit in ("old", "new"):
        (hosts.model / "snapshots" / commit).mkdir(parents=True)
        os.utime(hosts.model / "snapshots" / commit, (1, 1 if commit == "old" else 2))
    give_names([b"a/b"], os.fsencode(hosts.model), "a/b")
    assert shared("a/b").name == "new"
    (hosts.model / "refs").mkdir()
    (hosts.model / "refs" / "main").write_text("old")
    give_names([b"a/b"], os.fsencode(hosts.model), "a/b")
    assert shared("a/b").name == "old"


@pytest.mark.skipif(sys.platform != "linux", reason="others have no syncfs")
@pytest.mark.parametrize(("release", "together"), [("5.8.0-generic", True), ("4.18.0-553.el8.x86_64", False)])
def test_many_files_are_written_to_the_disk_together_where_errors_are_reported(
    hosts: Hosts, monkeypatch: pytest.MonkeyPatch, release: str, *, together: bool
) -> None:
    for name in "abc":
        (hosts.model / name).write_bytes(b"1")
    monkeypatch.setattr(share_blocks, "FEW", 2)
    monkeypatch.setattr(os, "uname", lambda: SimpleNamespace(release=release))
    synced, real = list[bool](), share_blocks._sync

    def sync(path: bytes, syncfs: Callable[[int], int] | None = None) -> None:
        synced.append(syncfs is not None)
        real(path, syncfs)

    monkeypatch.setattr(share_blocks, "_sync", sync)
    assert hosts.bring("host").state == "whole"
    assert synced == ([True, False] if together else [False] * 4), "and the folder at the end"
