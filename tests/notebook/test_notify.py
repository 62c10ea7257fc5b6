"""Notifications of long cells."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from allranks.errors import CellTimeout, UsageError
from allranks.notebook import notify
from allranks.notebook.notify import Notifier
from tests.notebook.test_watch import until

if TYPE_CHECKING:
    from allranks import Cluster

Posted = list[tuple[str, str]]


@pytest.fixture
def server() -> Iterator[tuple[str, Posted]]:
    """An address, and the type and the text of what was sent to it."""
    posted: Posted = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            text = self.rfile.read(int(self.headers["Content-Length"])).decode()
            posted.append((self.headers["Content-Type"], text))
            self.send_response({"/fails": 500, "/moved": 301}.get(self.path, 200))
            if self.path == "/moved":
                self.send_header("Location", "/")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Quietly."""

    served = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=served.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{served.server_port}", posted
    served.shutdown()
    served.server_close()
    thread.join()


def test_the_end_of_a_long_cell_is_told_by_command_and_url(
    ring2: Cluster, tmp_path: Path, server: tuple[str, Posted], monkeypatch: pytest.MonkeyPatch
) -> None:
    url, posted = server
    file = tmp_path / "told"
    ring2.notifier = Notifier(command=f'echo "$ALLRANKS_TEXT" >> {file}', url=url, over=0.0)
    try:
        ring2.run("x = 1", count=3).check()
        assert until(lambda: len(posted) == 1)
        ring2.run("assert rank", count=4)
        assert until(lambda: len(posted) == 2 and file.exists() and len(file.read_text().splitlines()) == 2)
        assert [each.split(" (")[0] for _, each in posted] == [
            "In[3] succeeded",
            "In[4] failed: rank 0 raised AssertionError",
        ]
        assert {kind for kind, _ in posted} == {"text/plain; charset=utf-8"}
        assert sorted(file.read_text().splitlines()) == sorted(text for _, text in posted)
        sent = list[str]()
        monkeypatch.setattr(Notifier, "send", lambda _self, text: sent.append(text))
        ring2.notifier = Notifier(url=url, over=600.0)
        ring2.run("x = 1").check()
        assert not sent, "a short cell"
        ring2.notifier = Notifier(url=url, over=0.0)
        with pytest.raises(CellTimeout):
            ring2.run("import time\nwhile True: time.sleep(0.01)", count=6, timeout=0.3)
        assert [each.rsplit(" (", 1)[0] for each in sent] == ["In[6] failed: it took longer than its limit"]
    finally:
        ring2.notifier = None


def test_a_hang_is_told_once(ring2: Cluster, server: tuple[str, Posted], monkeypatch: pytest.MonkeyPatch) -> None:
    url, posted = server
    monkeypatch.setattr("allranks.cluster.cell.HANGS_AFTER", 2.0)
    ring2.notifier = Notifier(url=url, over=600.0)
    try:
        cell = ring2.begin(
            "import time\nmx.eval(mx.distributed.all_sum(mx.ones(1))) if rank else time.sleep(600)", count=5
        )
        thread = threading.Thread(target=cell.finish)
        thread.start()
        assert until(lambda: bool(posted))
        ring2.interrupt(within=30)
        thread.join()
    finally:
        ring2.notifier = None
    assert len(posted) == 1 and posted[0][1].startswith("In[5] hangs: rank 1 waited 2 s; "), posted
    assert "; rank 0 at line 2" in posted[0][1]


def test_what_fails_is_said(server: tuple[str, Posted], capsys: pytest.CaptureFixture[str]) -> None:
    url, _ = server
    Notifier(command="echo no >&2; exit 3", url=f"{url}/fails").send("text")
    said = ""

    def both() -> bool:
        nonlocal said
        said += capsys.readouterr().out
        return said.count("Not notified: ") == 2

    assert until(both)
    assert "Not notified: the command ended with exit code 3 (no)." in said
    assert "Not notified: 127.0.0.1 answered 500 Internal Server Error." in said


def test_an_address_that_has_moved_is_said(server: tuple[str, Posted], capsys: pytest.CaptureFixture[str]) -> None:
    Notifier(url=f"{server[0]}/moved").send("text")
    assert until(lambda: "Not notified: 127.0.0.1 answered 301 " in capsys.readouterr().out)


def test_a_command_may_leave_something_in_the_background(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(notify, "WITHIN", 5.0)
    Notifier(command=f"sleep 30 & echo $! > {tmp_path}/pid; echo bad >&2; exit 4").send("text")
    assert until(lambda: "ended with exit code 4 (bad)" in capsys.readouterr().out)
    os.kill(int((tmp_path / "pid").read_text()), signal.SIGKILL)


def test_a_webhook_of_slack_gets_json(server: tuple[str, Posted], monkeypatch: pytest.MonkeyPatch) -> None:
    url, posted = server
    monkeypatch.setattr(notify, "JSON_HOSTS", ("127.0.0.1",))
    Notifier(url=url).send("text")
    assert until(lambda: bool(posted))
    assert posted[0][0] == "application/json" and json.loads(posted[0][1])["text"] == "text"


@pytest.mark.parametrize("url", ["ntfy.sh/secret", "https://[secret", "ftp://secret", "https://", "https://a b/secret"])
def test_an_address_that_is_none_is_refused_without_being_shown(url: str) -> None:
    with pytest.raises(UsageError) as refused:
        Notifier(url=url)
    assert "secret" not in str(refused.value)
    assert "secret" not in repr(Notifier(url="https://ntfy.sh/secret", command="secret"))


def test_what_goes_wrong_ends_no_cell(ring2: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError

    monkeypatch.setattr(Notifier, "_show", broken)
    ring2.notifier = Notifier(bell=True, over=0.0)
    try:
        ring2.run("x = 1").check()
    finally:
        ring2.notifier = None
