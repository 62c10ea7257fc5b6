"""What identifies people, machines and networks is replaced; what a reader needs is not."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from allranks.messages.events.probe_answers import ProbeAnswer, ProbeCheck
from allranks.probe.machine import described
from allranks.probe.privacy import hidden, hider
from allranks.probe.probe_verdict import Report, Verdict

HOSTS = ("ada@studio.example.org", "mini")


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("connect to 192.168.0.17:5000 failed", "connect to <address>:5000 failed"),
        ("fe80::1c3d:2aff:fe00:1 is down", "<address> is down"),
        ("fd00::5 and ::1", "<address> and <address>"),
        ("Local host: Studio-2", "Local host: <host>"),
        ("[studio-2:4711] a message", "[<host>:4711] a message"),
        ("Ada@MINI.local", "<user>@<host 2>.local"),
        ("ether 8c:85:90:aa:bb:cc", "ether <address>"),
        ("dlopen(/Users/ada/lib/librdma.dylib, 6)", "dlopen(<path>, 6)"),
        ("in '~/venv/lib/x.py', line 3", "in '<path>', line 3"),
        (f"no file {Path.home()}/secret/x.so", "no file <path>"),
        ("rank 1 on studio.example.org died", "rank 1 on <host 1> died"),
        ("ada@mini: Permission denied", "<user>@<host 2>: Permission denied"),
        ("mini.local does not answer", "<host 2>.local does not answer"),
    ],
)
def test_names_are_replaced(text: str, shown: str) -> None:
    assert hider(HOSTS)(text) == shown


def test_this_machine_is_not_named() -> None:
    own = socket.gethostname()
    assert own not in hider([])(f"{own} sleeps; {own.partition('.')[0]}.local, too")


@pytest.mark.parametrize(
    "text",
    [
        "std::string in mlx::core, a[1:2]",
        "rdma_en2: 1 of 2 GIDs",
        "mlx 0.32.4 and Open MPI 5.0.11",
        "12:30:05 and 3/4 of all",
        "NVIDIA H100 80GB HBM3, 580.65.06, 81559 MiB",
        "the minimum of administrators",
        "wrong with 3001, 300000 elements",
    ],
)
def test_other_words_are_left(text: str) -> None:
    assert hider(HOSTS)(text) == text


def test_every_text_of_a_report_is_searched() -> None:
    secret = "/Users/ada/secret at 10.0.0.1"
    report = Report(
        machine=described(),
        date="2026-01-01",
        verdict=Verdict("no", secret, "", False),
        answers=[ProbeAnswer("flush", "no", secret, {"where": secret, "count": 1})],
        checks=[ProbeCheck("ring", "start", "failed", secret)],
    )
    shown = repr(hidden(report, hider([])))
    assert "ada" not in shown and "10.0.0.1" not in shown and "'count': 1" in shown
