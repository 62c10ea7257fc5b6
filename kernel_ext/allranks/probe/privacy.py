"""Removes the names of people, machines, networks and files from a report."""

from __future__ import annotations

import getpass
import platform
import re
import socket
from collections.abc import Callable, Iterable
from pathlib import Path

import msgspec

from allranks.messages.events.probe_answers import ProbeAnswer, ProbeCheck

from .probe_verdict import Report, Verdict

Hide = Callable[[str], str]
_PATH = re.compile(r"(?<![\w.~/])~?(?:/[^\s/'\",;:()<>]+){2,}/?")
_IPV4 = re.compile(r"(?<![\w.])\d{1,3}(?:\.\d{1,3}){3}(?!\w|\.\d)")
_HEXADECIMAL = re.compile(
    r"(?<![\w:])(?:(?:[0-9a-fA-F]{0,4}:){3,7}[0-9a-fA-F]{0,4}|(?=[0-9a-fA-F:]*::)[0-9a-fA-F:]{3,})(?![\w:])"
)
"""IPv6 addresses and MAC addresses."""
_NAMED = re.compile(r"(?<=Local host: )\S+|(?<=\[)[A-Za-z][\w.-]*(?=:\d+\])|(?<=\bPeer host: )\S+")
"""Host names as Open MPI prints them."""


def hider(hosts: Iterable[str]) -> Hide:
    """A function that replaces the names of `hosts`, this machine and users, and paths and addresses, in a text."""
    given = dict.fromkeys(host.rpartition("@")[2] for host in hosts)
    numbered = {name: f"<host {number}>" for number, name in enumerate(given, 1)}
    own = {name: "<this machine>" for name in (socket.gethostname(), platform.node()) if name}
    own |= {name.partition(".")[0]: "<this machine>" for name in own}
    users = {_user(): "<user>", **{host.partition("@")[0]: "<user>" for host in hosts if "@" in host}}
    named, home = own | numbered | users, str(Path.home())
    ordered = sorted((name for name in named if name and name not in ("localhost", "root")), key=len, reverse=True)

    def hide(text: str) -> str:
        # The path of the home folder may contain spaces, which `_PATH` does not match.
        text = _PATH.sub("<path>", text.replace(home, "/home") if home != "/" else text)
        for name in ordered:
            text = re.sub(rf"(?<![\w.-]){re.escape(name)}(?![\w-])", named[name], text, flags=re.IGNORECASE)
        text = _NAMED.sub("<host>", text)
        return _HEXADECIMAL.sub("<address>", _IPV4.sub("<address>", text))

    return hide


def hidden(report: Report, hide: Hide) -> Report:
    """The report with `hide` applied to all free text."""
    return msgspec.structs.replace(
        report,
        verdict=Verdict(report.verdict.in_place, hide(report.verdict.why), report.verdict.macos, report.verdict.listed),
        answers=[_answer(each, hide) for each in report.answers],
        checks=[_check(each, hide) for each in report.checks],
    )


def _answer(answer: ProbeAnswer, hide: Hide) -> ProbeAnswer:
    facts = {name: hide(fact) if isinstance(fact, str) else fact for name, fact in answer.facts.items()}
    return msgspec.structs.replace(answer, detail=hide(answer.detail), facts=facts)


def _check(check: ProbeCheck, hide: Hide) -> ProbeCheck:
    return msgspec.structs.replace(check, detail=hide(check.detail))


def _user() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # a user without a name
        return ""
